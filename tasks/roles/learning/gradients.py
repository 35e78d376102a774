"""Gradients of a minibatch: sums over fixed row blocks in a fixed tree, the same whichever thread computes a block.

Where there is a second CPU, a second thread of this process computes some blocks of an independent loss, or some
losses: the same numbers sooner.
"""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import torch

from penstock.tasks.model.nn import kernels
from penstock.tasks.specs import LossInputs
from penstock.tasks.tape.capture import Capture, capturing, current_capture
from penstock.tasks.tape.recording import Tape, recording
from penstock.tasks.tape.totals import RoundTotals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import Tensor

    from penstock.tasks.model.algorithms.contract import Loss
    from penstock.tasks.specs import Batch, State
    from penstock.tasks.tape.capture import CapturedLoss

T = TypeVar("T")

_THREAD_PRODUCTS = 8_000_000
"""Rows times parameters of a gradient from which a second thread gains: between 4.6 million, where PPO's rounds on
CartPole took 9 % longer with it on two cores, and 17 million, where they took 12 to 30 % less."""

_MOST_PROGRAMS = 64
"""Captured losses of a group: with a quorum, rounds have many numbers of rows, and each program has its own memory."""

Gradient: TypeAlias = "tuple[torch.Tensor, dict[str, torch.Tensor]]"
"""A gradient, and the loss's row outputs."""


def minibatch_gradient(
    loss: Loss,
    state: State,
    rows: Batch,
    stats: Mapping[str, float | Tensor],
    block_rows: int,
    count: int | None = None,
    noise: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Differentiate a loss over a minibatch.

    Args:
        loss: the function to differentiate, and the group to differentiate it with respect to.
        state: parameters and targets.
        rows: columns `[n, ...]` of the minibatch, or of a learner's share of it; there may be none.
        stats: the round's global sums.
        block_rows: rows whose gradient is taken at once.
        count: rows of the whole minibatch; None if these are all.
        noise: `[n, ...]`, if the loss needs some.

    Returns:
        The gradient `[P]`, in the order of the group's vector, and row outputs `[n]` by name. Without rows: zeros, and
        no outputs.
    """
    group = state.params[loss.group]
    own = next(iter(rows.values())).shape[0]
    if not own:
        return torch.zeros_like(group.flat), {}
    count = own if count is None else count
    whole = LossInputs(rows, count, stats, state.targets, noise)
    if own <= block_rows:
        return _of_one_block(loss, state, whole)
    starts = range(0, own, block_rows)
    blocks = [partial(_block, loss, state, whole, start, start + block_rows) for start in starts]
    in_parallel = loss.independent and is_worth_a_thread(group.flat, min(own, block_rows))
    found = _taken(blocks) if in_parallel else [block() for block in blocks]
    gradients, outputs = [gradient for gradient, _ in found], [of_block for _, of_block in found]
    merged = {name: torch.cat([piece[name] for piece in outputs]) for name in outputs[0]} if outputs[1:] else outputs[0]
    return sum_in_tree(gradients), merged


def _of_one_block(loss: Loss, state: State, inputs: LossInputs) -> Gradient:
    """Differentiate a loss over rows at once: as it was captured from rows of the same number and types, if it was."""
    group, rows, totals, noise = state.params[loss.group], inputs.rows, inputs.stats, inputs.noise
    level = kernels.level_number(group.flat)
    if level is None or not isinstance(totals, RoundTotals):
        return _differentiated(loss, state, inputs)
    key = (loss.name, level, inputs.count, *((name, column.dtype, column.nbytes) for name, column in rows.items()))
    captured: CapturedLoss | None = group.programs.get(key)
    contiguous = all(column.is_contiguous() for column in rows.values()) and (noise is None or noise.is_contiguous())
    if captured is not None and contiguous and captured.holds(_fixed(state)):
        return captured.run(group.flat.numel(), totals.vector, noise, rows)
    if key in group.programs and (captured is None or not captured.runs):
        # What changes before it is used once costs more to capture than it saves.
        group.programs[key] = None
        return _differentiated(loss, state, inputs)
    # A loss that changes its rows in place can't be captured, and is then called again.
    copies = {name: column.clone() for name, column in rows.items()}
    capture = Capture(state.targets.values())
    with capturing(capture):
        gradient, outputs = _differentiated(loss, state, replace(inputs, rows=copies))
    given = (totals.vector, noise, *copies.values())
    if len(group.programs) >= _MOST_PROGRAMS:
        group.programs.clear()
    finished = group.programs[key] = capture.finish(level, gradient, outputs, given, _fixed(state))
    # A capture does not compute the loss's own value, which one that can't be captured may have made use of.
    return (gradient, outputs) if finished is not None else _differentiated(loss, state, inputs)


def _fixed(state: State) -> list[Tensor]:
    """Return what a loss reads besides its rows, where it is now."""
    return [*(group.flat for group in state.params.values()), *state.targets.values()]


def _block(loss: Loss, state: State, whole: LossInputs, start: int, stop: int) -> Gradient:
    """Differentiate a loss over the rows from `start` to `stop` of what it is given."""
    rows = {name: column[start:stop] for name, column in whole.rows.items()}
    noise = None if whole.noise is None else whole.noise[start:stop]
    return _differentiated(loss, state, replace(whole, rows=rows, noise=noise))


def _differentiated(loss: Loss, state: State, inputs: LossInputs) -> Gradient:
    """Call a loss, and go back through what it has computed."""
    tape = Tape(state.params[loss.group])
    try:
        with recording(tape):
            scalar, outputs = loss.function(state.params, inputs)
        return tape.gradient(scalar), outputs
    except Exception:
        if not len(tape):
            raise
        if (capture := current_capture()) is not None:
            capture.fail("kernels can't take its gradient")
    # A loss that takes gradients itself, or changes a network's output in place, is computed by torch alone. Whatever
    # else was wrong with it fails again.
    tape = Tape(state.params[loss.group])
    with recording(None):
        scalar, outputs = loss.function(state.params, inputs)
    return tape.gradient(scalar), outputs


def each_gradient(
    losses: Sequence[Loss], gradient_of: Callable[[int, Loss], Gradient], in_parallel: bool
) -> Iterator[tuple[Loss, Gradient]]:
    """Yield the gradient of every loss of a minibatch, in order; between two, the caller updates the state.

    If all losses are independent, so that no update affects the next gradient, all gradients are computed first: the
    same numbers, sooner with a second thread on a second CPU (an accelerator has one queue anyway).

    Args:
        losses: of the algorithm.
        gradient_of: computes the gradient of the loss with a number, as `minibatch_gradient` does.
        in_parallel: a second thread is worth it.
    """
    if len(losses) < 2 or not all(loss.independent for loss in losses):
        for number, loss in enumerate(losses):
            yield loss, gradient_of(number, loss)
        return
    calls = [partial(gradient_of, number, loss) for number, loss in enumerate(losses)]
    found = _taken(calls) if in_parallel else [call() for call in calls]
    yield from zip(losses, found, strict=True)


def is_worth_a_thread(parameters: Tensor, rows: int) -> bool:
    """Return whether a second thread gains more than it costs: where it has a CPU of its own, and enough to multiply.

    Both threads take turns in Python. With little to multiply they wait for each other instead of computing, and two
    can need more than twice as long as one. An accelerator has one queue anyway.
    """
    return parameters.is_cpu and rows * parameters.numel() >= _THREAD_PRODUCTS and len(os.sched_getaffinity(0)) > 1


def _taken(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Return the results of calls, in order, of which a second thread takes some."""
    if len(calls) < 2:
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

    # The helper thread may be busy, or be the calling one: then all calls are done before it starts, and are cancelled.
    helped = _helper(torch.get_num_threads()).submit(take)
    try:
        take()
    finally:
        waiting.clear()
        if not helped.cancel():
            helped.result()
    return [found[number] for number in range(len(calls))]


@lru_cache(maxsize=1)
def _helper(threads: int) -> ThreadPoolExecutor:
    """Return the process's helper thread; torch's number of threads is set per thread."""
    return ThreadPoolExecutor(1, "gradients", torch.set_num_threads, (threads,))


def sum_in_tree(vectors: list[Tensor]) -> Tensor:
    """Sum neighbours, then neighbours of the sums: the order of additions depends on the number of vectors alone."""
    while len(vectors) > 1:
        pairs = [first + second for first, second in zip(vectors[::2], vectors[1::2], strict=False)]
        vectors = pairs + vectors[len(pairs) * 2 :]
    return vectors[0]
