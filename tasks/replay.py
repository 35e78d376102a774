"""The learn role of a replay: rounds of stored shards in a seeded order, learned as in training; nobody acts.

A round is the next `shards_per_round` of an endless sequence: the plan's shards, in a fresh order each epoch. Where in
it a round begins follows from the round's number, so a replay that was killed goes on with the same rows.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch

from storage.errors import CorruptObjectError, ObjectNotFoundError, SpecMismatchError
from storage.refs import Ref
from tasks.checkpoints import read_checkpoint, write_checkpoint
from tasks.committed import from_root
from tasks.feed import learned_columns
from tasks.learn import StageTally, learn_batch, prepare_device
from tasks.pipeline import ShardPipeline
from tasks.read_budget import read_budget_bytes
from tasks.reduce import LocalReduction
from tasks.replay_config import ReplayConfig
from tasks.replay_plan import ReplayPlan, plan_name
from tasks.snapshots import SnapshotPublisher
from tasks.streams import Purpose, seed_of
from tasks.sync import move_state, parameters_digest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from storage.cache import CacheTally
    from tasks.assignment import Assignment
    from tasks.context import RunContext
    from tasks.membership import Membership
    from tasks.pipeline import LoadedShard, PipelineTally
    from tasks.replay_plan import PlannedShard
    from tasks.specs import Batch, State


def replay(assignment: Assignment, context: RunContext, membership: Membership) -> dict[str, Any]:
    """Learn all rounds of a stage from stored shards.

    Returns:
        What `tasks.learn.learn` returns; `shards` is empty, for the replay has none of its own, and `env_steps` are the
        stored steps that were learned from.

    Raises:
        StageMismatchError: learning again gave another snapshot than the one that is published.
        CorruptObjectError: a shard, the plan or the checkpoint is damaged or gone.
        SpecMismatchError: a shard lacks a column that the algorithm needs.
    """
    placement = context.config.placement
    device = prepare_device(assignment.device, placement.torch_threads)
    started = time.perf_counter()
    before = context.run.log.read(assignment.stage - 1) if assignment.stage else None
    publisher = SnapshotPublisher(assignment, context, membership)
    if before:
        state = read_checkpoint(context.run.store, Ref.from_json(before["checkpoint"]), device)
    else:
        state = context.algorithm.init(seed_of(context.config.seed, Purpose.PARAMETERS))
        move_state(state, device)
    tally, reduction = StageTally(), LocalReduction(context.algorithm)
    rounds = context.rounds_of(assignment.stage)
    learn_seconds, update_rows, env_steps = 0.0, 0, 0
    with publisher, StoredFeed(assignment, context, membership, device) as feed:
        for round_ in rounds:
            batch = feed.next_round(state)
            membership.check()
            round_started = time.perf_counter()
            stats = reduction.stats(_sums(context, batch))
            state, rows = learn_batch(context, state, round_, batch, stats, tally, reduction)
            update_rows += rows
            env_steps += next(iter(batch.values())).shape[0]
            learn_seconds += time.perf_counter() - round_started
            seconds = time.perf_counter() - started
            membership.tell(
                "progress",
                round=round_,
                env_steps=env_steps,
                episode_return=None,
                wait_share=feed.wait_seconds / seconds,
                queue_depth=feed.tally().queue_depth,
                lag=0,
            )
        position = rounds.stop * feed.shards_per_round
        reader = {
            "commit": assignment.stage,
            "epoch": position // len(feed.plan),
            "seed": context.config.seed,
            "cursor": position % len(feed.plan),
        }
        snapshot = publisher.publish(rounds.stop, state)
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
    context.run.store.sync([snapshot.name])
    return {
        **tally.part(),
        "snapshots": [snapshot.to_json()],
        "checkpoint": write_checkpoint(context.run.store, assignment.stage, state, reader).to_json(),
        "version": rounds.stop,
        "env_steps": env_steps,
        "parameters": parameters_digest(state),
        "learn_seconds": learn_seconds,
        "wait_seconds": tallied.wait_seconds,
        "publish_seconds": publisher.publish_seconds,
        "update_rows": update_rows,
        "pipeline": tallied.to_json(),
        "cache": feed.cache_tally.to_json(),
    }


def shard_order(seed: int, shards: int, first: int, last: int) -> Iterator[int]:
    """Indices into a plan at positions `first` to `last` (excluded) of the endless sequence of epochs.

    Args:
        seed: of the run.
        shards: how many the plan has.
        first: position, counted from the beginning of the replay.
        last: position after the last one.
    """
    epoch = -1
    order: list[int] = []
    for position in range(first, last):
        if position // shards != epoch:
            epoch = position // shards
            generator = torch.Generator().manual_seed(seed_of(seed, Purpose.REPLAY, epoch))
            order = torch.randperm(shards, generator=generator).tolist()
        yield order[position % shards]


class StoredFeed:
    """Rounds of stored shards, through the input pipeline. For one learn task; a context manager."""

    def __init__(
        self, assignment: Assignment, context: RunContext, membership: Membership, device: torch.device
    ) -> None:
        """Args: which stage, of which run, among whom, to where."""
        config = context.config
        if not isinstance(config, ReplayConfig) or config.plan is None:
            raise TypeError(f"run '{context.run.name}' is no replay with a plan")
        name = plan_name(config.plan)
        self.plan = ReplayPlan.decode(context.run.store.read(name), name, config.plan)
        self.shards_per_round = config.schedule.shards_per_round
        self._assignment = assignment
        self._context = context
        self._order = self._indices()
        # The source runs lie beside this one.
        store = context.run.root
        self._pipeline = ShardPipeline(
            (from_root(planned.run, planned.ref) for planned in (self.plan[index] for index in self._indices())),
            store,
            columns=learned_columns(context),
            device=device,
            budget_bytes=read_budget_bytes(
                assignment,
                membership.log,
                2 * _largest_round_bytes(self.plan, self.shards_per_round),
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
        taken = [self._take() for _ in range(self.shards_per_round)]
        parts = [self._rows(state, planned, loaded) for planned, loaded in taken]
        batch = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        for _, loaded in taken:
            loaded.release()
        return batch

    def _indices(self) -> Iterator[int]:
        rounds = self._context.rounds_of(self._assignment.stage)
        first, last = rounds.start * self.shards_per_round, rounds.stop * self.shards_per_round
        return shard_order(self._context.config.seed, len(self.plan), first, last)

    def _take(self) -> tuple[PlannedShard, LoadedShard]:
        planned = self.plan[next(self._order)]
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


def _largest_round_bytes(plan: ReplayPlan, shards: int) -> int:
    """Of the files of so many shards, if the largest ones of the plan come together."""
    sizes = np.sort(plan.table["nbytes"].to_numpy())[::-1]
    return int(np.resize(sizes, shards).sum())


@torch.no_grad()
def _sums(context: RunContext, batch: Batch) -> dict[str, torch.Tensor]:
    return context.algorithm.stats(batch)
