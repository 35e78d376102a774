"""The learning of a replay: rounds of stored shards in a seeded order, learned as in training; nobody acts.

One learner has all of a round, or several have some of its shards each and reduce gradients as in training.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Self

import torch

from storage.errors import CorruptObjectError, ObjectNotFoundError, SpecMismatchError
from storage.refs import Ref
from tasks.checkpoints import read_checkpoint, write_checkpoint
from tasks.committed import from_root
from tasks.edges import EdgeTally
from tasks.feed import learned_columns
from tasks.groups import Group
from tasks.learn import StageTally, learn_batch, prepare_device
from tasks.pipeline import ShardPipeline
from tasks.read_budget import read_budget_bytes
from tasks.reduce import SERVER_GROUP, learner_names, reducing, server_name
from tasks.replay_rounds import ReplayRounds
from tasks.server import serve_round
from tasks.snapshots import SnapshotPublisher
from tasks.spans import Spans
from tasks.streams import Purpose, seed_of
from tasks.sync import move_state, parameters_digest
from tasks.window import RoundWindow

if TYPE_CHECKING:
    from storage.cache import CacheTally
    from tasks.assignment import Assignment
    from tasks.context import RunContext
    from tasks.groups import MeetingPoint
    from tasks.membership import Membership
    from tasks.pipeline import LoadedShard, PipelineTally
    from tasks.replay_plan import PlannedShard
    from tasks.specs import Batch, State


def replay(
    assignment: Assignment, context: RunContext, membership: Membership, meeting: MeetingPoint | None = None
) -> dict[str, Any]:
    """Learn all rounds of a stage from stored shards: one's own places of each.

    Returns:
        What `tasks.learn.learn` returns; `shards` is empty, for the replay has none of its own, and `env_steps` are the
        stored steps that were learned from.

    Raises:
        MemberLostError: another learner, or the server, was lost.
        StageMismatchError: learning again gave another snapshot than the one that is published.
        CorruptObjectError: a shard, the plan or the checkpoint is damaged or gone.
        SpecMismatchError: a shard lacks a column that the algorithm needs.
    """
    device = prepare_device(assignment.device, context.config.placement.torch_threads)
    started = time.perf_counter()
    state = _begin(assignment, context, device)
    tally = StageTally()
    rounds = context.rounds_of(assignment.stage)
    learn_seconds, update_rows, env_steps, all_steps = 0.0, 0, 0, 0
    spans = Spans(assignment.replica)
    with (
        reducing(assignment, context, membership, meeting) as reduction,
        StoredFeed(assignment, context, membership, device) as feed,
    ):
        for round_ in rounds:
            waited = feed.wait_seconds
            batch = feed.next_round(state)
            spans.add("wait", feed.wait_seconds - waited)
            membership.check()
            round_started = time.perf_counter()
            own, row_count = feed.rounds.share_of(round_)
            reduction.assign(own, row_count)
            stats = reduction.stats(_sums(context, batch))
            state, rows = learn_batch(context, state, round_, batch, stats, tally, reduction)
            update_rows += rows
            env_steps += len(own)
            all_steps += row_count
            learned = time.perf_counter() - round_started
            spans.add("learn", learned)
            learn_seconds += learned
            if assignment.replica == 0:
                membership.tell(
                    "progress",
                    round=round_,
                    env_steps=all_steps,
                    missed_shards=0,
                    episode_return=None,
                    wait_share=feed.wait_seconds / (time.perf_counter() - started),
                    queue_depth=feed.tally().queue_depth,
                    lag=0,
                )
    tallied = feed.tally()
    membership.log.info(
        "replayed rounds=%d..%d env_steps=%d learn_seconds=%.3f wait_seconds=%.3f queue_depth=%.1f read_bytes=%d "
        "retries=%d hedges=%d device=%s",
        rounds[0],
        rounds[-1],
        env_steps,
        learn_seconds,
        tallied.wait_seconds,
        tallied.queue_depth,
        tallied.read_bytes,
        tallied.retries,
        tallied.hedges,
        device,
    )
    holds_sync = assignment.role == context.policy.role_of("sync").name and assignment.replica == 0
    return {
        **tally.part(),
        **(_keep(assignment, context, membership, state, feed.rounds) if holds_sync else {}),
        "env_steps": env_steps,
        "parameters": parameters_digest(state),
        "learn_seconds": learn_seconds,
        "wait_seconds": tallied.wait_seconds,
        "update_rows": update_rows,
        "spans": spans.to_json(),
        "edges": reduction.edges.to_json(),
        "pipeline": tallied.to_json(),
        "cache": feed.cache_tally.to_json(),
    }


def serve_replay(assignment: Assignment, context: RunContext, membership: Membership) -> dict[str, Any]:
    """Be the parameter server of a replay's stage; returns and raises what `tasks.server.serve` does."""
    device = prepare_device(assignment.device, context.config.placement.torch_threads)
    state = _begin(assignment, context, device)
    started = time.perf_counter()
    planned = ReplayRounds(context)
    names, edges = [*learner_names(assignment, context), server_name(context)], EdgeTally()
    with Group(SERVER_GROUP, len(names) - 1, names, membership, assignment, None) as group:
        for round_ in context.rounds_of(assignment.stage):
            membership.check()
            _, row_count = planned.share_of(round_)
            state = serve_round(context, state, round_, group, RoundWindow.of_round(row_count), edges)
    serve_seconds = time.perf_counter() - started
    kept = _keep(assignment, context, membership, state, planned)
    return {
        **kept,
        "parameters": parameters_digest(state),
        "serve_seconds": serve_seconds,
        "edges": edges.to_json(),
    }


def _begin(assignment: Assignment, context: RunContext, device: torch.device) -> State:
    before = context.commit_before(assignment)
    if before is not None:
        return read_checkpoint(context.run.store, Ref.from_json(before["checkpoint"]), device)
    state = context.algorithm.init(seed_of(context.config.seed, Purpose.PARAMETERS))
    move_state(state, device)
    return state


def _keep(
    assignment: Assignment, context: RunContext, membership: Membership, state: State, planned: ReplayRounds
) -> dict[str, Any]:
    """Store what a commit says of the state after a stage; one version, for nobody acts before its end."""
    stop, store = context.rounds_of(assignment.stage).stop, context.run.store
    with SnapshotPublisher(assignment, context, membership) as publisher:
        snapshot = publisher.publish(stop, state)
    store.sync([snapshot.name])
    reader = planned.reader_at(stop, assignment.stage)
    return {
        "snapshots": [snapshot.to_json()],
        "checkpoint": write_checkpoint(store, assignment.stage, state, reader).to_json(),
        "version": stop,
        "publish_seconds": publisher.publish_seconds,
    }


class StoredFeed:
    """Rounds of stored shards, through the input pipeline. For one learn task; a context manager."""

    def __init__(
        self, assignment: Assignment, context: RunContext, membership: Membership, device: torch.device
    ) -> None:
        """Args: which stage, of which run, among whom, to where."""
        self.rounds = ReplayRounds(context, assignment.replica, assignment.replicas)
        self._context = context
        stage = context.rounds_of(assignment.stage)
        self._planned = self.rounds.own(stage)
        # The source runs lie beside this one.
        store = context.run.root
        self._pipeline = ShardPipeline(
            (from_root(planned.run, planned.ref) for planned in self.rounds.own(stage)),
            store,
            columns=learned_columns(context),
            device=device,
            budget_bytes=read_budget_bytes(
                assignment,
                membership.log,
                2 * self.rounds.largest_bytes,
                is_remote=store.path("any") is None,
                is_staged=device.type != "cpu",
            ),
            cache=context.cache,
        )

    def __enter__(self) -> Self:
        self._pipeline.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._pipeline.__exit__()

    @property
    def wait_seconds(self) -> float:
        """That `next_round` has waited."""
        return self._pipeline.wait_seconds

    @property
    def cache_tally(self) -> CacheTally:
        """What became of looking for shards in the node's cache."""
        return self._pipeline.cache_tally

    def tally(self) -> PipelineTally:
        """What was done so far."""
        return self._pipeline.tally()

    def next_round(self, state: State) -> Batch:
        """The training rows of the next round, in memory of their own; blocks, and raises what reading met.

        Raises:
            CorruptObjectError: a shard is damaged or gone.
            SpecMismatchError: a shard lacks a column that the algorithm needs.
            StoreError: the store can't be read.
        """
        taken = [self._take() for _ in range(self.rounds.own_shards)]
        parts = [self._rows(state, planned, loaded) for planned, loaded in taken]
        batch = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        for _, loaded in taken:
            loaded.release()
        return batch

    def _take(self) -> tuple[PlannedShard, LoadedShard]:
        planned = next(self._planned)
        where = f"'{planned.ref.name}' of run '{planned.run}'"
        try:
            return planned, self._pipeline.take()
        except (CorruptObjectError, ObjectNotFoundError) as error:
            raise CorruptObjectError(
                f"shard {where}, which this replay reads, is damaged or gone: {error}. Restore it from a copy, or "
                f"begin another replay without it"
            ) from error
        except SpecMismatchError as error:
            raise SpecMismatchError(
                f"shard {where} lacks what '{self._context.config.algorithm.name}' learns from: {error}; replay runs "
                f"of the same environment"
            ) from error

    def _rows(self, state: State, planned: PlannedShard, loaded: LoadedShard) -> Batch:
        with torch.no_grad():
            batch = self._context.algorithm.post(state.params, loaded.trajectory)
        chosen = planned.row_ids(loaded.info.steps, loaded.info.envs)
        if chosen is None:
            return batch
        index = torch.from_numpy(chosen).to(next(iter(batch.values())).device)
        return {name: column.index_select(0, index) for name, column in batch.items()}


@torch.no_grad()
def _sums(context: RunContext, batch: Batch) -> dict[str, torch.Tensor]:
    return context.algorithm.stats(batch)
