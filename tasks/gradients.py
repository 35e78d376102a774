"""Gradients of a minibatch as sums over fixed row blocks in a fixed tree, so that who computes a block can't matter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from tasks.algorithm import Loss
    from tasks.specs import Batch, State


def minibatch_gradient(
    loss: Loss,
    state: State,
    rows: Batch,
    stats: Mapping[str, float],
    block_rows: int,
    count: int | None = None,
    noise: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Differentiate a loss over a minibatch.

    Args:
        loss: what to differentiate, and by which group.
        state: parameters and targets.
        rows: columns `[n, ...]` of the minibatch, or of a learner's share of it; there may be none.
        stats: the round's global sums.
        block_rows: rows whose gradient is taken at once.
        count: rows of the whole minibatch; None if these are all.
        noise: `[n, ...]`, if the loss needs some.

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
        part = noise if noise is None or own <= block_rows else noise[start : start + block_rows]
        scalar, row_outputs = loss.function(state.params, state.targets, block, part, stats, count)
        gradients.append(torch.cat([piece.reshape(-1) for piece in torch.autograd.grad(scalar, group.leaves)]))
        outputs.append(row_outputs)
    merged = {name: torch.cat([piece[name] for piece in outputs]) for name in outputs[0]} if outputs[1:] else outputs[0]
    return sum_in_tree(gradients), merged


def sum_in_tree(vectors: list[Tensor]) -> Tensor:
    """Sum neighbours, then neighbours of the sums: the order of additions depends on the number of vectors alone."""
    while len(vectors) > 1:
        pairs = [first + second for first, second in zip(vectors[::2], vectors[1::2], strict=False)]
        vectors = pairs + vectors[len(pairs) * 2 :]
    return vectors[0]
