"""The learn role: take rounds of shards from the pipeline, learn them, publish a snapshot a round.

A restarted learn task learns the stage's stored rounds again from the commit before it, and gets the same bytes.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from storage.refs import Ref, SnapshotRef
from tasks.checkpoints import load_checkpoint, write_checkpoint
from tasks.feed import ShardFeed, check_reader, reader_at
from tasks.gradients import gather_minibatches, minibatch_gradient
from tasks.snapshots import SnapshotPublisher
from tasks.streams import Purpose, seed_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from storage.refs import ShardRef
    from tasks.assignment import Assignment
    from tasks.context import RunContext
    from tasks.membership import Membership
    from tasks.pipeline import LoadedShard
    from tasks.specs import Batch, State


_GATHER_ROWS = 8192


@dataclass(slots=True)
class StageTally:
    """What a stage's commit says of its rounds; all of it follows from shards and parameters."""

    shards: list[ShardRef] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    outputs: dict[str, list[float]] = field(default_factory=dict)

    def metrics(self) -> dict[str, float]:
        """Means over the stage; of episodes only if any ended."""
        means = {name: sum(values) / len(values) for name, values in self.outputs.items()}
        if self.returns:
            means["episode_return"] = sum(self.returns) / len(self.returns)
            means["episode_length"] = sum(self.lengths) / len(self.lengths)
        return means


def learn(assignment: Assignment, context: RunContext, membership: Membership) -> dict[str, Any]:
    """Learn all rounds of a stage.

    Returns:
        The learner's part of the commit (`shards`, `snapshots`, `checkpoint`, `version`, `metrics`, `episodes`,
        `env_steps`), and for `timings/`: `learn_seconds`, `wait_seconds`, `publish_seconds`, `update_rows`,
        `pipeline` (what the input pipeline did) and `cache` (what became of looking for shards in the node's cache).

    Raises:
        StageMismatchError: learning again gave another snapshot than the one that is published.
        CorruptObjectError: a shard or the checkpoint was damaged.
    """
    placement = context.config.placement
    device = prepare_device(assignment.device, placement.torch_threads)
    started = time.perf_counter()
    before = context.run.log.read(assignment.stage - 1) if assignment.stage else None
    publisher = SnapshotPublisher(assignment, context, membership)
    if before:
        ref = Ref.from_json(before["checkpoint"])
        checkpoint = load_checkpoint(context.run.store, ref, device)
        state, reader = checkpoint.state, check_reader(context, assignment.stage, checkpoint.reader, ref.name)
        published = [SnapshotRef.from_json(ref) for ref in before["snapshots"]]
    else:
        state = context.algorithm.init(seed_of(context.config.seed, Purpose.PARAMETERS))
        move_state(state, device)
        reader = reader_at(context, assignment.stage)
        published = [publisher.publish(0, state)]
    tally = StageTally()
    rounds = context.rounds_of(assignment.stage)
    learn_seconds, update_rows = 0.0, 0
    with publisher, ShardFeed(assignment, context, membership, device, reader) as feed:
        for round_ in rounds:
            loaded = feed.next_round()
            membership.check()
            round_started = time.perf_counter()
            state, rows = _learn_round(context, state, round_, loaded, tally)
            published.append(publisher.publish(round_ + 1, state))
            update_rows += rows
            learn_seconds += time.perf_counter() - round_started
            _report(context, membership, round_, tally, feed, time.perf_counter() - started)
        checkpoint_ref = write_checkpoint(context.run.store, assignment.stage, state, feed.reader.to_json())
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
    kept = published[-(context.config.schedule.lag + 1) :]
    context.run.store.sync([ref.name for ref in kept])
    return {
        "shards": [ref.to_json() for ref in tally.shards],
        "snapshots": [ref.to_json() for ref in kept],
        "checkpoint": checkpoint_ref.to_json(),
        "version": rounds.stop,
        "metrics": tally.metrics(),
        "episodes": len(tally.returns),
        "env_steps": sum(ref.rows for ref in tally.shards),
        "learn_seconds": learn_seconds,
        "wait_seconds": tallied.wait_seconds,
        "publish_seconds": publisher.publish_seconds,
        "update_rows": update_rows,
        "pipeline": tallied.to_json(),
        "cache": feed.cache_tally.to_json(),
    }


def _learn_round(
    context: RunContext, state: State, round_: int, loaded: list[LoadedShard], tally: StageTally
) -> tuple[State, int]:
    """A round of this run's shards; the state after it, and how many rows were learned from."""
    algorithm = context.algorithm
    with torch.no_grad():
        batches = [algorithm.post(state.params, item.trajectory) for item in loaded]
        sums = [algorithm.stats(batch) for batch in batches]
        stats = {name: float(torch.stack([part[name] for part in sums]).sum()) for name in sums[0]}
        batch: Batch = {name: torch.cat([part[name] for part in batches]) for name in batches[0]}
    for item in loaded:
        tally.shards.append(item.ref)
        tally.returns += item.info.episodes.return_.tolist()
        tally.lengths += item.info.episodes.length.tolist()
    return learn_batch(context, state, round_, batch, stats, tally)


def learn_batch(
    context: RunContext, state: State, round_: int, batch: Batch, stats: Mapping[str, float], tally: StageTally
) -> tuple[State, int]:
    """All minibatches of a round's training rows; the state after them, and how many rows were learned from."""
    algorithm, block_rows = context.algorithm, context.config.placement.gradient_block_rows
    generator = torch.Generator().manual_seed(seed_of(context.config.seed, Purpose.PLAN, round_))
    plan = algorithm.plan(generator, next(iter(batch.values())).shape[0])
    outputs: dict[str, list[torch.Tensor]] = {}
    update_rows = 0
    for rows in gather_minibatches(batch, plan, _GATHER_ROWS):
        for loss in algorithm.losses:
            gradient, row_outputs = minibatch_gradient(loss, state, rows, stats, block_rows)
            with torch.no_grad():
                state = algorithm.update(state, loss, gradient)
            for name, values in row_outputs.items():
                outputs.setdefault(name, []).append(values)
        with torch.no_grad():
            state = algorithm.after_minibatch(state)
        update_rows += next(iter(rows.values())).shape[0]
    for name, parts in outputs.items():
        tally.outputs.setdefault(name, []).append(float(torch.cat(parts).double().mean()))
    return state, update_rows


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


def move_state(state: State, device: torch.device) -> None:
    """Put all of a state on a device, in place."""
    state.params = {name: group.to(device) for name, group in state.params.items()}
    state.optimizer = {
        name: {key: value.to(device) for key, value in group.items()} for name, group in state.optimizer.items()
    }
    state.targets = {name: value.to(device) for name, value in state.targets.items()}


def _report(
    context: RunContext, membership: Membership, round_: int, tally: StageTally, feed: ShardFeed, seconds: float
) -> None:
    recent = tally.returns[-100:]
    membership.tell(
        "progress",
        round=round_,
        env_steps=sum(ref.rows for ref in tally.shards),
        episode_return=sum(recent) / len(recent) if recent else None,
        wait_share=feed.wait_seconds / seconds,
        queue_depth=feed.tally().queue_depth,
        lag=round_ - context.acting_version(round_),
    )
