"""Writes the clustered netlist and its placement."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from penstock.native.floorplan.files import node_text, quoted, write_text
from penstock.native.floorplan.grouping.flat import CELL, MACRO, PIN
from penstock.native.floorplan.grouping.spread import centres
from penstock.native.floorplan.placement_cost import PlacementCost

if TYPE_CHECKING:
    import os

    from numpy.typing import NDArray

    from penstock.native.floorplan.grouping.flat import FlatBlock

    _Attributes = dict[str, str | float]


def write_clustered(
    block: FlatBlock, groups: NDArray[np.int64], utilisation: float, folder: str | os.PathLike[str], comment: str
) -> tuple[Path, Path]:
    """Write `netlist.pb.txt.gz` and `initial.plc` into a folder, which is created if missing.

    All nodes but standard cells stay, in their order. Behind them each group of cells is a soft macro with one pin for
    what drives it, and a pin for each net that leaves it; its nets to one node alone are one net of their weights' sum.

    Args:
        block: The flat block.
        groups: The group of each standard cell, from 0, each with one cell at least; other nodes' do not matter.
        utilisation: Share of a soft macro's area that is its cells'.
        folder: For the two files.
        comment: A comment for the placement's header.
    """
    middle = centres(block, np.where(block.kinds == CELL, groups, -1))
    paths = Path(folder) / "netlist.pb.txt.gz", Path(folder) / "initial.plc"
    Path(folder).mkdir(parents=True, exist_ok=True)
    write_text(paths[0], _netlist(block, groups, utilisation, middle))
    _write_placement(block, middle, paths, comment)
    return paths


def _netlist(block: FlatBlock, groups: NDArray[np.int64], utilisation: float, middle: NDArray[np.float64]) -> str:
    nets = _nets_between(block, groups)
    kept = np.flatnonzero(block.kinds != CELL).tolist()
    names = {node: block.plc.get_node_name(node) for node in kept}
    names |= {len(groups) + group: f"Grp_{group}/Pinput" for group in range(len(middle))}
    texts = [node_text("__metadata__", [], {"soft_macro_area_bloating_ratio": 1.0 / utilisation})]
    # What the nodes that stay are is taken from the evaluator's own text; only what they drive is new.
    written = block.plc.netlist_text().split("node {\n")[1:]
    for node in kept:
        lines = [line for line in written[node].splitlines() if not line.startswith("  input: ")]
        sinks = [f"  input: {quoted(names[sink])}" for sink in nets.get(node, [])]
        texts.append("\n".join(["node {", lines[0], *sinks, *lines[1:], ""]))
    cells = block.cells()
    areas = np.bincount(groups[cells], weights=block.areas[cells]) / utilisation
    width = block.plc.get_canvas_width_height()[0] / block.plc.get_grid_num_columns_rows()[0]
    order = cells[np.argsort(groups[cells], kind="stable")]
    for group, members in enumerate(np.split(order, np.cumsum(np.bincount(groups[cells]))[:-1])):
        where: _Attributes = {"x": _single(middle[group, 0]), "y": _single(middle[group, 1])}
        sides: _Attributes = {"width": _single(width), "height": _single(areas[group] / width)}
        texts.append(node_text(f"Grp_{group}", [], {"type": "macro"} | sides | where))
        offset: _Attributes = {"x_offset": 0.0, "y_offset": 0.0}
        pin: _Attributes = {"type": "macro_pin", "macro_name": f"Grp_{group}"} | offset | where
        single: dict[int, float] = {}
        several = 0
        for cell in members.tolist():
            ends, weight = nets.get(cell, []), float(block.weights[cell])
            if len(ends) == 1:
                single[ends[0]] = single.get(ends[0], 0.0) + weight
            elif ends:
                name = f"Grp_{group}/Poutput_multi_{several}"
                texts.append(node_text(name, (names[end] for end in ends), _weighed(pin, weight)))
                several += 1
        for number, (end, weight) in enumerate(sorted(single.items())):
            texts.append(node_text(f"Grp_{group}/Poutput_single_{number}", [names[end]], _weighed(pin, weight)))
        texts.append(node_text(f"Grp_{group}/Pinput", [], pin))
    return "".join(texts)


def _nets_between(block: FlatBlock, groups: NDArray[np.int64]) -> dict[int, list[int]]:
    """Return what each driver's net ties it to: nodes that stay, and groups, counted from the number of nodes on.

    A standard cell's net within its own group is none.
    """
    drivers = block.drivers()
    ends = np.where(block.kinds == CELL, len(groups) + groups, np.arange(len(groups)))
    leaves = (block.kinds[drivers] != CELL) | (ends[block.sinks] != ends[drivers])
    pairs = np.unique(np.stack([drivers[leaves], ends[block.sinks[leaves]]], axis=1), axis=0)
    nets: dict[int, list[int]] = {}
    for driver, end in pairs.tolist():
        nets.setdefault(driver, []).append(end)
    return nets


def _weighed(pin: _Attributes, weight: float) -> _Attributes:
    return pin if weight == 1.0 else {**pin, "weight": weight}


def _single(value: float) -> float:
    """Return the shortest number that is the same float32, as the reader makes of it."""
    return float(str(np.float32(value)))


def _write_placement(block: FlatBlock, middle: NDArray[np.float64], paths: tuple[Path, Path], comment: str) -> None:
    plc = PlacementCost(paths[0])
    plc.source_filename = paths[0].name  # so that the bytes do not depend on the folder
    plc.set_canvas_boundary_check(check=False)
    plc.apply_comments(block.settings)
    kept = np.flatnonzero(block.kinds != CELL).tolist()
    for node, was in enumerate(kept):
        if block.kinds[was] == PIN:
            continue
        if np.isnan(block.positions[was, 0]):
            plc.unplace_node(node)
            continue
        plc.update_node_coords(node, *block.positions[was].tolist())
        if block.kinds[was] == MACRO:
            plc.update_macro_orientation(node, block.plc.get_macro_orientation(was))
        if block.plc.is_node_fixed(was):
            plc.fix_node_coord(node)
    soft = [macro for macro in plc.get_macro_indices() if plc.is_node_soft_macro(macro)]
    for macro, (x, y) in zip(soft, middle.tolist(), strict=True):
        plc.update_node_coords(macro, x, y)
    plc.save_placement(paths[1], comment)
