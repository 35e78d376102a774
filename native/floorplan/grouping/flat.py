"""Reads a flat netlist with its placement into arrays."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from penstock.native._floorplan import BlockFileError
from penstock.native.floorplan.files import read_text
from penstock.native.floorplan.placement_cost import PlacementCost

if TYPE_CHECKING:
    import os

    from numpy.typing import NDArray

    from penstock.native.floorplan.placement_cost import BlockComments

PORT, MACRO, PIN, CELL = range(4)
_KINDS = {"PORT": PORT, "MACRO": MACRO, "MACRO_PIN": PIN, "STDCELL": CELL}
MOST_SINKS = 500
"""A net with more sinks is left out, as in the published grouping: a clock ties together what does not belong so."""


@dataclass(frozen=True, slots=True)
class FlatBlock:
    """A netlist with standard cells, placed. Every array has one entry a node; lengths are in um."""

    plc: PlacementCost
    """The evaluator of the flat netlist, with the placement's settings and positions."""
    settings: BlockComments
    """Those of the placement's header, or else of the netlist's comments."""
    kinds: NDArray[np.int8]
    positions: NDArray[np.float64]
    """[nodes, 2]; nan where a node is not placed."""
    areas: NDArray[np.float64]
    """0 of ports and pins."""
    macros: NDArray[np.int64]
    """The macro of a pin, -1 of other nodes."""
    weights: NDArray[np.float64]
    """The weight of the net that a node drives."""
    first_sink: NDArray[np.int64]
    """[nodes + 1]; node i drives `sinks[first_sink[i]:first_sink[i + 1]]`, each once."""
    sinks: NDArray[np.int64]

    def cells(self) -> NDArray[np.int64]:
        """Return the indices of the standard cells."""
        return np.flatnonzero(self.kinds == CELL)

    def drivers(self) -> NDArray[np.int64]:
        """Return the driver of each entry of `sinks`."""
        return np.repeat(np.arange(len(self.kinds)), np.diff(self.first_sink))

    def fan_ins(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return `first` and `found`: `found[first[i]:first[i + 1]]` drive node i, ascending."""
        order = np.argsort(self.sinks, kind="stable")
        counts = np.bincount(self.sinks, minlength=len(self.kinds))
        return np.concatenate([[0], np.cumsum(counts)]), self.drivers()[order]


class _Row(NamedTuple):
    """A line of a placement."""

    line: int
    node: int
    x: float
    y: float
    orientation: str
    fixed: bool


def read_flat(netlist: str | os.PathLike[str], placement: str | os.PathLike[str]) -> FlatBlock:
    """Read a flat netlist, and settings and positions from a placement.

    The placement is one of the netlist itself, or of a netlist that was clustered from it: of this the ports and the
    hard macros are taken.

    Raises:
        BlockFileError: A file cannot be read, they do not belong together, or there is nothing to be grouped.
    """
    plc = PlacementCost(netlist)
    count = plc.get_node_count()
    kinds = np.array([_KINDS[plc.get_node_type(i)] for i in range(count)], dtype=np.int8)
    soft = plc.get_soft_macros_count()
    if soft:
        raise BlockFileError(
            f"{netlist}: found {soft} soft macros (names that begin with Grp) and {plc.get_stdcells_count()} standard "
            "cells, expected a netlist before clustering; this one can be placed as it is"
        )
    if not (kinds == CELL).any():
        raise BlockFileError(
            f"{netlist}: found {count} nodes, none of them a standard cell, expected a flat netlist; there is nothing "
            "to be grouped, and the netlist can be placed as it is"
        )
    plc.set_canvas_boundary_check(check=False)
    settings: BlockComments = {**plc.netlist_comments(), **plc.header_comments(placement)}
    plc.apply_comments(settings)
    _place(plc, kinds, placement, netlist)
    placed = np.array([plc.is_node_placed(i) for i in range(count)])
    unplaced = int((~placed[kinds == CELL]).sum())
    if unplaced:
        raise BlockFileError(
            f"{netlist}: found {unplaced} standard cells without a position, expected x and y of each, or its line in "
            f"{placement}; place them first, coarsely is enough"
        )
    positions = np.array(plc.get_node_locations(range(count)))
    positions[~placed] = np.nan
    sides = np.array([plc.get_node_width_height(i) for i in range(count)])
    first_sink, sinks = _nets(plc, kinds)
    return FlatBlock(
        plc=plc,
        settings=settings,
        kinds=kinds,
        positions=positions,
        areas=np.where((kinds == CELL) | (kinds == MACRO), sides.prod(axis=1), 0.0),
        macros=np.array([plc.get_ref_node_id(i) for i in range(count)], dtype=np.int64),
        weights=np.array([plc.get_node_weight(i) for i in range(count)]),
        first_sink=first_sink,
        sinks=sinks,
    )


def _nets(plc: PlacementCost, kinds: NDArray[np.int8]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the sinks of each node, each sink once, without nets of too many sinks."""
    driven = []
    for node, kind in enumerate(kinds.tolist()):
        sinks = [] if kind == MACRO else list(dict.fromkeys(plc.get_fan_outs_of_node(node)))
        driven.append(sinks if len(sinks) <= MOST_SINKS else [])
    first = np.concatenate([[0], np.cumsum([len(sinks) for sinks in driven])])
    return first.astype(np.int64), np.fromiter(chain.from_iterable(driven), dtype=np.int64, count=int(first[-1]))


def _place(
    plc: PlacementCost,
    kinds: NDArray[np.int8],
    placement: str | os.PathLike[str],
    netlist: str | os.PathLike[str],
) -> None:
    rows = _rows(placement)
    kept = np.flatnonzero(kinds != CELL)
    if all(row.node < len(kinds) and _fits(row, kinds[row.node]) for row in rows):
        plc.restore_placement(placement)
        return
    # Clustering keeps the order of all nodes but standard cells, and puts the clusters behind them.
    for row in rows:
        if not (row.orientation != "-" if row.node >= len(kept) else _fits(row, kinds[kept[row.node]])):
            raise BlockFileError(
                f"{placement}:{row.line}: found node {row.node} with the orientation {row.orientation!r}, expected a "
                f"placement of {netlist} or of a netlist that was clustered from it; give one of the two"
            )
    for row in rows:
        if row.node < len(kept):
            node = int(kept[row.node])
            plc.update_node_coords(node, row.x, row.y)
            if kinds[node] == MACRO:
                plc.update_macro_orientation(node, row.orientation)
            if row.fixed:
                plc.fix_node_coord(node)


def _fits(row: _Row, kind: int) -> bool:
    return kind != PIN and (row.orientation != "-") == (kind == MACRO)


def _rows(placement: str | os.PathLike[str]) -> list[_Row]:
    rows = []
    for number, line in enumerate(read_text(placement).splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        try:
            node, x, y, orientation, fixed = words
            rows.append(_Row(number, int(node), float(x), float(y), orientation, fixed == "1"))
        except ValueError:
            raise BlockFileError(
                f"{placement}:{number}: found {line[:60]!r}, expected five values: index x y orientation fixed"
            ) from None
        if rows[-1].node < 0:
            raise BlockFileError(f"{placement}:{number}: found node {node}, expected an index of at least 0")
    return rows
