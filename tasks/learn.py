"""The learning half: take rounds of shards from the pipeline and learn them, alone or in step with others.

A learner that begins again learns the stage's stored rounds from the commit before it, and gets the same bytes.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from tasks.algorithm import PRIORITY, window_spec
from tasks.feed import ShardFeed
from tasks.gradients import each_gradient, minibatch_gradient
from tasks.minibatches import gather_minibatches, loss_noise, rows_of, take_share
from tasks.reduce import reducing
from tasks.spans import Spans
from tasks.streams import Purpose, seed_of
from tasks.sync import Sync, begin_stage, parameters_digest
from tasks.window import RoundWindow
from tasks.window_rows import WindowRows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from torch import Tensor

    from storage.refs import ShardRef
    from tasks.algorithm import Draw, Loss
    from tasks.assignment import Assignment
    from tasks.context import RunContext
    from tasks.gradients import Gradient
    from tasks.groups import MeetingPoint
    from tasks.membership import Membership
    from tasks.minibatches import Share
    from tasks.pipeline import LoadedShard
    from tasks.reduce import Reduction
    from tasks.specs import Batch, State


_GATHER_ROWS = 8192


@dataclass(slots=True)
class StageTally:
    """What a stage's commit says of its rounds; all of it follows from shards and parameters."""

    shards: list[ShardRef] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    outputs: dict[str, dict[int, tuple[float, int]]] = field(default_factory=dict)
    """Of every row output and round, the mean over rows, and their number."""

    def part(self) -> dict[str, Any]:
        """What `tasks.parts` makes a commit's metrics of; sums, so that parts of several learners add up."""
        return {
            "shards": [ref.to_json() for ref in self.shards],
            "outputs": {name: {str(round_): pair for round_, pair in by.items()} for name, by in self.outputs.items()},
            "episodes": len(self.returns),
            "return_sum": sum(self.returns),
            "length_sum": sum(self.lengths),
            "env_steps": sum(ref.rows for ref in self.shards),
        }


def learn(
    assignment: Assignment, context: RunContext, membership: Membership, meeting: MeetingPoint | None
) -> dict[str, Any]:
    """Learn all rounds of a stage, from the shards of one's own tiles.

    Returns:
        The learner's part of the commit (`StageTally.part`; who holds `sync` adds `Sync.part`), `parameters` (a digest
        of what all learners must have), and for `timings/`: `learn_seconds`, `wait_seconds`, `update_rows`, `spans` (as
        `Spans.to_json`), `pipeline` (what the input pipeline did), `cache` (what became of looking for shards in the
        node's cache) and `edges` (bytes and messages to other learners, a server, and actors elsewhere).

    Raises:
        MemberLostError: another learner, or the server, was lost.
        StageMismatchError: learning again gave another snapshot than the one that is published.
        CorruptObjectError: a shard or the checkpoint was damaged.
    """
    device = prepare_device(assignment.device, context.config.placement.torch_threads)
    started = time.perf_counter()
    begun = begin_stage(assignment, context, device)
    state, window = begun.state, begun.window
    tally = StageTally()
    rounds = context.rounds_of(assignment.stage)
    learn_seconds, update_rows = 0.0, 0
    spans = Spans(assignment.replica)
    with ExitStack() as stack:
        reduction = stack.enter_context(reducing(assignment, context, membership, meeting))
        sync = None
        if assignment.role == context.policy.role_of("sync").name and assignment.replica == 0:
            sync = stack.enter_context(Sync(assignment, context, membership, state, begun.published))
        kept = None
        if window_spec(context.algorithm):
            kept = stack.enter_context(WindowRows(assignment, context, device, window.rounds))
        feed = stack.enter_context(ShardFeed(assignment, context, membership, device, begun.reader))
        for round_ in rounds:
            waited = feed.wait_seconds
            loaded = feed.next_round()
            spans.add("wait", feed.wait_seconds - waited)
            membership.check()
            round_started = time.perf_counter()
            state, rows = _learn_round(context, state, round_, loaded, tally, reduction, window, kept)
            if sync:
                sync.publish(round_ + 1, state)
            update_rows += rows
            learned = time.perf_counter() - round_started
            spans.add("learn", learned)
            learn_seconds += learned
            if assignment.replica == 0:
                _report(context, membership, round_, tally, feed, time.perf_counter() - started)
        if sync:
            sync.keep(state, window)
            sync.count(reduction.edges)
    tallied = feed.tally()
    membership.log.info(
        "learned rounds=%d..%d update_rows=%d learn_seconds=%.3f wait_seconds=%.3f queue_depth=%.1f read_bytes=%d "
        "retries=%d hedges=%d device=%s",
        rounds[0],
        rounds[-1],
        update_rows,
        learn_seconds,
        tallied.wait_seconds,
        tallied.queue_depth,
        tallied.read_bytes,
        tallied.retries,
        tallied.hedges,
        device,
    )
    return {
        **tally.part(),
        **(sync.part() if sync else {}),
        "parameters": parameters_digest(state),
        "edges": reduction.edges.to_json(),
        "learn_seconds": learn_seconds,
        "wait_seconds": tallied.wait_seconds,
        "update_rows": update_rows,
        "spans": spans.to_json(),
        "pipeline": tallied.to_json(),
        "cache": feed.cache_tally.to_json(),
    }


def _learn_round(
    context: RunContext,
    state: State,
    round_: int,
    loaded: list[LoadedShard],
    tally: StageTally,
    reduction: Reduction,
    window: RoundWindow,
    kept: WindowRows | None,
) -> tuple[State, int]:
    """A round of this run's shards; the state after it, and how many rows were learned from.

    `kept` has the rows of the window's earlier rounds, if the algorithm learns from those too.
    """
    algorithm = context.algorithm
    with torch.no_grad():
        params = state.params if kept is None else {}
        batches = [algorithm.post(params, item.trajectory) for item in loaded]
        sums = [algorithm.stats(batch) for batch in batches]
        stats = reduction.stats({name: torch.stack([part[name] for part in sums]).sum(0) for name in sums[0]})
    for item in loaded:
        tally.shards.append(item.ref)
        tally.returns += item.info.episodes.return_.tolist()
        tally.lengths += item.info.episodes.length.tolist()
    if kept is None:
        batch: Batch = {name: torch.cat([part[name] for part in batches]) for name in batches[0]}
        return learn_batch(context, state, round_, batch, stats, tally, reduction)
    own, _ = reduction.share_of(sum(len(next(iter(batch.values()))) for batch in batches))
    window.begin_round()
    kept.add(window.rounds, loaded, batches)
    return _learn_minibatches(context, state, round_, window, own, kept.take, stats, tally, reduction)


def learn_batch(
    context: RunContext,
    state: State,
    round_: int,
    batch: Batch,
    stats: Mapping[str, Tensor],
    tally: StageTally,
    reduction: Reduction,
) -> tuple[State, int]:
    """All minibatches of a round's training rows; the state after them, and how many rows were learned from."""
    own, row_count = reduction.share_of(next(iter(batch.values())).shape[0])
    window = RoundWindow.of_round(row_count)
    return _learn_minibatches(context, state, round_, window, own, partial(rows_of, batch), stats, tally, reduction)


def _learn_minibatches(
    context: RunContext,
    state: State,
    round_: int,
    window: RoundWindow,
    own: range,
    take: Callable[[torch.Tensor], Batch],
    stats: Mapping[str, Tensor],
    tally: StageTally,
    reduction: Reduction,
) -> tuple[State, int]:
    shares = take_share(plan_round(context, round_, window), own, window.round_rows)
    totals = {name: value.item() for name, value in stats.items() if not value.dim()}
    outputs: dict[str, list[torch.Tensor]] = {}
    update_rows = 0
    # What is drawn by priorities depends on the minibatch before, so it can't be gathered sooner.
    gather_rows = 0 if window.prioritised else _GATHER_ROWS
    for minibatch, (share, rows) in enumerate(gather_minibatches(take, shares, gather_rows)):
        state, row_outputs = _learn_minibatch(context, state, (round_, minibatch), share, rows, totals, reduction)
        with torch.no_grad():
            state = reduction.after_minibatch(state)
            if window.prioritised:
                priorities = torch.zeros(len(share.rows), dtype=torch.float64)
                if len(share.own):
                    priorities[share.places] = row_outputs[PRIORITY].double().cpu()
                window.update(share.rows, reduction.row_values(priorities))
        for name, values in row_outputs.items():
            outputs.setdefault(name, []).append(values)
        update_rows += len(share.own)
    with torch.no_grad():
        state = reduction.after_round(state, stats)
    for name, parts in outputs.items():
        values = torch.cat(parts)
        tally.outputs.setdefault(name, {})[round_] = float(values.double().mean()), len(values)
    return state, update_rows


def _learn_minibatch(
    context: RunContext,
    state: State,
    which: tuple[int, int],
    share: Share,
    rows: Batch,
    totals: Mapping[str, float],
    reduction: Reduction,
) -> tuple[State, dict[str, torch.Tensor]]:
    """All losses of a minibatch, `which` is (round, minibatch); the state after them, and their row outputs."""
    losses, block_rows = context.algorithm.losses, context.config.placement.gradient_block_rows
    device = state.params[losses[0].group].flat.device

    def gradient_of(number: int, loss: Loss) -> Gradient:
        noise = None
        if loss.noise:
            noise = loss_noise(loss.noise, context.config.seed, number, *which, share.places).to(device)
        return minibatch_gradient(loss, state, rows, totals, block_rows, len(share.rows), noise)

    row_outputs: dict[str, torch.Tensor] = {}
    for loss, (gradient, of_loss) in each_gradient(losses, gradient_of, device):
        with torch.no_grad():
            state = reduction.update(state, loss, gradient)
        row_outputs |= of_loss
    return state, row_outputs


def plan_round(context: RunContext, round_: int, window: RoundWindow) -> Iterable[torch.Tensor | Draw]:
    """A round's minibatches over the rows of the window, the same for whoever asks."""
    generator = torch.Generator().manual_seed(seed_of(context.config.seed, Purpose.PLAN, round_))
    return context.algorithm.plan(generator, window)


def prepare_device(wanted: str, threads: int) -> torch.device:
    """The learner's device, set up so that the same work gives the same bytes on it."""
    device = torch.device("cuda" if wanted == "auto" and torch.cuda.is_available() else wanted.replace("auto", "cpu"))
    if device.type == "cuda":
        # cuBLAS is deterministic only with a fixed workspace, and reads this when it is first used.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(threads)
    if device.type == "cuda" or threads > 1:
        # Needless for one thread on a CPU, where it would cost seconds: the call imports torch's compiler.
        torch.use_deterministic_algorithms(mode=True)
    return device


def _report(
    context: RunContext, membership: Membership, round_: int, tally: StageTally, feed: ShardFeed, seconds: float
) -> None:
    recent, first = tally.returns[-100:], round_ - round_ % context.config.schedule.rounds_per_stage
    missed_rows = feed.missed_shards * context.tile_rows
    membership.tell(
        "progress",
        round=round_,
        env_steps=(round_ + 1 - first) * context.round_rows - missed_rows,
        missed_shards=feed.missed_shards,
        episode_return=sum(recent) / len(recent) if recent else None,
        wait_share=feed.wait_seconds / seconds,
        queue_depth=feed.tally().queue_depth,
        lag=round_ - context.acting_version(round_),
    )
