"""Gradients of a minibatch as sums over fixed row blocks in a fixed tree, so that who computes a block can't matter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Iterable, Iterator, Mapping

    from torch import Tensor

    from tasks.algorithm import Loss
    from tasks.specs import Batch, State


def minibatch_gradient(
    loss: Loss, state: State, rows: Batch, stats: Mapping[str, float], block_rows: int, count: int | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Differentiate a loss over a minibatch.

    Args:
        loss: what to differentiate, and by which group.
        state: parameters and targets.
        rows: columns `[n, ...]` of the minibatch, or of a learner's share of it; there may be none.
        stats: the round's global sums.
        block_rows: rows whose gradient is taken at once.
        count: rows of the whole minibatch; None if these are all.

    Returns:
        The gradient `[P]`, in the order of the group's vector, and row outputs `[n]` by name. Of no rows: zeros, and no
        outputs.
    """
    group = state.params[loss.group]
    own = next(iter(rows.values())).shape[0]
    if not own:
        return torch.zeros_like(group.flat), {}
    count = own if count is None else count
    gradients, outputs = [], []
    for start in range(0, own, block_rows):
        block = rows if own <= block_rows else {name: rows[name][start : start + block_rows] for name in rows}
        scalar, row_outputs = loss.function(state.params, state.targets, block, None, stats, count)
        gradients.append(torch.cat([part.reshape(-1) for part in torch.autograd.grad(scalar, group.leaves)]))
        outputs.append(row_outputs)
    merged = {name: torch.cat([part[name] for part in outputs]) for name in outputs[0]} if outputs[1:] else outputs[0]
    return sum_in_tree(gradients), merged


def sum_in_tree(vectors: list[Tensor]) -> Tensor:
    """Sum neighbours, then neighbours of the sums: the order of additions depends on the number of vectors alone."""
    while len(vectors) > 1:
        pairs = [first + second for first, second in zip(vectors[::2], vectors[1::2], strict=False)]
        vectors = pairs + vectors[len(pairs) * 2 :]
    return vectors[0]


def take_share(plan: Iterable[Tensor], own: range, counts: deque[int]) -> Iterator[Tensor]:
    """Of each planned minibatch the rows that are one's own, numbered from 0, in the plan's order.

    Args:
        plan: global row ids, one array a minibatch.
        own: global ids of the rows that one has.
        counts: gets the size of every whole minibatch.
    """
    for index in plan:
        counts.append(len(index))
        yield index[(index >= own.start) & (index < own.stop)] - own.start


def gather_minibatches(batch: Batch, plan: Iterable[Tensor], gather_rows: int) -> Iterator[Batch]:
    """The planned minibatches as rows; many small ones are gathered at once, which only moves the same bytes sooner."""
    waiting: list[Tensor] = []
    for index in plan:
        waiting.append(index)
        if sum(map(len, waiting)) >= gather_rows:
            yield from _gather(batch, waiting)
            waiting = []
    if waiting:
        yield from _gather(batch, waiting)


def _gather(batch: Batch, indices: list[Tensor]) -> Iterator[Batch]:
    device = next(iter(batch.values())).device
    together = torch.cat(indices).to(device)
    sizes = [len(index) for index in indices]
    columns = {name: torch.split(column.index_select(0, together), sizes) for name, column in batch.items()}
    for minibatch in zip(*columns.values(), strict=True):
        yield dict(zip(columns, minibatch, strict=True))
