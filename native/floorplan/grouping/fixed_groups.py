"""Groups that exist before partitioning: around each macro's pins, and around ports that are near each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from penstock.native.floorplan.grouping.flat import CELL, PIN, PORT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.native.floorplan.grouping.flat import FlatBlock

NO_GROUP = -1


def fixed_groups(block: FlatBlock) -> NDArray[np.int64]:
    """Return the group of each node, numbered from 0; -1 of nodes that belong to none yet.

    The pins of a macro are a group, and so are the ports of a side that are within a grid cell's length of the first of
    them. A group then takes the standard cells next to its pins and ports: those that they drive, and those that drive
    them. A cell that several groups reach belongs to that of the pin or port that comes first in the netlist.
    """
    groups = np.full(len(block.kinds), NO_GROUP, dtype=np.int64)
    pins = np.flatnonzero(block.kinds == PIN)
    _, groups[pins] = np.unique(block.macros[pins], return_inverse=True)
    _group_ports(block, groups)
    _take_neighbours(block, groups)
    return groups


def _group_ports(block: FlatBlock, groups: NDArray[np.int64]) -> None:
    """Give the placed ports their groups, side by side of the canvas."""
    width, height = block.plc.get_canvas_width_height()
    columns, rows = block.plc.get_grid_num_columns_rows()
    ports = np.flatnonzero((block.kinds == PORT) & ~np.isnan(block.positions[:, 0]))
    x, y = block.positions[ports].T
    # The canvas's diagonals part its sides.
    rising, falling = y > x * height / width, y > height - x * height / width
    tall, wide = height / rows, width / columns
    group = int(groups.max()) + 1
    for side, along, reach in (
        (rising & ~falling, y, tall),
        (~rising & falling, y, tall),
        (rising & falling, x, wide),
        (~rising & ~falling, x, wide),
    ):
        here = np.flatnonzero(side)
        here = here[np.argsort(along[here], kind="stable")]
        first = along[here[0]] if len(here) else 0.0
        for port in here.tolist():
            if along[port] - first > reach:
                group, first = group + 1, along[port]
            groups[ports[port]] = group
        group += int(len(here) > 0)


def _take_neighbours(block: FlatBlock, groups: NDArray[np.int64]) -> None:
    starts = np.flatnonzero(groups != NO_GROUP)
    first_driver, drivers = block.fan_ins()
    for node in starts.tolist():
        for first, found in ((block.first_sink, block.sinks), (first_driver, drivers)):
            near = found[first[node] : first[node + 1]]
            near = near[(groups[near] == NO_GROUP) & (block.kinds[near] == CELL)]
            groups[near] = groups[node]
