"""The learn role of a replay: rounds of stored shards in a seeded order, learned as in training; nobody acts.

A round is the next `shards_per_round` of an endless sequence: the plan's shards, in a fresh order each epoch. Where in
it a round begins follows from the round's number, so a replay that was killed goes on with the same rows.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Self

import torch

from storage.errors import CorruptObjectError, ObjectNotFoundError, SpecMismatchError
from storage.prefetch import Prefetcher
from storage.refs import Ref
from storage.shard_reader import open_shard
from storage.specs import Spec
from storage.store import open_store
from tasks.checkpoints import read_checkpoint, write_checkpoint
from tasks.learn import StageTally, learn_batch, move_state, prepare_device
from tasks.pipeline import BUDGET_BYTES
from tasks.replay_config import ReplayConfig
from tasks.replay_plan import PlannedShard, ReplayPlan, plan_name
from tasks.snapshots import SnapshotPublisher
from tasks.specs import Trajectory
from tasks.streams import Purpose, seed_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from storage.shards import Shard
    from storage.store import Store
    from tasks.assignment import Assignment
    from tasks.context import RunContext
    from tasks.membership import Membership
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
    tally = StageTally()
    rounds = context.rounds_of(assignment.stage)
    learn_seconds, update_rows, env_steps = 0.0, 0, 0
    with StoredFeed(assignment, context, device) as feed:
        for round_ in rounds:
            batch = feed.next_round(state)
            membership.check()
            round_started = time.perf_counter()
            state, rows = learn_batch(context, state, round_, batch, _stats(context, batch), tally)
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
                queue_depth=feed.queue_depth,
                lag=0,
            )
        position = rounds.stop * feed.shards_per_round
        reader = {
            "commit": assignment.stage,
            "epoch": position // len(feed.plan),
            "seed": context.config.seed,
            "cursor": position % len(feed.plan),
        }
    membership.log.info("replayed rounds=%d..%d env_steps=%d", rounds[0], rounds[-1], env_steps)
    snapshot = publisher.publish(rounds.stop, state)
    context.run.store.sync([snapshot.name])
    return {
        "shards": [],
        "snapshots": [snapshot.to_json()],
        "checkpoint": write_checkpoint(context.run.store, assignment.stage, state, reader).to_json(),
        "version": rounds.stop,
        "metrics": tally.metrics(),
        "episodes": 0,
        "env_steps": env_steps,
        "learn_seconds": learn_seconds,
        "wait_seconds": feed.wait_seconds,
        "publish_seconds": publisher.publish_seconds,
        "update_rows": update_rows,
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
    """Rounds of stored shards, read ahead within a byte budget. For one learn task; a context manager."""

    def __init__(self, assignment: Assignment, context: RunContext, device: torch.device) -> None:
        config = context.config
        if not isinstance(config, ReplayConfig) or config.plan is None:
            raise TypeError(f"run '{context.run.name}' is no replay with a plan")
        name = plan_name(config.plan)
        self.plan = ReplayPlan.decode(context.run.store.read(name), name, config.plan)
        self.shards_per_round = config.schedule.shards_per_round
        self.wait_seconds = 0.0
        self._assignment = assignment
        self._context = context
        self._device = device
        self._stores: dict[str, Store] = {run: open_store(assignment.store).at(run) for run in config.source.runs}
        self._prefetcher: Prefetcher[PlannedShard, tuple[PlannedShard, Shard]] = Prefetcher(self._load, BUDGET_BYTES)
        self._finder = threading.Thread(target=self._submit_all, name="shard-finder", daemon=True)

    def __enter__(self) -> Self:
        self._finder.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._prefetcher.close()

    @property
    def queue_depth(self) -> float:
        """Mean number of shards that were there when one was taken."""
        return self._prefetcher.depth_sum / self._prefetcher.takes if self._prefetcher.takes else 0.0

    def next_round(self, state: State) -> Batch:
        """The training rows of the next round; blocks, and raises what reading met."""
        parts = []
        for _ in range(self.shards_per_round):
            started = time.perf_counter()
            planned, shard = self._prefetcher.next()
            self.wait_seconds += time.perf_counter() - started
            parts.append(self._rows(state, planned, shard))
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def _rows(self, state: State, planned: PlannedShard, shard: Shard) -> Batch:
        trajectory = Trajectory(
            columns={name: torch.from_numpy(shard.columns[name]).to(self._device) for name in self._context.columns},
            bootstrap_rows=torch.from_numpy(shard.bootstrap_rows).to(self._device),
            bootstrap_observation=torch.from_numpy(shard.bootstrap_observation).to(self._device),
        )
        with torch.no_grad():
            batch = self._context.algorithm.post(state.params, trajectory)
        chosen = planned.row_ids(shard.info.steps, shard.info.envs)
        if chosen is None:
            return batch
        index = torch.from_numpy(chosen).to(self._device)
        return {name: column.index_select(0, index) for name, column in batch.items()}

    def _submit_all(self) -> None:
        try:
            rounds = self._context.rounds_of(self._assignment.stage)
            first, last = rounds.start * self.shards_per_round, rounds.stop * self.shards_per_round
            for index in shard_order(self._context.config.seed, len(self.plan), first, last):
                self._prefetcher.submit(self.plan[index])
        except BaseException as error:  # noqa: BLE001  (handed to the learner, which raises it)
            self._prefetcher.fail(error)

    def _load(self, planned: PlannedShard) -> tuple[PlannedShard, Shard]:
        ref, where = planned.ref, f"'{planned.ref.name}' of run '{planned.run}'"
        needed = {name: Spec(spec.dtype, spec.shape) for name, spec in self._context.columns.items()}
        try:
            opened = open_shard(self._stores[planned.run], ref)
            found = {name: Spec(spec.dtype, spec.shape) for name, spec in opened.specs.items()}
            lacking = ", ".join(f"{name}: {spec}" for name, spec in needed.items() if found.get(name) != spec)
            if not lacking:
                return planned, opened.shard(needed)
        except (CorruptObjectError, ObjectNotFoundError) as error:
            raise CorruptObjectError(
                f"shard {where}, which this replay reads, is damaged or gone: {error}. Restore it from a copy, or "
                f"begin another replay without it"
            ) from error
        raise SpecMismatchError(
            f"shard {where} lacks what '{self._context.config.algorithm.name}' learns from ({lacking}); replay runs of "
            f"the same environment"
        )


def _stats(context: RunContext, batch: Batch) -> dict[str, float]:
    with torch.no_grad():
        return {name: float(value) for name, value in context.algorithm.stats(batch).items()}
