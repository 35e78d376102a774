"""Breaks up groups that reach far across the canvas, and merges small ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from penstock.native.floorplan.grouping.flat import CELL

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.native.floorplan.grouping.flat import FlatBlock


def centres(block: FlatBlock, groups: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the centre of mass of each group's standard cells, [groups, 2]; nan of a group without any.

    Cells without an area count alike where a group has no others.
    """
    cells = np.flatnonzero((block.kinds == CELL) & (groups >= 0))
    count = int(groups.max()) + 1
    areas = np.bincount(groups[cells], weights=block.areas[cells], minlength=count)
    masses = np.where(areas[groups[cells]] > 0, block.areas[cells], 1.0)
    sums = [
        np.bincount(groups[cells], weights=masses * weights, minlength=count)
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
    """Return whether another pass may find more to merge."""
    middle = centres(block, groups)
    ones, others, nets = _shared_nets(block, groups)
    sizes = np.bincount(groups[groups >= 0])
    first = np.searchsorted(ones, np.arange(len(sizes) + 1))
    again = False
    for group in np.flatnonzero((sizes > 0) & (sizes <= few)).tolist():
        size = int(sizes[group])
        if size > few:  # it was joined in this pass
            continue
        tied = slice(first[group], first[group + 1])
        # A group without cells has no centre, and nothing is near it.
        near = np.abs(middle[others[tied]] - middle[group]).sum(axis=1) <= distance
        shared = nets[tied] * near
        if not shared.any():
            continue
        found = int(others[tied][np.argmax(shared)])
        groups[groups == group] = found
        sizes[found] += size
        sizes[group] = 0
        again = again or bool(sizes[found] <= few)
    return again


def _shared_nets(
    block: FlatBlock, groups: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return each two groups that share nets, in both orders, and the number of nets; sorted by the two."""
    count = int(groups.max()) + 1
    drivers = block.drivers()
    net = np.concatenate([np.arange(len(groups)), drivers])
    of_net = np.concatenate([groups, groups[block.sinks]])
    both = (of_net >= 0) & (groups[net] >= 0)
    net, of_net = np.divmod(np.unique(net[both] * count + of_net[both]), count)
    starts = np.flatnonzero(np.diff(net, prepend=-1))
    sizes = np.diff(starts, append=len(net))
    pairs = [np.zeros(0, dtype=np.int64)]
    for size in np.unique(sizes[sizes > 1]):
        together = of_net[starts[sizes == size][:, None] + np.arange(size)]
        pairs.append((together[:, :, None] * count + together[:, None, :]).reshape(-1))
    found, nets = np.unique(np.concatenate(pairs), return_counts=True)
    ones, others = np.divmod(found, count)
    apart = ones != others
    return ones[apart], others[apart], nets[apart]


def _nodes_of(groups: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return the nodes of each group, ascending."""
    grouped = np.flatnonzero(groups >= 0)
    order = grouped[np.argsort(groups[grouped], kind="stable")]
    return np.split(order, np.cumsum(np.bincount(groups[grouped]))[:-1])
