"""Breaks up groups that reach far across the canvas, and merges small ones."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from penstock.native.floorplan.grouping.flat import CELL

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.native.floorplan.grouping.flat import FlatBlock


def centres(block: FlatBlock, groups: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the centre of mass of each group's standard cells, [groups, 2]; nan of a group without any."""
    cells = np.flatnonzero((block.kinds == CELL) & (groups >= 0))
    count = int(groups.max()) + 1
    sums = [
        np.bincount(groups[cells], weights=block.areas[cells] * weights, minlength=count)
        for weights in (np.ones(len(cells)), *block.positions[cells].T)
    ]
    with np.errstate(invalid="ignore"):
        return np.stack([sums[1] / sums[0], sums[2] / sums[0]], axis=1)


def break_up(block: FlatBlock, groups: NDArray[np.int64], length: float) -> None:
    """Break up each group whose box of nodes is wider or higher than a length, in place.

    Squares of that length are laid out around its centre, along the sides that are too long; the nodes of each square
    but the middle one are a new group.
    """
    middle = centres(block, groups)
    for group, nodes in enumerate(_nodes_of(groups)):
        positions = block.positions[nodes]
        known = ~np.isnan(positions[:, 0])
        if not known.any() or np.isnan(middle[group, 0]):
            continue
        sides = positions[known].max(axis=0) - positions[known].min(axis=0)
        if not (sides > length).any():
            continue
        away = np.where(known[:, None], positions - middle[group], 0.0) / length
        squares = (np.trunc(away + np.copysign(0.5, away)) * (sides >= length)).astype(np.int64)
        outer = squares.any(axis=1)
        if not outer.any():
            continue
        _, first, square = np.unique(squares[outer], axis=0, return_index=True, return_inverse=True)
        # New groups are numbered by their first nodes.
        rank = np.argsort(np.argsort(first))
        groups[nodes[outer]] = groups.max() + 1 + rank[square.reshape(-1)]


def merge(block: FlatBlock, groups: NDArray[np.int64], few: int, distance: float) -> None:
    """Merge each group of at most `few` nodes with the near group that it shares most nets with, in place.

    Near is a Manhattan distance of the centres of at most `distance`. A group that finds none stays as it is.
    """
    while _merge_once(block, groups, few, distance):
        pass


def _merge_once(block: FlatBlock, groups: NDArray[np.int64], few: int, distance: float) -> bool:
    """Returns whether another pass may find more to merge."""
    middle = centres(block, groups)
    shared = _shared_nets(block, groups)
    sizes = np.bincount(groups[groups >= 0])
    again = False
    for group in np.flatnonzero(sizes <= few).tolist():
        size = int(sizes[group])
        if size == 0 or size > few or np.isnan(middle[group, 0]):
            continue
        found, most = -1, 0
        for other, nets in sorted(shared[group].items()):
            near = np.abs(middle[other] - middle[group]).sum() <= distance
            if near and nets > most:
                found, most = other, nets
        if found >= 0:
            groups[groups == group] = found
            sizes[found] += size
            sizes[group] = 0
            again = again or bool(sizes[found] <= few)
    return again


def _shared_nets(block: FlatBlock, groups: NDArray[np.int64]) -> dict[int, Counter[int]]:
    """Return how many nets each two groups share."""
    drivers = block.drivers()
    pairs = np.concatenate(
        [
            np.stack([drivers, groups[drivers]], axis=1),
            np.stack([drivers, groups[block.sinks]], axis=1),
        ]
    )
    pairs = np.unique(pairs[(pairs[:, 1] >= 0) & (groups[pairs[:, 0]] >= 0)], axis=0)
    shared: dict[int, Counter[int]] = {int(group): Counter() for group in np.unique(groups[groups >= 0])}
    for net in np.split(pairs[:, 1], np.flatnonzero(np.diff(pairs[:, 0])) + 1):
        if len(net) > 1:
            of_net = net.tolist()
            for group in of_net:
                shared[group].update(of_net)
    for group, others in shared.items():
        del others[group]
    return shared


def _nodes_of(groups: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return the nodes of each group, ascending."""
    grouped = np.flatnonzero(groups >= 0)
    order = grouped[np.argsort(groups[grouped], kind="stable")]
    return np.split(order, np.cumsum(np.bincount(groups[grouped]))[:-1])
