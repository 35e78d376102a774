"""Gradients of a minibatch as sums over fixed row blocks in a fixed tree, so that who computes a block can't matter.

On a CPU that is not the only one, a second thread of this process takes some blocks of a loss that allows it, or some
losses: the same numbers sooner.
"""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import Tensor

    from tasks.algorithm import Loss
    from tasks.specs import Batch, State

T = TypeVar("T")

Gradient: TypeAlias = "tuple[torch.Tensor, dict[str, torch.Tensor]]"
"""What `minibatch_gradient` returns."""


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
    starts = range(0, own, block_rows)
    blocks = [partial(_block, loss, state, rows, stats, count, noise, start, start + block_rows) for start in starts]
    found = _taken(blocks, group.flat.device) if loss.alone else [block() for block in blocks]
    gradients, outputs = [gradient for gradient, _ in found], [of_block for _, of_block in found]
    merged = {name: torch.cat([piece[name] for piece in outputs]) for name in outputs[0]} if outputs[1:] else outputs[0]
    return sum_in_tree(gradients), merged


def _block(
    loss: Loss,
    state: State,
    rows: Batch,
    stats: Mapping[str, float],
    count: int,
    noise: Tensor | None,
    start: int,
    stop: int,
) -> Gradient:
    whole = not start and stop >= len(next(iter(rows.values())))
    block = rows if whole else {name: rows[name][start:stop] for name in rows}
    part = noise if noise is None or whole else noise[start:stop]
    scalar, outputs = loss.function(state.params, state.targets, block, part, stats, count)
    parts = torch.autograd.grad(scalar, state.params[loss.group].leaves)
    return torch.cat([part.reshape(-1) for part in parts]), outputs


def each_gradient(
    losses: Sequence[Loss], gradient_of: Callable[[int, Loss], Gradient], device: torch.device
) -> Iterator[tuple[Loss, Gradient]]:
    """The gradient of every loss of a minibatch, in order; between two, the caller updates the state.

    Where losses are all alone, so that no update matters to the next, all gradients are taken first: the same numbers,
    which another thread has sooner where there are a second CPU and no accelerator (whose queue is one anyway).

    Args:
        losses: of the algorithm.
        gradient_of: takes one, given its number, as `minibatch_gradient` does.
        device: of the parameters.
    """
    if len(losses) < 2 or not all(loss.alone for loss in losses):
        for number, loss in enumerate(losses):
            yield loss, gradient_of(number, loss)
        return
    found = _taken([partial(gradient_of, number, loss) for number, loss in enumerate(losses)], device)
    yield from zip(losses, found, strict=True)


def _taken(calls: Sequence[Callable[[], T]], device: torch.device) -> list[T]:
    """What calls return, in order. An accelerator has a queue, so that a second thread would gain nothing there."""
    if len(calls) < 2 or device.type != "cpu" or _cpus() < 2:
        return [call() for call in calls]
    found: dict[int, T] = {}
    waiting = deque(enumerate(calls))

    def take() -> None:
        while waiting:
            try:
                number, call = waiting.popleft()
            except IndexError:
                return
            found[number] = call()

    # The thread that helps may be busy, or be the one that calls: then nothing is left for it to do, nor to wait for.
    beside = _helper(torch.get_num_threads()).submit(take)
    try:
        take()
    finally:
        waiting.clear()
        if not beside.cancel():
            beside.result()
    return [found[number] for number in range(len(calls))]


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@lru_cache(maxsize=1)
def _helper(threads: int) -> ThreadPoolExecutor:
    """One more thread for this process; torch's number of threads is a thread's own."""
    return ThreadPoolExecutor(1, "gradients", torch.set_num_threads, (threads,))


def sum_in_tree(vectors: list[Tensor]) -> Tensor:
    """Sum neighbours, then neighbours of the sums: the order of additions depends on the number of vectors alone."""
    while len(vectors) > 1:
        pairs = [first + second for first, second in zip(vectors[::2], vectors[1::2], strict=False)]
        vectors = pairs + vectors[len(pairs) * 2 :]
    return vectors[0]
