"""Computes an agent's observation of a placement: the published one, unpadded or padded."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.native.floorplan.placement_cost import PlacementCost

Features = dict[str, "NDArray[Any]"]


class Observer:
    """The fields of an observation under their published names; float32 and int32.

    Nodes are the macros in index order, then the clusters of ports; lengths are over the canvas's half perimeter. With
    `padded` nodes, edges and maps have the published sizes; without, they have the block's. Locations are those at the
    time when the observer is made, or the canvas's centre; macros placed later are where they are.

    Args:
        plc: What is observed. Ports must be placed.
        padded: Whether arrays are filled up with zeros, maps around their middle.
        most_nodes, most_edges, most_grid: The padded sizes.

    Raises:
        ValueError: The block is larger than the padded sizes.
    """

    def __init__(
        self,
        plc: PlacementCost,
        *,
        padded: bool = True,
        most_nodes: int = 5000,
        most_edges: int = 70_000,
        most_grid: int = 128,
    ) -> None:
        self.plc, self.padded = plc, padded
        self.macros = plc.get_macro_indices()
        self.hard = np.array([not plc.is_node_soft_macro(m) for m in self.macros], dtype=bool)
        self._grid = plc.get_grid_num_columns_rows()
        self._canvas = plc.get_canvas_width_height()
        weights, cells = plc.get_macro_and_clustered_port_adjacency()
        self._nodes = len(self.macros) + len(cells)
        graph = np.triu(np.reshape(np.array(weights), (self._nodes, self._nodes)))
        self._edges = np.nonzero(graph)
        if padded and (self._nodes > most_nodes or len(self._edges[0]) > most_edges or max(self._grid) > most_grid):
            raise ValueError(
                f"the block has {self._nodes} nodes, {len(self._edges[0])} edges and {self._grid[0]} x {self._grid[1]} "
                f"cells, expected at most {most_nodes}, {most_edges} and {most_grid} a side; raise the padded sizes"
            )
        self._sizes = (most_nodes, most_edges, most_grid)
        self.static = self._static(graph[self._edges], len(cells))
        self._x, self._y = self._locations(cells)
        self._placed = np.array(
            [plc.is_node_fixed(m) and plc.is_node_placed(m) for m in self.macros] + [True] * len(cells)
        )

    def observe(self, current: int | None) -> Features:
        """Return all fields, where the macro of that node index is the next to place; None at the end."""
        plc, half = self.plc, sum(self._canvas)
        x, y, placed = self._x.copy(), self._y.copy(), self._placed.copy()
        for number in np.flatnonzero(self.hard).tolist():
            if plc.is_node_placed(self.macros[number]):
                x[number], y[number] = plc.get_node_location(self.macros[number])
                placed[number] = True
        mask = np.zeros(self._grid[0] * self._grid[1]) if current is None else np.array(plc.get_node_mask(current))
        dynamic = {
            "locations_x": self._fill((x / half).astype(np.float32), 0),
            "locations_y": self._fill((y / half).astype(np.float32), 0),
            "is_node_placed": self._fill(placed.astype(np.int32), 0),
            "current_node": np.array([0 if current is None else self.macros.index(current)], dtype=np.int32),
            "fake_net_heatmap": self._map(self._fake_nets(current).astype(np.float32)),
            "packing_heatmap": self._map(self._packing(current).astype(np.float32)),
            "mask": self._map(mask.astype(np.int32)),
        }
        return {**self.static, **dynamic}

    def _static(self, weights: NDArray[np.float64], clusters: int) -> Features:
        plc, (most_nodes, most_edges, most_grid) = self.plc, self._sizes
        (across, up), (macro_across, _) = plc.get_routes_per_micron(), plc.get_macro_routing_allocation()
        width, height = self._canvas
        hard = int(self.hard.sum())
        scalars = {
            "normalized_num_edges": weights.sum() / most_edges,
            "normalized_num_hard_macros": hard / most_nodes,
            "normalized_num_soft_macros": (len(self.macros) - hard) / most_nodes,
            "normalized_num_port_clusters": clusters / most_nodes,
            "total_horizontal_routes_k": across * height / 1000,
            "total_vertical_routes_k": up * width / 1000,
            "total_macro_horizontal_routes_k": macro_across * height / 1000,
            "total_macro_vertical_routes_k": macro_across * width / 1000,  # the horizontal number, as published
            "grid_cols": self._grid[0] / most_grid,
            "grid_rows": self._grid[1] / most_grid,
            "canvas_width": width / (width + height),
            "canvas_height": height / (width + height),
        }
        sizes = np.array([plc.get_node_width_height(m) for m in self.macros]).reshape(-1, 2) * self.hard[:, None]
        sizes = np.concatenate([sizes, np.zeros((clusters, 2))]) / (width + height)
        types = np.concatenate([np.where(self.hard, 1, 2), np.full(clusters, 3)])
        mean = weights.mean() if len(weights) else 0.0
        counts = np.bincount(np.concatenate(self._edges), minlength=self._nodes)
        return {
            **{name: np.array([value], dtype=np.float32) for name, value in scalars.items()},
            "sparse_adj_i": self._fill(self._edges[0].astype(np.int32), 1),
            "sparse_adj_j": self._fill(self._edges[1].astype(np.int32), 1),
            "sparse_adj_weight": self._fill((weights / (mean + 1e-6)).astype(np.float32), 1),
            "edge_counts": self._fill(counts.astype(np.int32), 0),
            "macros_w": self._fill(sizes[:, 0].astype(np.float32), 0),
            "macros_h": self._fill(sizes[:, 1].astype(np.float32), 0),
            "node_types": self._fill(types.astype(np.int32), 0),
            "netlist_index": np.zeros(1, dtype=np.int32),
        }

    def _locations(self, clusters: list[int]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        plc, (width, height), (columns, rows) = self.plc, self._canvas, self._grid
        at = [plc.get_node_location(m) if plc.is_node_placed(m) else (width / 2, height / 2) for m in self.macros]
        for cell in clusters:
            row, column = divmod(cell, columns)
            x, y = (column + 0.5) * width / columns, (row + 0.5) * height / rows
            x = 0.0 if column == 0 else width if column == columns - 1 else x
            y = 0.0 if row == 0 else height if row == rows - 1 else y
            at.append((x, y))
        both = np.array(at, dtype=np.float64).reshape(-1, 2)
        return both[:, 0].copy(), both[:, 1].copy()

    def _fake_nets(self, current: int | None) -> NDArray[np.float64]:
        columns, rows = self._grid
        out = np.zeros(columns * rows)
        nets = self.plc.get_fake_nets()
        if current is None or not nets:
            return out
        width, height = self._canvas[0] / columns, self._canvas[1] / rows
        row, column = np.divmod(np.arange(columns * rows), columns)
        for weight, nodes in nets:
            if current not in nodes:
                continue
            for other in nodes:
                cell = self.plc.get_grid_cell_of_node(other)
                if other != current and self.plc.is_node_placed(other) and cell >= 0:
                    there_row, there_column = divmod(cell, columns)
                    out += weight * np.hypot((column - there_column) * width, (row - there_row) * height)
        out = -out
        scaled: NDArray[np.float64] = (out - out.min()) / (out.max() - out.min() + 1e-6)
        return scaled

    def _packing(self, current: int | None) -> NDArray[np.float64]:
        columns, rows = self._grid
        out = np.zeros((rows, columns))
        if current is None:
            return out.ravel()
        size = self.plc.get_node_width_height(current)
        wide, high = (math.ceil(s * n / c) for s, n, c in zip(size, self._grid, self._canvas, strict=True))
        for number in np.flatnonzero(self.hard).tolist():
            other = self.macros[number]
            same = all(
                round(a, 4) == round(b, 4) for a, b in zip(self.plc.get_node_width_height(other), size, strict=True)
            )
            cell = self.plc.get_grid_cell_of_node(other)
            if not same or cell < 0:
                continue
            row, column = divmod(cell, columns)
            for i in range(-5, 6):
                for j in range(abs(i) - 5, 6 - abs(i)):
                    r, c = row + i * high, column + j * wide
                    if (i or j) and 0 <= r < rows and 0 <= c < columns:
                        out[r, c] += 1 / (abs(i) + abs(j))
        scaled: NDArray[np.float64] = out / (out.max() + 1e-6)
        return scaled.ravel()

    def _fill(self, values: NDArray[Any], kind: int) -> NDArray[Any]:
        return np.pad(values, (0, self._sizes[kind] - len(values))) if self.padded else values

    def _map(self, values: NDArray[Any]) -> NDArray[Any]:
        if not self.padded:
            return values
        (columns, rows), side = self._grid, self._sizes[2]
        low, left = (side - rows) // 2, (side - columns) // 2
        whole = np.zeros((side, side), dtype=values.dtype)
        whole[low : low + rows, left : left + columns] = values.reshape(rows, columns)
        return whole.ravel()
