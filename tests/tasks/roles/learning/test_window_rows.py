"""Rows of a window, made from committed shards: the same whether they were kept in memory or read again."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from penstock.storage.errors import CorruptObjectError, ObjectNotFoundError
from penstock.storage.shards.codec import decode_shard
from penstock.tasks.data.input.pipeline import LoadedShard
from penstock.tasks.roles.learning import window_rows
from penstock.tasks.roles.learning.window_rows import open_window
from penstock.tasks.runtime.assignment import Assignment
from penstock.tasks.specs import Trajectory

from ....support.synthetic_shards import commit_stage, store_shard

if TYPE_CHECKING:
    from penstock.storage.refs import ShardRef

CPU = torch.device("cpu")
ENVS, STEPS, TILES, ROUNDS = 3, 8, 2, 2
SETTINGS = {
    "algorithm": {"name": "dqn", "window_rows": 200, "warm_up_rows": 1},
    "environment": {"num_envs": ENVS * TILES, "envs_per_tile": ENVS},
    "schedule": {"round_steps": STEPS, "rounds_per_stage": ROUNDS},
}


class Committed:
    """A run whose stages are committed, and what `post` makes of each of its shards."""

    def __init__(self, context, stages: int) -> None:
        self.context = context
        self.refs: dict[tuple[int, int], ShardRef] = {}
        for stage in range(stages):
            refs = [self._store(stage, round_, tile) for round_ in self.rounds_of(stage) for tile in range(TILES)]
            commit_stage(context.run, stage, refs)

    def rounds_of(self, stage: int) -> range:
        return range(stage * ROUNDS, (stage + 1) * ROUNDS)

    def _store(self, stage: int, round_: int, tile: int) -> ShardRef:
        ref = store_shard(self.context.run.store, self.context.columns, stage, round_, tile, STEPS, ENVS)
        self.refs[round_, tile] = ref
        return ref

    def loaded(self, stage: int, round_: int, tile: int) -> LoadedShard:
        ref = self.refs.get((round_, tile)) or self._store(stage, round_, tile)
        shard = decode_shard(self.context.run.store.view(ref.name), None, ref.name, ref.digest)
        columns = {name: torch.from_numpy(np.array(value)) for name, value in shard.columns.items()}
        ends = torch.from_numpy(np.array(shard.bootstrap_rows))
        trajectory = Trajectory(columns, ends, torch.from_numpy(np.array(shard.bootstrap_observation)))
        return LoadedShard(ref, lambda: shard.info, trajectory, lambda: None, lambda: None)

    def batch(self, stage: int, round_: int, tile: int) -> dict[str, torch.Tensor]:
        return self.context.algorithm.post({}, self.loaded(stage, round_, tile).trajectory)


def assignment(budget_bytes: int, replica: int = 0, replicas: int = 1, stage: int = 2) -> Assignment:
    names = dict.fromkeys(("store", "run", "gang", "role", "task_run", "cache_folder", "device"), "")
    return Assignment(
        **names,
        stage=stage,
        attempt=0,
        generation=1,
        replica=replica,
        replicas=replicas,
        window_budget_bytes=budget_bytes,
    )


@pytest.mark.parametrize("budget_bytes", [1, 3000, 1 << 20])
@pytest.mark.parametrize(("replica", "replicas"), [(0, 1), (1, 2)])
def test_rows_are_those_of_the_shards(make_context, budget_bytes, replica, replicas):
    """They are those of the learner's tiles, in order of rounds and tiles, as rounds come and leave, at any budget."""
    made = Committed(make_context(SETTINGS), stages=2)
    tiles = range(TILES) if replicas == 1 else range(replica, replica + 1)
    with open_window(assignment(budget_bytes, replica, replicas), made.context, CPU, range(1, 4)) as rows:
        for round_ in (4, 5):
            loaded = [made.loaded(2, round_, tile) for tile in tiles]
            held = range(round_ - 2, round_ + 1)
            rows.add(
                held,
                [item.ref for item in loaded],
                [made.context.algorithm.post({}, item.trajectory) for item in loaded],
            )
            parts = [made.batch(each // ROUNDS, each, tile) for each in held for tile in tiles]
            expected = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
            count = len(expected["action"])
            assert count == 3 * len(tiles) * STEPS * ENVS
            wanted = torch.randint(count, (50,), generator=torch.Generator().manual_seed(round_))
            for index in (wanted, torch.arange(count), wanted[:0]):
                found = rows.take(index)
                assert found.keys() == expected.keys()
                for name, column in expected.items():
                    assert found[name].dtype == column.dtype
                    assert torch.equal(found[name], column[index]), name


def test_drawn_rows_are_verified(make_context):
    """A committed shard that was altered is an error, not rows; and it is not removed: nobody would act it again."""
    made = Committed(make_context(SETTINGS), stages=2)
    victim = made.refs[2, 0]
    data = bytearray(made.context.run.store.read(victim.name))
    data[len(data) // 2] ^= 1
    made.context.run.store.write(victim.name, [memoryview(bytes(data))])
    with ExitStack() as stack:
        rows = stack.enter_context(open_window(assignment(1 << 20), made.context, CPU, range(2, 4)))
        loaded = [made.loaded(2, 4, tile) for tile in range(TILES)]
        rows.add(
            range(2, 5),
            [item.ref for item in loaded],
            [made.context.algorithm.post({}, item.trajectory) for item in loaded],
        )
        with pytest.raises(CorruptObjectError, match=victim.name):
            rows.take(torch.arange(10))
    assert made.context.run.store.exists(victim.name)


def add_round(rows, made: Committed, stage: int, round_: int) -> None:
    loaded = [made.loaded(stage, round_, tile) for tile in range(TILES)]
    batches = [made.context.algorithm.post({}, item.trajectory) for item in loaded]
    rows.add(range(round_ - 2, round_ + 1), [item.ref for item in loaded], batches)


def learn_stage(made: Committed, stage: int, budget_bytes: int) -> None:
    with open_window(assignment(budget_bytes, stage=stage), made.context, CPU, range(2 * stage - 2, 2 * stage)) as rows:
        for round_ in made.rounds_of(stage):
            add_round(rows, made, stage, round_)
            rows.take(torch.arange(3 * TILES * STEPS * ENVS))


def remove_shards(made: Committed) -> None:
    for ref in made.refs.values():
        made.context.run.store.delete([ref.name])


@pytest.mark.parametrize("budget_bytes", [1, 7_000, 1 << 20])
def test_the_next_stage_has_the_rows_of_the_stage_before(make_context, budget_bytes):
    """The rows are the same; if all fit, no shard is read whose rows this process made already."""
    made = Committed(make_context(SETTINGS), stages=2)
    learn_stage(made, 2, budget_bytes)
    commit_stage(made.context.run, 2, [made.refs[round_, tile] for round_ in (4, 5) for tile in range(TILES)])
    parts = [made.batch(round_ // ROUNDS, round_, tile) for round_ in (4, 5, 6) for tile in range(TILES)]
    with open_window(assignment(budget_bytes, stage=3), made.context, CPU, range(4, 6)) as rows:
        add_round(rows, made, 3, 6)
        if budget_bytes == 1 << 20:
            remove_shards(made)
        found = rows.take(torch.arange(3 * TILES * STEPS * ENVS))
    for name, column in found.items():
        assert torch.equal(column, torch.cat([part[name] for part in parts])), name


def test_a_stage_that_is_learned_again_has_its_own_window(make_context):
    """Rounds that left the window are read again, if their stage was learned and not committed."""
    made = Committed(make_context(SETTINGS), stages=2)
    learn_stage(made, 2, 1 << 20)
    parts = [made.batch(round_ // ROUNDS, round_, tile) for round_ in (2, 3, 4) for tile in range(TILES)]
    with open_window(assignment(1 << 20), made.context, CPU, range(2, 4)) as rows:
        add_round(rows, made, 2, 4)
        found = rows.take(torch.arange(3 * TILES * STEPS * ENVS))
    for name, column in found.items():
        assert torch.equal(column, torch.cat([part[name] for part in parts])), name


def test_nothing_is_held_after_a_stage_that_failed(make_context):
    """The next attempt reads every shard: rows in memory may be the reason for the failure."""
    made = Committed(make_context(SETTINGS), stages=2)

    def fail() -> None:
        with open_window(assignment(1 << 20), made.context, CPU, range(2, 4)) as rows:
            add_round(rows, made, 2, 4)
            rows.take(torch.arange(10))
            raise RuntimeError("left")

    with pytest.raises(RuntimeError, match="left"):
        fail()
    with open_window(assignment(1 << 20), made.context, CPU, range(2, 4)) as rows:
        add_round(rows, made, 2, 4)
        remove_shards(made)
        with pytest.raises(ObjectNotFoundError):
            rows.take(torch.arange(10))


def test_rows_are_dropped_when_no_stage_follows(make_context, monkeypatch):
    """A worker that serves other runs later doesn't keep this one's window."""
    monkeypatch.setattr(window_rows, "KEPT_SECONDS", 0.0)
    made = Committed(make_context(SETTINGS), stages=2)
    learn_stage(made, 2, 1 << 20)
    for timer in [each for each in threading.enumerate() if isinstance(each, threading.Timer)]:
        timer.join()
    commit_stage(made.context.run, 2, [made.refs[round_, tile] for round_ in (4, 5) for tile in range(TILES)])
    with open_window(assignment(1 << 20, stage=3), made.context, CPU, range(4, 6)) as rows:
        add_round(rows, made, 3, 6)
        remove_shards(made)
        with pytest.raises(ObjectNotFoundError):
            rows.take(torch.arange(10))
