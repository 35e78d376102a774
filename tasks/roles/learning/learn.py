"""The learner's loop: take rounds of training rows from a feed and learn them, alone or together with other learners.

Training and replay differ in their feed alone. A learner that is restarted learns the stage's stored rounds again from
the commit before it, and gets the same bytes.
"""

from __future__ import annotations

import math
import time
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from penstock.storage.runs.timings import CacheCounts, LearnTimes, PipelineCounts
from penstock.tasks.data.input.hand_over import ref_of
from penstock.tasks.roles.learning.device_round import DeviceRounds
from penstock.tasks.roles.learning.round_update import StageTally, learn_batches, learn_window
from penstock.tasks.roles.learning.shard_feed import ShardFeed
from penstock.tasks.roles.learning.stage_state import Publisher, begin_stage, parameters_digest
from penstock.tasks.roles.learning.stored_feed import StoredFeed
from penstock.tasks.roles.learning.window_rows import WindowRows, open_window
from penstock.tasks.roles.reducing.agents import owning
from penstock.tasks.roles.reducing.reduction import reducing
from penstock.tasks.runtime.events import Progress
from penstock.tasks.runtime.metrics import Spans
from penstock.tasks.runtime.results import LearnResult

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from penstock.tasks.data.input.hand_over import HandedRows, HandOver
    from penstock.tasks.data.snapshots.handed_versions import HandedVersions
    from penstock.tasks.roles.learning.feed import Feed
    from penstock.tasks.roles.learning.stage_state import Stage
    from penstock.tasks.roles.reducing.reduction import Reduction
    from penstock.tasks.runtime.assignment import Assignment
    from penstock.tasks.runtime.membership import Membership
    from penstock.tasks.runtime.process_group import Rendezvous
    from penstock.tasks.runtime.run_context import RunContext
    from penstock.tasks.specs import State


_REPORT_SECONDS = 0.1


def learn_stage(
    assignment: Assignment,
    context: RunContext,
    membership: Membership,
    rendezvous: Rendezvous | None = None,
    hand_over: HandOver | None = None,
) -> LearnResult:
    """Run a learner for one stage.

    Args:
        assignment: of the learner.
        context: of the run.
        membership: in the stage's gang.
        rendezvous: of the learners, for the first of several.
        hand_over: to and from the actor of this process; None if there is none.

    Raises:
        MemberLostError: another learner, or the server, was lost.
        StageMismatchError: learning again gave another snapshot than the published one.
        CorruptObjectError: a shard, the plan of a replay or the checkpoint is damaged or missing.
        SpecMismatchError: a replayed shard lacks a column that the algorithm needs.
    """
    stage = begin_stage(assignment, context, membership)
    with ExitStack() as stack:
        join = owning if context.policy.reduce == "agents" else reducing
        reduction: Reduction = stack.enter_context(join(assignment, context, membership, rendezvous))
        publisher = None
        if assignment.role == context.policy.role_of("sync").name and assignment.replica == 0:
            publisher = stack.enter_context(Publisher(stage))
        feed = stack.enter_context(_open_feed(stage, hand_over.rows if hand_over else None))
        learned = learn(stage, feed, publisher, reduction, hand_over.versions if hand_over else None)
    if publisher is None:
        return learned
    times = replace(learned.times, publish_seconds=publisher.seconds)
    return replace(learned, published=publisher.result(), times=times)


def _open_feed(stage: Stage, handed: HandedRows | None) -> Feed:
    """Return the rounds that this run's actors store, or those of a replay's plan."""
    if stage.context.config.has_actors:
        return ShardFeed(stage.assignment, stage.context, stage.membership, stage.device, stage.reader, handed)
    return StoredFeed(stage.assignment, stage.context, stage.membership, stage.device)


def learn(
    stage: Stage,
    feed: Feed,
    publisher: Publisher | None,
    reduction: Reduction,
    handed: HandedVersions | None = None,
) -> LearnResult:
    """Learn all rounds of a stage; see `learn_stage`. The result is without what `publisher` stored.

    Args:
        stage: as it begins.
        feed: yields its rounds in order.
        publisher: stores parameters and the checkpoint, for the learner that holds `sync`.
        reduction: adds up sums and gradients of all learners.
        handed: gets every version, for the actor of this process; None if there is none.
    """
    context, membership, state = stage.context, stage.membership, stage.state
    rounds = context.rounds_of(stage.assignment.stage)
    tally, spans = StageTally(), Spans(stage.assignment.replica)
    learn_seconds, env_steps = 0.0, 0
    device_rounds = DeviceRounds.of(context, stage.device, reduction)
    report = _ProgressReports(stage, tally, feed)
    with _window_rows(stage) as window_rows:
        for round_ in rounds:
            round_started, waited = time.perf_counter(), feed.wait_seconds
            if device_rounds is not None:
                device_rounds.prepare(round_)
            taken = feed.next_round(None if device_rounds else {} if stage.window else state.params)
            waited = feed.wait_seconds - waited
            spans.add("wait", waited)
            membership.check()
            env_steps += taken.all_steps
            reduction.assign(taken.steps, taken.all_steps)
            if device_rounds is not None:
                state = device_rounds.learn(state, round_, taken.trajectories, tally)
            elif stage.window is None or window_rows is None:
                state = learn_batches(context, state, round_, taken.batches, tally, reduction)
            else:
                state = learn_window(context, state, taken, stage.window, window_rows, tally, reduction)
            if handed and context.acting_version(rounds[-1]) > round_:
                handed.put(round_ + 1, state.params)
            tally.add(taken)
            if publisher:
                publisher.publish(round_ + 1, state)
            learned = time.perf_counter() - round_started - waited
            spans.add("learn", learned)
            learn_seconds += learned
            if stage.assignment.replica == 0:
                report(round_, env_steps)
    if publisher:
        publisher.keep(state)
        publisher.count(reduction.edges)
    return _result(stage, feed, reduction, state, tally, learn_seconds, spans)


def _result(
    stage: Stage,
    feed: Feed,
    reduction: Reduction,
    state: State,
    tally: StageTally,
    learn_seconds: float,
    spans: Spans,
) -> LearnResult:
    """Return the result of a stage whose rounds have been learned, up to `state`, and log it."""
    rounds, pipeline = stage.context.rounds_of(stage.assignment.stage), feed.tally()
    stage.membership.log.info(
        "learned rounds=%d..%d env_steps=%d update_rows=%d learn_seconds=%.3f wait_seconds=%.3f queue_depth=%.1f "
        "read_bytes=%d retries=%d hedges=%d device=%s",
        rounds[0],
        rounds[-1],
        tally.env_steps,
        tally.update_rows,
        learn_seconds,
        pipeline.wait_seconds,
        pipeline.queue_depth,
        pipeline.read_bytes,
        pipeline.retries,
        pipeline.hedges,
        stage.device,
    )
    return LearnResult(
        shards=tuple(ref_of(shard) for shard in tally.shards),
        outputs=tally.outputs,
        episodes=len(tally.returns),
        return_sum=sum(tally.returns),
        length_sum=sum(tally.lengths),
        parameters=parameters_digest(state),
        published=None,
        times=LearnTimes(
            member=stage.assignment.member,
            env_steps=tally.env_steps,
            learn_seconds=learn_seconds,
            wait_seconds=pipeline.wait_seconds,
            update_rows=tally.update_rows,
            spans=spans.spans(),
            pipeline=PipelineCounts(**asdict(pipeline)),
            cache=CacheCounts(**feed.cache_tally.to_json()),
            edges=reduction.edges.counts(),
        ),
    )


def _window_rows(stage: Stage) -> AbstractContextManager[WindowRows | None]:
    if stage.window is None:
        return nullcontext()
    return open_window(stage.assignment, stage.context, stage.device, stage.window.rounds)


class _ProgressReports:
    """Reports rounds to the flow: the stage's first and last one, and between them at most ten a second.

    Rounds may take milliseconds, and each message passes through three processes.
    """

    def __init__(self, stage: Stage, tally: StageTally, feed: Feed) -> None:
        self._stage, self._tally, self._feed = stage, tally, feed
        self._last_round = stage.context.rounds_of(stage.assignment.stage)[-1]
        self._started = time.perf_counter()
        self._reported = -math.inf

    def __call__(self, round_: int, env_steps: int) -> None:
        """Report a learned round, and the stage's environment steps so far."""
        now = time.perf_counter()
        if now - self._reported < _REPORT_SECONDS and round_ != self._last_round:
            return
        self._reported = now
        recent = self._tally.returns[-100:]
        self._stage.membership.emit_event(
            Progress(
                member=self._stage.assignment.member,
                round=round_,
                env_steps=env_steps,
                missed_shards=self._feed.missed_shards,
                episode_return=sum(recent) / len(recent) if recent else None,
                wait_share=self._feed.wait_seconds / (now - self._started),
                queue_depth=self._feed.tally().queue_depth,
                lag=round_ - self._stage.context.acting_version(round_),
            )
        )
