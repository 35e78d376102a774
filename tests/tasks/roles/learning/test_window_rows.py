"""Rows of a window, made from committed shards: the same whether they were kept in memory or read again."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from penstock.storage.errors import CorruptObjectError, ObjectNotFoundError
from penstock.storage.runs.reader_claims import recorded_claims
from penstock.storage.runs.run import RunFolder
from penstock.storage.shards.codec import decode_shard
from penstock.tasks.data.input.pipeline import LoadedShard
from penstock.tasks.roles.learning import window_rows
from penstock.tasks.roles.learning.window_rows import continued, open_window
from penstock.tasks.runtime.assignment import Assignment
from penstock.tasks.specs import Trajectory

from ....support.stored.faulty import READS, FaultyStore
from ....support.stored.synthetic_shards import commit_stage, store_shard

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

    def __init__(self, context, stages: int, *, continues: bool = False) -> None:
        self.context, self.continues = context, continues
        self.refs: dict[tuple[int, int], ShardRef] = {}
        for stage in range(stages):
            refs = [self._store(stage, round_, tile) for round_ in self.rounds_of(stage) for tile in range(TILES)]
            commit_stage(context.run, stage, refs)

    def rounds_of(self, stage: int) -> range:
        return range(stage * ROUNDS, (stage + 1) * ROUNDS)

    def _store(self, stage: int, round_: int, tile: int) -> ShardRef:
        store, columns = self.context.run.store, self.context.columns
        ref = store_shard(store, columns, stage, round_, tile, STEPS, ENVS, continues=self.continues)
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


def test_a_window_that_just_fits_is_read_once(make_context):
    """Its ring has memory for all of its rows, though none is left for reading a shard."""
    made = Committed(make_context(SETTINGS), stages=2)
    ring_bytes = 4 * sum(column.nbytes for tile in range(TILES) for column in made.batch(0, 0, tile).values())
    with open_window(assignment(ring_bytes), made.context, CPU, range(1, 4)) as rows:
        loaded = [made.loaded(2, 4, tile) for tile in range(TILES)]
        batches = [made.context.algorithm.post({}, item.trajectory) for item in loaded]
        rows.add(range(1, 5), [item.ref for item in loaded], batches)
        every = torch.arange(4 * TILES * STEPS * ENVS)
        first = rows.take(every)
        remove_shards(made)
        for name, column in rows.take(every).items():
            assert torch.equal(column, first[name]), name


class Waited(Future):
    """A shard that is stored as soon as somebody waits for it."""

    def __init__(self, ref: ShardRef) -> None:
        super().__init__()
        self.ref = ref

    def result(self, timeout=None) -> ShardRef:
        if not self.done():
            self.set_result(self.ref)
        return super().result(timeout)


def add_unstored_round(rows, made: Committed, stage: int, round_: int) -> list[Waited]:
    loaded = [made.loaded(stage, round_, tile) for tile in range(TILES)]
    shards = [Waited(item.ref) for item in loaded]
    batches = [made.context.algorithm.post({}, item.trajectory) for item in loaded]
    rows.add(range(round_ - 2, round_ + 1), shards, batches)
    return shards


def test_a_round_is_learned_before_it_is_stored(make_context):
    """The next round waits for it, and so does the next stage, which has its rows without reading it."""
    made = Committed(make_context(SETTINGS), stages=2)
    with open_window(assignment(1 << 20, stage=2), made.context, CPU, range(2, 4)) as rows:
        add_round(rows, made, 2, 4)
        rows.take(torch.arange(3 * TILES * STEPS * ENVS))
        newest = add_unstored_round(rows, made, 2, 5)
        assert not any(shard.done() for shard in newest)
        found = rows.take(torch.arange(3 * TILES * STEPS * ENVS))
        parts = [made.batch(round_ // ROUNDS, round_, tile) for round_ in (3, 4, 5) for tile in range(TILES)]
        for name, column in found.items():
            assert torch.equal(column, torch.cat([part[name] for part in parts])), name
        assert not any(shard.done() for shard in newest)
    commit_stage(made.context.run, 2, [made.refs[round_, tile] for round_ in (4, 5) for tile in range(TILES)])
    with open_window(assignment(1 << 20, stage=3), made.context, CPU, range(4, 6)) as rows:
        assert all(shard.done() for shard in newest)
        newer = add_unstored_round(rows, made, 3, 6)
        newest = add_unstored_round(rows, made, 3, 7)
        assert [shard.done() for shard in (*newer, *newest)] == [True] * TILES + [False] * TILES
        parts = [made.batch(round_ // ROUNDS, round_, tile) for round_ in (5, 6, 7) for tile in range(TILES)]
        remove_shards(made)
        for name, column in rows.take(torch.arange(3 * TILES * STEPS * ENVS)).items():
            assert torch.equal(column, torch.cat([part[name] for part in parts])), name


def test_a_round_that_may_have_to_be_read_is_waited_for(make_context):
    """Its rows are made again from its shards if the window does not fit into the budget."""
    made = Committed(make_context(SETTINGS), stages=2)
    with open_window(assignment(1), made.context, CPU, range(2, 4)) as rows:
        add_round(rows, made, 2, 4)
        assert all(shard.done() for shard in add_unstored_round(rows, made, 2, 5))


def test_a_round_that_could_not_be_stored_ends_the_next_one(make_context):
    """Nothing is learned beyond it, as nothing may be committed."""
    made = Committed(make_context(SETTINGS), stages=2)
    with open_window(assignment(1 << 20), made.context, CPU, range(2, 4)) as rows:
        add_round(rows, made, 2, 4)
        for shard in add_unstored_round(rows, made, 2, 5):
            shard.set_exception(OSError("no space"))
        with pytest.raises(OSError, match="no space"):
            add_round(rows, made, 3, 6)


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


@pytest.mark.parametrize(("rounds", "claimed"), [(range(1, 4), [(0, 1)]), (range(2, 4), [(1, 1)]), (range(0), [])])
def test_committed_shards_are_claimed_while_a_stage_learns(make_context, rounds, claimed):
    """Garbage collection keeps the shards of the window's stages until then; a first stage has nothing to claim."""
    made = Committed(make_context(SETTINGS), stages=2)
    given = assignment(1 << 20, stage=2 if rounds else 0)
    with open_window(given, made.context, CPU, rounds):
        claims = recorded_claims(made.context.run.store)
    assert [(claim.first, claim.last) for claim in claims] == claimed
    assert all(claim.shards for claim in claims)
    assert recorded_claims(made.context.run.store) == []


def test_a_shard_that_the_node_keeps_is_not_read_from_a_remote_store(make_context):
    """The node's cache has the same bytes; a shard that it lacks is read from the store."""
    context = make_context(SETTINGS)
    store = FaultyStore(context.run.root)
    made = Committed(replace(context, run=RunFolder(store, context.run.name)), stages=2)
    kept, other = made.refs[2, 0], made.refs[2, 1]
    context.cache.put(made.context.run.store, kept, [made.context.run.store.view(kept.name)])
    with open_window(assignment(1), made.context, CPU, range(2, 4)) as rows:
        expected = torch.cat([made.batch(1, 2, tile)["observation"] for tile in range(TILES)])
        before = len(store.calls)
        found = rows.take(torch.arange(TILES * STEPS * ENVS))
        read = [call.name.removeprefix("small/") for call in store.calls[before:] if call.operation in READS]
    assert torch.equal(found["observation"], expected)
    assert read == [other.name]


def test_a_window_is_not_kept_for_another_run(make_context):
    """One that ends after this process has begun another run is dropped: it holds the shards of its own run."""
    first, second = (Committed(make_context(SETTINGS, name), stages=2) for name in ("first", "second"))
    with open_window(assignment(1 << 20), first.context, CPU, range(2, 4)) as rows:
        with open_window(assignment(1 << 19), second.context, CPU, range(2, 4)):
            pass
        every = torch.arange(2 * TILES * STEPS * ENVS)
        rows.take(every)
    remove_shards(first)
    with pytest.raises(ObjectNotFoundError):
        rows.take(every)
    with open_window(assignment(1 << 20), second.context, CPU, range(2, 4)) as others:
        assert others is not rows
        others.take(every)


def test_one_window_is_kept_of_two_that_end(make_context):
    """An attempt that ends after the next one has ended holds nothing: the next stage goes on with the other's rows."""
    made = Committed(make_context(SETTINGS), stages=2)
    every = torch.arange(2 * TILES * STEPS * ENVS)
    with open_window(assignment(1 << 20), made.context, CPU, range(2, 4)) as later:
        later.take(every)
        with open_window(assignment(1 << 20), made.context, CPU, range(2, 4)) as earlier:
            expected = earlier.take(every)
    remove_shards(made)
    with pytest.raises(ObjectNotFoundError):
        later.take(every)
    with open_window(assignment(1 << 20), made.context, CPU, range(2, 4)) as kept:
        assert kept is earlier
        for name, column in kept.take(every).items():
            assert torch.equal(column, expected[name]), name


def acted(steps: int, seed: int) -> dict[str, torch.Tensor]:
    """Columns of two environments, in which every fifth step ends an episode, one way or the other."""
    generator = torch.Generator().manual_seed(seed)
    ends = torch.arange(steps).unsqueeze(1).add(torch.tensor([0, 2])) % 5 == 4
    return {
        "observation": torch.randn(steps, 2, 4, generator=generator),
        "reward": torch.randn(steps, 2, generator=generator),
        "terminated": (ends & torch.tensor([True, False])).byte(),
        "truncated": (ends & torch.tensor([False, True])).byte(),
        "action": torch.randint(2, (steps, 2), generator=generator),
        "episode_id": ends.int().cumsum(0) - ends.int(),
    }


def part_of(columns: dict[str, torch.Tensor], start: int, stop: int) -> Trajectory:
    """Steps from `start` to `stop` as a round, with what followed each row that has no successor in it."""
    ends = (columns["terminated"] | columns["truncated"])[start:stop].bool()
    ends[-1] = True
    rows = ends.flatten().nonzero().squeeze(-1)
    true_end = (columns["terminated"] | columns["truncated"])[start:stop].flatten()[rows].bool()
    following = columns["observation"].roll(-1, 0)[start:stop].flatten(0, 1)[rows]
    following[true_end] = 100.0 + rows[true_end].float().add(2 * start).unsqueeze(-1)
    return Trajectory({name: column[start:stop].clone() for name, column in columns.items()}, rows, following)


@pytest.mark.parametrize(("return_steps", "round_steps"), [(2, 8), (4, 8), (9, 8), (4, 10)])
def test_returns_continue_in_the_next_round(make_context, return_steps, round_steps):
    """Rows of a round with the steps after it are those of one long trajectory, whether or not an episode ends."""
    changes = {"return_steps": return_steps, "returns_across_rounds": True}
    algorithm = make_context({**SETTINGS, "algorithm": {**SETTINGS["algorithm"], **changes}}).algorithm
    assert algorithm.window.steps_after == return_steps - 1
    columns = acted(3 * round_steps, seed=3)
    rounds = [part_of(columns, start, start + round_steps) for start in (0, round_steps)]
    found = algorithm.post({}, continued(*rounds, return_steps - 1))
    whole = algorithm.post({}, part_of(columns, 0, 3 * round_steps))
    alone = algorithm.post({}, rounds[0])
    rows = 2 * round_steps
    for name, column in whole.items():
        torch.testing.assert_close(found[name][:rows], column[:rows], msg=name)
    assert not torch.equal(alone["return"], whole["return"][:rows])


@pytest.mark.parametrize("budget_bytes", [1, 7_000, 1 << 20])
def test_rows_are_the_same_where_another_process_learned_the_stage_between(make_context, budget_bytes):
    """The newest round of the stage that was learned here has one behind it by the time of the next one here."""
    changes = {"return_steps": 3, "returns_across_rounds": True, "window_rows": 240}
    context = make_context({**SETTINGS, "algorithm": {**SETTINGS["algorithm"], **changes}})
    made = Committed(context, stages=2, continues=True)

    def stage(number: int) -> dict[str, torch.Tensor]:
        before = range(max(0, 2 * number - 4), 2 * number)
        with open_window(assignment(budget_bytes, stage=number), made.context, CPU, before) as rows:
            for round_ in made.rounds_of(number):
                loaded = [made.loaded(number, round_, tile) for tile in range(TILES)]
                batches = [made.context.algorithm.post({}, item.trajectory) for item in loaded]
                rows.add(range(round_ - 4, round_ + 1), [item.ref for item in loaded], batches)
            return {name: column.clone() for name, column in rows.take(torch.arange(5 * TILES * STEPS * ENVS)).items()}

    stage(2)
    for number in (2, 3):
        for round_ in made.rounds_of(number):
            for tile in range(TILES):
                made.loaded(number, round_, tile)
        refs = [made.refs[round_, tile] for round_ in made.rounds_of(number) for tile in range(TILES)]
        commit_stage(made.context.run, number, refs)
    found = stage(4)
    window_rows._between.take(make_context(name="another"), ())  # nothing is held now
    for name, column in stage(4).items():
        assert torch.equal(found[name], column), name


def test_an_environment_that_began_anew_does_not_continue(make_context):
    """It could not save its state: the episode of the next round is another, though none ended."""
    changes = {"return_steps": 3, "returns_across_rounds": True}
    algorithm = make_context({**SETTINGS, "algorithm": {**SETTINGS["algorithm"], **changes}}).algorithm
    columns = acted(16, seed=4)
    first, second = part_of(columns, 0, 8), part_of(columns, 8, 16)
    second.columns["episode_id"] += 1000
    found, alone = algorithm.post({}, continued(first, second, 2)), algorithm.post({}, first)
    for name, column in alone.items():
        assert torch.equal(found[name][:16], column), name


@pytest.mark.parametrize("budget_bytes", [1, 4000, 1 << 20])
@pytest.mark.parametrize("first", [4, 6])
def test_rows_with_steps_after_them_are_the_same_at_any_budget_and_after_a_resume(make_context, budget_bytes, first):
    """All rounds but the newest have steps of the next one, of whichever stage, and a resume finds the same rows."""
    changes = {"return_steps": 3, "returns_across_rounds": True}
    context = make_context({**SETTINGS, "algorithm": {**SETTINGS["algorithm"], **changes}})
    made = Committed(context, stages=3, continues=True)
    algorithm = made.context.algorithm
    given = replace(assignment(budget_bytes), stage=first // ROUNDS)
    with open_window(given, made.context, CPU, range(first - 3, first)) as rows:
        for round_ in range(first, 7):
            loaded = [made.loaded(round_ // ROUNDS, round_, tile) for tile in range(TILES)]
            batches = [algorithm.post({}, item.trajectory) for item in loaded]
            rows.add(range(round_ - 2, round_ + 1), [item.ref for item in loaded], batches)
            found = rows.take(torch.arange(3 * TILES * STEPS * ENVS))
    parts = []
    for round_ in (4, 5, 6):
        for tile in range(TILES):
            own = made.loaded(round_ // ROUNDS, round_, tile).trajectory
            if round_ < 6:
                own = continued(own, made.loaded((round_ + 1) // ROUNDS, round_ + 1, tile).trajectory, 2)
            parts.append({name: column[: STEPS * ENVS] for name, column in algorithm.post({}, own).items()})
    for name, column in found.items():
        assert torch.equal(column, torch.cat([part[name] for part in parts])), name
