"""One round's update: minibatches planned over the rows, their gradients, and the optimizer's steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING

import torch

from penstock.storage.errors import ConfigError
from penstock.tasks.model.algorithms.contract import PRIORITY, SumsMinibatches, round_limit
from penstock.tasks.roles.learning.gradients import each_gradient, is_worth_a_thread, minibatch_gradient
from penstock.tasks.roles.learning.minibatches import gather_minibatches, loss_noise, rows_of, take_share
from penstock.tasks.roles.learning.window import RoundWindow
from penstock.tasks.seeds import Purpose, seed_of
from penstock.tasks.tape.totals import RoundTotals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch import Tensor

    from penstock.tasks.data.input.hand_over import ShardLater
    from penstock.tasks.model.algorithms.contract import Draw, Loss
    from penstock.tasks.roles.learning.feed import FeedRound
    from penstock.tasks.roles.learning.gradients import Gradient
    from penstock.tasks.roles.learning.minibatches import Share
    from penstock.tasks.roles.learning.window_rows import WindowRows
    from penstock.tasks.roles.reducing.reduction import Reduction
    from penstock.tasks.runtime.run_context import RunContext
    from penstock.tasks.specs import Batch, State


_GATHER_ROWS = 8192


@dataclass(slots=True)
class StageTally:
    """One learner's sums over the rounds of a stage; all of them follow from shards and parameters."""

    shards: list[ShardLater] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    outputs: dict[str, dict[int, tuple[float, int]]] = field(default_factory=dict)
    """By row output and round: the mean over rows, and the number of rows."""
    env_steps: int = 0
    """Stored steps that this learner has learned from."""
    update_rows: int = 0
    """Rows of all minibatches; a row counts once per epoch."""

    def add(self, taken: FeedRound) -> None:
        """Count a round; waits for its episodes, which may be on a device."""
        self.shards += taken.shards
        for describe in taken.describe:
            episodes = describe().episodes
            self.returns += episodes.return_.tolist()
            self.lengths += episodes.length.tolist()
        self.env_steps += len(taken.steps)

    def add_outputs(self, round_: int, outputs: Mapping[str, Sequence[Tensor]]) -> None:
        """Keep the mean of a round's row outputs, given those of its minibatches."""
        for name, parts in outputs.items():
            values = torch.cat([*parts])
            self.outputs.setdefault(name, {})[round_] = float(values.double().mean()), len(values)


def learn_batches(
    context: RunContext, state: State, round_: int, batches: Sequence[Batch], tally: StageTally, reduction: Reduction
) -> State:
    """Learn a round from its own rows alone, as an on-policy algorithm does; returns the state after it."""
    stats = round_stats(context, batches, reduction)
    own, row_count = reduction.share_of(row_count_of(batches))
    window, rows = RoundWindow.of_round(row_count, round_), together(batches)
    take, summed = partial(rows_of, rows), summed_columns(context, rows)
    return learn_minibatches(context, state, round_, window, own, take, stats, tally, reduction, summed)


def together(batches: Sequence[Batch]) -> Batch:
    """Return the rows of all batches, one after another."""
    first = batches[0]
    return first if len(batches) == 1 else {name: torch.cat([part[name] for part in batches]) for name in first}


def learn_window(
    context: RunContext,
    state: State,
    taken: FeedRound,
    window: RoundWindow,
    window_rows: WindowRows,
    tally: StageTally,
    reduction: Reduction,
) -> State:
    """Learn a round from a window of the newest rounds, as an off-policy algorithm does; returns the state after it."""
    stats = round_stats(context, taken.batches, reduction)
    own, _ = reduction.share_of(row_count_of(taken.batches))
    window.begin_round()
    window_rows.add(window.rounds, taken.shards, taken.batches)
    round_ = window.rounds[-1]
    return learn_minibatches(context, state, round_, window, own, window_rows.take, stats, tally, reduction)


def row_count_of(batches: Iterable[Batch]) -> int:
    """Return the number of rows of all batches."""
    return sum(len(next(iter(batch.values()))) for batch in batches)


@torch.no_grad()
def round_stats(context: RunContext, batches: Sequence[Batch], reduction: Reduction) -> dict[str, Tensor]:
    """Return the algorithm's statistics of a round, over the rows of all learners: float64 on the host."""
    sums = [context.algorithm.stats(batch) for batch in batches]
    return reduction.stats({name: torch.stack([part[name] for part in sums]).sum(0) for name in sums[0]})


def learn_minibatches(
    context: RunContext,
    state: State,
    round_: int,
    window: RoundWindow,
    own: range,
    take: Callable[[Tensor], Batch],
    stats: Mapping[str, Tensor],
    tally: StageTally,
    reduction: Reduction,
    summed: Batch | None = None,
) -> State:
    """Take the optimizer's steps of a round.

    Args:
        context: of the run.
        state: before the round; its parameters change in place.
        round_: counted over the whole run.
        window: the rounds whose rows are planned, with this round as the newest.
        own: this learner's rows of every round.
        take: returns this learner's rows `[n, ...]` by their numbers `[n]`.
        stats: statistics of the round, over all learners.
        tally: gets the outputs and the number of rows.
        reduction: adds up the gradients of all learners.
        summed: this learner's columns of which each minibatch has sums of its own, as `summed_columns`.
    """
    shares: Iterable[Share] = take_share(plan_round(context, round_, window), own, window.round_rows)
    of_round = {name: value.item() for name, value in stats.items() if not value.dim()}
    totals: Iterable[Mapping[str, float | Tensor]] = repeat(RoundTotals(of_round))
    if summed:
        shares = [*shares]
        sums = reduction.stats(sums_of_minibatches(context, summed, shares))
        found = zip(*(value.tolist() for value in sums.values()), strict=True)
        totals = (RoundTotals(of_round | dict(zip(sums, values, strict=True))) for values in found)
    state, outputs, rows = take_steps(context, state, round_, window, shares, take, totals, reduction)
    with torch.no_grad():
        state = reduction.after_round(state, stats)
    tally.update_rows += rows
    tally.add_outputs(round_, outputs)
    return state


def summed_columns(context: RunContext, rows: Batch) -> Batch:
    """Return the columns of which each minibatch has sums of its own; none where losses need the round's alone."""
    algorithm = context.algorithm
    return {name: rows[name] for name in algorithm.summed_columns} if isinstance(algorithm, SumsMinibatches) else {}


@torch.no_grad()
def sums_of_minibatches(context: RunContext, summed: Batch, shares: Iterable[Share]) -> dict[str, Tensor]:
    """Return the algorithm's sums over this learner's rows of each minibatch: float64 `[minibatches]` by name."""
    algorithm = context.algorithm
    assert isinstance(algorithm, SumsMinibatches)
    gathered = gather_minibatches(partial(rows_of, summed), shares, _GATHER_ROWS)
    found = [algorithm.minibatch_stats(rows) for _, rows in gathered]
    return {name: torch.stack([part[name] for part in found]) for name in found[0]} if found else {}


def take_steps(
    context: RunContext,
    state: State,
    round_: int,
    window: RoundWindow,
    shares: Iterable[Share],
    take: Callable[[Tensor], Batch],
    totals: Iterable[Mapping[str, float | Tensor]],
    reduction: Reduction,
) -> tuple[State, dict[str, list[Tensor]], int]:
    """Take the optimizer's steps of all minibatches, up to the algorithm's limit if it has one.

    Nothing here reads a value from the device of the rows, unless a loss or an update does, rounds have a limit, or the
    window is prioritised: with shares and totals on that device too, a CUDA graph can contain it (`device_round`).

    Args:
        context: of the run.
        state: before the round; its parameters change in place.
        round_: counted over the whole run.
        window: the rounds whose rows are planned; gets the priorities, if it has them.
        shares: this learner's shares of the minibatches.
        take: returns this learner's rows `[n, ...]` by their numbers `[n]`.
        totals: statistics that are numbers, for each minibatch in turn.
        reduction: adds up the gradients of all learners.

    Returns:
        The state, the row outputs of each minibatch by name, and this learner's rows of all minibatches.
    """
    outputs: dict[str, list[Tensor]] = {}
    taken_rows, limit = 0, round_limit(context.algorithm)
    # Rows drawn by priority depend on the minibatch before, so they can't be gathered ahead.
    gather_rows = 0 if window.prioritised else _GATHER_ROWS
    minibatches = zip(gather_minibatches(take, shares, gather_rows), totals, strict=False)
    for minibatch, ((share, rows), numbers) in enumerate(minibatches):
        state, row_outputs = _learn_minibatch(context, state, (round_, minibatch), share, rows, numbers, reduction)
        with torch.no_grad():
            state = reduction.after_minibatch(state)
            if window.prioritised:
                priorities = torch.zeros(len(share.rows), dtype=torch.float64)
                if len(share.own):
                    if PRIORITY not in row_outputs:
                        raise ConfigError(
                            f"algorithm.name = '{context.config.algorithm.name}': no loss gave '{PRIORITY}' in "
                            f"minibatch {minibatch} of round {round_}, expected one in every minibatch, since rows are "
                            f"drawn by it; have the loss that gives it be due in each"
                        )
                    priorities[share.places] = row_outputs[PRIORITY].double().cpu()
                window.update(share.rows, reduction.row_values(priorities))
        for name, values in row_outputs.items():
            outputs.setdefault(name, []).append(values)
        taken_rows += len(share.own)
        if limit and (minibatch + 1) % limit.every == 0 and reduction.is_beyond(limit, row_outputs.get(limit.output)):
            break
    return state, outputs, taken_rows


def _learn_minibatch(
    context: RunContext,
    state: State,
    key: tuple[int, int],
    share: Share,
    rows: Batch,
    totals: Mapping[str, float | Tensor],
    reduction: Reduction,
) -> tuple[State, dict[str, Tensor]]:
    """Take the steps of all losses of minibatch `key` (round, minibatch); returns the state and the row outputs."""
    every, block_rows = context.algorithm.losses, context.config.distribution.gradient_block_rows
    device = state.params[every[0].group].flat.device
    losses, names = reduction.losses_of(every, state), [loss.name for loss in every]
    divided_by = reduction.loss_rows(len(share.rows), len(share.own))

    def gradient_of(_: int, loss: Loss) -> Gradient:
        noise = None
        if loss.noise:
            number = names.index(loss.name)
            noise = loss_noise(loss.noise, context.config.seed, number, *key, share.places).to(device)
        return minibatch_gradient(loss, state, rows, totals, block_rows, divided_by, noise)

    row_outputs: dict[str, Tensor] = {}
    groups = [state.params[loss.group].flat for loss in losses]  # none, where no loss is due
    in_parallel = bool(groups) and is_worth_a_thread(min(groups, key=torch.Tensor.numel), len(share.own))
    for loss, (gradient, of_loss) in each_gradient(losses, gradient_of, in_parallel):
        with torch.no_grad():
            state = reduction.update(state, loss, gradient)
        row_outputs |= of_loss
    return state, row_outputs


def plan_round(context: RunContext, round_: int, window: RoundWindow) -> Iterable[Tensor | Draw]:
    """Return a round's minibatches over the rows of the window: the same in every process."""
    generator = torch.Generator().manual_seed(seed_of(context.config.seed, Purpose.PLAN, round_))
    return context.algorithm.plan(generator, window)
