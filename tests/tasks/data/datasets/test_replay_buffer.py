"""A replay buffer over stored runs: drawn as priorities say, the same whatever is in memory, exact after a resume."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from penstock.storage.errors import ConfigError, CorruptObjectError, LeaseHeldError, RunNotFoundError, SpecMismatchError
from penstock.storage.runs.gc import collect
from penstock.storage.runs.run import RunFolder
from penstock.storage.shards.specs import Spec
from penstock.storage.stores.open import open_store
from penstock.tasks.data.datasets.replay_buffer import ReplayBatch, StoredReplayBuffer

from ....support.stored.synthetic_shards import COLUMNS, commit_stage, fill, make_stage, store_shard

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

STAGES, ROUNDS, TILES, STEPS, ENVS = 3, 2, 3, 8, 4
SHARD_ROWS = STEPS * ENVS
STAGE_ROWS = ROUNDS * TILES * SHARD_ROWS
ROWS = STAGES * STAGE_ROWS
CAPACITY = 10 * STAGE_ROWS
PRIORITISED = {"capacity_rows": CAPACITY, "exponent": 0.6, "correction": 0.4, "seed": 7}


@pytest.fixture
def url(tmp_path: Path) -> str:
    for name in ("one", "two"):
        run = RunFolder(open_store(str(tmp_path)), name)
        run.create({"config": {}})
        for stage in range(STAGES):
            make_stage(run, stage, ROUNDS, TILES, STEPS, ENVS)
    return str(tmp_path)


def grow(url: str, name: str, stage: int) -> None:
    make_stage(RunFolder(open_store(url), name), stage, ROUNDS, TILES, STEPS, ENVS)


def whole(stages: Iterable[int]) -> dict[str, np.ndarray]:
    """All columns of a run's rows by id, made anew, with what followed each row, found step by step."""
    parts: dict[str, list[np.ndarray]] = {name: [] for name in (*COLUMNS, "next_observation")}
    for round_ in (stage * ROUNDS + index for stage in stages for index in range(ROUNDS)):
        for tile in range(TILES):
            arrays = fill(COLUMNS, round_, tile, STEPS, ENVS)
            arrays["terminated"][...] = arrays["truncated"][...] = 0
            arrays["terminated"][0, 1] = 1
            after = np.empty_like(arrays["observation"])
            for step in range(STEPS):
                for env in range(ENVS):
                    # As made_shards stores it: 100 more than the row, at the episode's end and at the round's.
                    ends = step == STEPS - 1 or (step, env) == (0, 1)
                    after[step, env] = 100 + step * ENVS + env if ends else arrays["observation"][step + 1, env]
            for name, array in (*arrays.items(), ("next_observation", after)):
                parts[name].append(array.reshape(SHARD_ROWS, *array.shape[2:]))
    return {name: np.concatenate(arrays) for name, arrays in parts.items()}


def worth(ids: torch.Tensor, turn: int = 0) -> torch.Tensor:
    """Some priority of each row."""
    return (ids * 1.7 + turn).sin().abs() + 0.01


def plain(batch: ReplayBatch) -> tuple[Any, ...]:
    columns = {name: column.tolist() for name, column in batch.columns.items()}
    return batch.ids.tolist(), batch.weights.tolist(), columns


def play(buffer: StoredReplayBuffer, turns: Iterable[int]) -> list[tuple[Any, ...]]:
    """Samples and updates, as a learner makes them."""
    found = []
    for turn in turns:
        batch = buffer.sample(16)
        buffer.update(batch.ids, worth(batch.ids, turn))
        found.append(plain(batch))
    return found


@pytest.mark.parametrize("exponent", [0.0, 0.6])
@pytest.mark.parametrize("columns", [None, ("next_observation", "action"), ("observation", "next_observation")])
def test_a_batch_has_the_rows_that_were_stored(url, columns, exponent):
    """By id, every column as it was written; what followed a row, also at an episode's and a round's end."""
    expected = whole(range(STAGES))
    with StoredReplayBuffer(url, "one", capacity_rows=CAPACITY, columns=columns, exponent=exponent) as buffer:
        assert len(buffer) == ROWS
        seen = set()
        for _ in range(20):
            batch = buffer.sample(100)
            seen |= set(batch.ids.tolist())
            assert list(batch.columns) == list(columns or COLUMNS)
            for name, column in batch.columns.items():
                np.testing.assert_array_equal(column.numpy(), expected[name][batch.ids.numpy()])
                assert column.numpy().dtype == expected[name].dtype
        assert len(seen) > 0.9 * ROWS


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("exponent", "correction"), [(0.0, 1.0), (0.6, 0.4), (1.0, 1.0)])
def test_rows_are_drawn_as_often_as_their_priorities_say(url, seed, exponent, correction):
    """Chi-squared of 40,000 draws against p^alpha / sum, within 6 standard deviations of its mean; Schaul's weights."""
    priorities = np.random.default_rng(seed).uniform(0.05, 3.0, ROWS)
    settings = {"columns": ("action",), "exponent": exponent, "correction": correction, "seed": seed}
    with StoredReplayBuffer(url, "one", capacity_rows=CAPACITY, **settings) as buffer:
        buffer.update(torch.arange(ROWS), torch.from_numpy(priorities))
        batches = [buffer.sample(40) for _ in range(1000)]
    chances = priorities**exponent / (priorities**exponent).sum()
    drawn = np.bincount(torch.cat([batch.ids for batch in batches]).numpy(), minlength=ROWS)
    expected = 40_000 * chances
    assert ((drawn - expected) ** 2 / expected).sum() < ROWS - 1 + 6 * np.sqrt(2 * (ROWS - 1))
    for batch in batches[:20]:
        weights = (1 / (ROWS * chances[batch.ids.numpy()])) ** correction
        np.testing.assert_allclose(batch.weights.numpy(), weights / weights.max(), rtol=1e-5)


def test_the_correction_of_one_sample_can_be_another(url):
    """Weights follow it, as beta grows over training; what is drawn does not."""
    found = []
    for correction in (0.0, torch.tensor(0.5), 1.0):
        with StoredReplayBuffer(url, "one", **PRIORITISED) as buffer:
            buffer.update(torch.arange(ROWS), worth(torch.arange(ROWS)))
            found.append(buffer.sample(50, correction=correction))
    assert found[0].ids.tolist() == found[1].ids.tolist() == found[2].ids.tolist()
    assert found[0].weights.tolist() == [1.0] * 50
    ratio = worth(found[2].ids).double() ** -0.6
    np.testing.assert_allclose(found[1].weights, (ratio / ratio.max()) ** 0.5, rtol=1e-5)
    np.testing.assert_allclose(found[2].weights, ratio / ratio.max(), rtol=1e-5)


@pytest.mark.parametrize("exponent", [0.0, 0.6])
def test_memory_stays_within_the_budget_and_changes_no_sample(url, exponent):
    """The run's shards are many times larger together; budgets that hold less read more, and give the same rows."""
    settings = {**PRIORITISED, "exponent": exponent}
    held: list[tuple[int, int]] = []
    samples = []
    file_bytes = RunFolder(open_store(url), "one").log.read(0).shards[0].nbytes
    shard_bytes = sum(array.nbytes for array in fill(COLUMNS, 0, 0, STEPS, ENVS).values())
    for budget_bytes in (file_bytes + 3 * shard_bytes, file_bytes + 9 * shard_bytes, 1 << 30):
        with StoredReplayBuffer(url, "one", budget_bytes=budget_bytes, **settings) as buffer:
            samples.append(play(buffer, range(30)))
            tally = buffer.tally
        assert tally.peak_bytes <= budget_bytes
        assert 0 < tally.held_bytes <= budget_bytes
        assert tally.reads + tally.hits == sum(len({i // SHARD_ROWS for i in ids}) for ids, _, _ in samples[-1])
        held.append((tally.reads, tally.held_bytes))
    assert samples[0] == samples[1] == samples[2]
    assert held[0][0] > held[1][0] > held[2][0] == STAGES * ROUNDS * TILES
    assert held[0][1] < held[1][1] < held[2][1]


def test_a_shard_that_is_larger_than_the_budget_is_read_and_let_go(url):
    """Alone, since the rows are needed; nothing stays."""
    with StoredReplayBuffer(url, "one", budget_bytes=1, **PRIORITISED) as buffer:
        found = play(buffer, range(3))
        assert buffer.tally.held_bytes == 0
        assert buffer.tally.hits == 0
        assert buffer.tally.peak_bytes < 4 * RunFolder(open_store(url), "one").log.read(0).shards[0].nbytes
    with StoredReplayBuffer(url, "one", **PRIORITISED) as buffer:
        assert play(buffer, range(3)) == found


@pytest.mark.parametrize("runs", ["one", ["two", "one"]])
@pytest.mark.parametrize("capacity_rows", [CAPACITY, 2 * STAGE_ROWS + 40, SHARD_ROWS])
@pytest.mark.parametrize("exponent", [0.0, 0.6])
@pytest.mark.parametrize("cut", [0, 3, 7])
def test_a_resumed_buffer_goes_on_with_the_same_samples(url, runs, capacity_rows, exponent, cut):
    """After any number of samples, updates and refreshes of logs that grow; its state is that of one never stopped."""
    settings = {**PRIORITISED, "capacity_rows": capacity_rows, "exponent": exponent}

    def turns(buffer: StoredReplayBuffer, numbers: range, *, grows: bool) -> list[tuple[Any, ...]]:
        found = []
        for turn in numbers:
            if turn % 3 == 1 and grows:
                grow(url, "one" if turn % 2 else "two", STAGES + turn // 6)
            if turn % 3 == 1:
                buffer.refresh()
            found += play(buffer, [turn])
        return found

    with StoredReplayBuffer(url, runs, **settings) as buffer:
        turns(buffer, range(cut), grows=True)
        stored = io.BytesIO()
        torch.save(buffer.state_dict(), stored)
        after = turns(buffer, range(cut, cut + 1), grows=True)
        expected = buffer.state_dict()
    stored.seek(0)
    state = torch.load(stored, weights_only=True)
    if not exponent:
        state = json.loads(json.dumps(state))
    # What it reads and how much it holds may be other than before.
    resumed = StoredReplayBuffer(url, runs, **{**settings, "seed": 99}, budget_bytes=1 << 14)
    resumed.load_state_dict(state)
    with resumed:
        assert turns(resumed, range(cut, cut + 1), grows=False) == after
        found = resumed.state_dict()
    np.testing.assert_array_equal(found.pop("priorities", 0), expected.pop("priorities", 0))
    assert found == expected


def test_a_state_is_small(url):
    """Priorities and a few numbers: nothing of the rows is in it."""
    with StoredReplayBuffer(url, "one", **PRIORITISED) as buffer:
        buffer.sample(64)
        state = buffer.state_dict()
    assert state.pop("priorities").shape == (ROWS,)
    assert len(json.dumps(state)) < 1000


def test_the_window_follows_a_log_that_grows(url):
    """`refresh` adds the rows committed since, the oldest whole shards leave, and ids stay what they were."""
    capacity_rows = 2 * STAGE_ROWS + 40
    kept = capacity_rows // SHARD_ROWS * SHARD_ROWS
    expected = whole(range(STAGES + 2))
    with StoredReplayBuffer(url, "one", capacity_rows=capacity_rows, columns=("observation", "action")) as buffer:
        assert len(buffer) == kept
        assert buffer.refresh() == 0
        for stage in range(STAGES, STAGES + 2):
            grow(url, "one", stage)
            before = buffer.sample(200)
            assert int(before.ids.max()) < stage * STAGE_ROWS
            assert buffer.refresh() == STAGE_ROWS
            assert len(buffer) == kept
            batch = buffer.sample(200)
            stop = (stage + 1) * STAGE_ROWS
            assert stop - kept <= int(batch.ids.min()) < stop - kept + 20
            assert stop - 20 < int(batch.ids.max()) < stop
            np.testing.assert_array_equal(batch.columns["action"], expected["action"][batch.ids])
    at_once = StoredReplayBuffer(url, "one", capacity_rows=capacity_rows, columns=("observation", "action"))
    with at_once:
        np.testing.assert_array_equal(at_once.sample(200).ids, _first_sample(batch.ids))


def _first_sample(ids: torch.Tensor) -> torch.Tensor:
    """Ids that the first draw of seed 0 gives in the same window, by the stratified formula."""
    bits = np.random.Philox(np.random.SeedSequence([0, 0])).random_raw(len(ids))
    shares = (np.arange(len(ids)) + (bits >> np.uint64(11)) * 2.0**-53) / len(ids)
    rows = (2 * STAGE_ROWS + 40) // SHARD_ROWS * SHARD_ROWS
    return torch.from_numpy((STAGES + 2) * STAGE_ROWS - rows + (shares * rows).astype(np.int64))


def test_new_rows_have_the_largest_priority(url):
    """As often drawn as the row that is worth most; what has priority 0 is never drawn again."""
    with StoredReplayBuffer(url, "one", capacity_rows=CAPACITY, exponent=1.0, columns=("action",)) as buffer:
        ids = torch.arange(ROWS)
        buffer.update(ids, torch.where(ids < 5, 300.0, 0.0))
        assert int(buffer.sample(100).ids.max()) < 5
        grow(url, "one", STAGES)
        buffer.refresh()
        drawn = torch.cat([buffer.sample(100).ids for _ in range(50)])
        assert set(drawn[drawn < ROWS].tolist()) <= set(range(5))
        assert len(set(drawn[drawn >= ROWS].tolist())) == STAGE_ROWS
        assert abs((drawn >= ROWS).double().mean() - STAGE_ROWS / (STAGE_ROWS + 5)) < 0.01


def test_rows_of_several_runs_and_of_some_stages(url):
    """Run after run, in the order named; stages that are not wanted have no ids."""
    part = whole(range(1, STAGES))
    settings = {"stages": range(1, 100), "columns": ("observation", "env_id"), "capacity_rows": CAPACITY}
    with StoredReplayBuffer(url, ["two", "one"], **settings) as buffer:
        assert len(buffer) == 2 * (STAGES - 1) * STAGE_ROWS
        for _ in range(10):
            batch = buffer.sample(60)
            rows = batch.ids.numpy() % len(part["env_id"])
            for name, column in batch.columns.items():
                np.testing.assert_array_equal(column, part[name][rows])
    with StoredReplayBuffer(url, "one", **{**settings, "stages": range(1)}) as buffer:
        grow(url, "one", STAGES)
        assert buffer.refresh() == 0


def test_a_damaged_shard_is_named_and_costs_no_draw(url):
    """Once it is restored, the sample that failed is drawn as if nothing had been."""
    run = RunFolder(open_store(url), "one")
    name = run.store.list("shards/")[3]
    intact = run.store.read(name)
    content = bytearray(intact)
    content[content.index(fill(COLUMNS, 1, 0, STEPS, ENVS)["observation"].tobytes())] ^= 1
    with StoredReplayBuffer(url, "one", **PRIORITISED) as buffer:
        expected = play(buffer, range(5))
    with StoredReplayBuffer(url, "one", **PRIORITISED) as buffer:
        found = play(buffer, range(2))
        buffer._rows.close()  # forget what was read
        run.store.write(name, [content])
        with pytest.raises(CorruptObjectError, match=name):
            buffer.sample(ROWS)
        run.store.write(name, [intact])
        assert found + play(buffer, range(2, 5)) == expected


def test_columns_that_are_not_wanted_are_not_looked_at(url):
    """A damaged one does not disturb those that are."""
    run = RunFolder(open_store(url), "one")
    for name in run.store.list("shards/"):
        content = bytearray(run.store.read(name))
        _, _, round_and_tile = name.split("/")
        round_, tile, _ = round_and_tile.split("-")
        content[content.index(fill(COLUMNS, int(round_), int(tile), STEPS, ENVS)["observation"].tobytes())] ^= 1
        run.store.write(name, [content])
    expected = whole(range(STAGES))["action"]
    with StoredReplayBuffer(url, "one", capacity_rows=CAPACITY, columns=("action",)) as buffer:
        batch = buffer.sample(ROWS)
        np.testing.assert_array_equal(batch.columns["action"], expected[batch.ids])
    with (
        StoredReplayBuffer(url, "one", capacity_rows=CAPACITY, columns=("next_observation",)) as buffer,
        pytest.raises(CorruptObjectError, match="observation"),
    ):
        buffer.sample(1)


def test_what_the_window_needs_is_kept_while_it_is_open(url):
    """Garbage collection refuses to drop it; what the window has moved past, and all after it is closed, may go."""
    run = RunFolder(open_store(url), "one")
    with StoredReplayBuffer(url, "one", capacity_rows=STAGE_ROWS, columns=("action",)) as buffer:
        collect(run, drop_shards_before=STAGES - 1)
        with pytest.raises(LeaseHeldError, match=f"replay-buffer-.* of stages {STAGES - 1} to {STAGES - 1}"):
            collect(run, drop_shards_before=STAGES)
        grow(url, "one", STAGES)
        buffer.refresh()
        collect(run, drop_shards_before=STAGES)
        with pytest.raises(LeaseHeldError, match=f"replay-buffer-.* of stages {STAGES} to {STAGES}"):
            collect(run, drop_shards_before=STAGES + 1)
        buffer.sample(STAGE_ROWS)
        state = buffer.state_dict()
    assert not run.store.list("readers/")
    collect(run, drop_shards_before=STAGES + 1)
    gone = StoredReplayBuffer(url, "one", capacity_rows=STAGE_ROWS, columns=("action",))
    gone.load_state_dict(state)
    with pytest.raises(ConfigError, match="dropped"):
        gone.__enter__()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"exponent": "x"}, "exponent is 'x', expected a number of 0 or more"),
        ({"capacity_rows": 0}, "capacity_rows is 0, expected a whole number of 1 or more"),
        ({"capacity_rows": SHARD_ROWS - 1}, rf"capacity_rows is 31, and 'one/shards/.* has {SHARD_ROWS} rows"),
        ({"budget_bytes": 0}, "budget_bytes is 0"),
        ({"exponent": -0.1}, "exponent is -0.1"),
        ({"correction": float("nan")}, "correction is nan"),
        ({"seed": -1}, "seed is -1"),
        ({"stages": range(0, 9, 2)}, "stages is range"),
        ({"columns": ()}, r"columns is \(\), expected names"),
        ({"runs": ()}, "runs is"),
        ({"runs": ("one", "one")}, "different runs"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(url, wrong, message):
    """Before any shard is read."""
    with pytest.raises(ConfigError, match=message):
        StoredReplayBuffer(url, **{"runs": "one", "capacity_rows": CAPACITY, **wrong})


def test_what_can_not_be_is_refused(url, tmp_path):
    """With what was found, and what to do."""
    with pytest.raises(RunNotFoundError, match="three"):
        StoredReplayBuffer(url, "three", capacity_rows=CAPACITY)
    buffer = StoredReplayBuffer(url, "one", columns=("value", "action"), **PRIORITISED)
    with pytest.raises(RuntimeError, match="not open"):
        buffer.sample(1)
    with buffer, pytest.raises(ConfigError, match="has no value; it has observation"):
        buffer.sample(1)
    with StoredReplayBuffer(url, "one", **PRIORITISED) as buffer:
        with pytest.raises(ValueError, match="0 rows"):
            buffer.sample(0)
        before = buffer.state_dict()["priorities"]
        for bad in (-1.0, float("nan"), float("inf")):
            with pytest.raises(ValueError, match="priorities"):
                buffer.update(torch.arange(2), torch.tensor([1.0, bad]))
        with pytest.raises(ValueError, match=r"ids \[2\] and priorities \[3\]"):
            buffer.update(torch.arange(2), torch.ones(3))
        np.testing.assert_array_equal(buffer.state_dict()["priorities"], before)
    RunFolder(open_store(url), "empty").create({"config": {}})
    with (
        StoredReplayBuffer(url, "empty", **PRIORITISED) as buffer,
        pytest.raises(ConfigError, match=r"empty .* have committed no rows"),
    ):
        buffer.sample(1)


def test_states_of_something_else_are_refused(url):
    """Row ids and priorities would be those of other rows."""
    state = StoredReplayBuffer(url, "one", **PRIORITISED).state_dict()
    for runs, changes, message in (
        ("two", {}, "runs"),
        ("one", {"capacity_rows": 2 * CAPACITY}, "settings"),
        ("one", {"exponent": 0.7}, "settings"),
        ("one", {"stages": range(1)}, "stages"),
    ):
        with pytest.raises(ConfigError, match=message):
            StoredReplayBuffer(url, runs, **{**PRIORITISED, **changes}).load_state_dict(state)
    with pytest.raises(ConfigError, match="format"):
        StoredReplayBuffer(url, "one", **PRIORITISED).load_state_dict({})
    for altered, message in (
        ({name: value for name, value in state.items() if name != "taken"}, "has no taken: it was altered"),
        ({**state, "taken": {}}, "a stage of each run: it was altered"),
        ({**state, "seed": "x"}, "has the seed 'x'"),
    ):
        with pytest.raises(ConfigError, match=message):
            StoredReplayBuffer(url, "one", **PRIORITISED).load_state_dict(altered)
    other = open_store(f"{url}/other")
    for length in (1, STAGES):
        name = f"{url}/other-{length}"
        run = RunFolder(open_store(name), "one")
        run.create({"config": {}})
        for stage in range(length):
            shard = store_shard(run.store, COLUMNS, stage, stage, 0, STAGE_ROWS, 2)
            commit_stage(run, stage, [shard])
        with pytest.raises(ConfigError, match="the state's rows differ"):
            StoredReplayBuffer(name, "one", **PRIORITISED).load_state_dict(state)
    run = RunFolder(other, "one")
    run.create({"config": {}})
    for stage in range(STAGES):
        shards = [
            store_shard(run.store, COLUMNS, stage, 50 + stage * ROUNDS + round_, tile, STEPS, ENVS)
            for round_ in range(ROUNDS)
            for tile in range(TILES)
        ]
        commit_stage(run, stage, shards)
    with pytest.raises(ConfigError, match="created again"):
        StoredReplayBuffer(other.url, "one", **PRIORITISED).load_state_dict(state)


def test_runs_of_other_columns_do_not_mix(url):
    """Named by shard, before values of one type are put where another is expected."""
    run = RunFolder(open_store(url), "wide")
    run.create({"config": {}})
    columns = {**COLUMNS, "observation": Spec("float32", (5,))}
    commit_stage(run, 0, [store_shard(run.store, columns, 0, 0, 0, STEPS, ENVS)])
    with (
        StoredReplayBuffer(url, ["one", "wide"], capacity_rows=CAPACITY) as buffer,
        pytest.raises(SpecMismatchError, match="wide/shards"),
    ):
        buffer.sample(ROWS)
    with StoredReplayBuffer(url, ["one", "wide"], capacity_rows=CAPACITY, columns=("reward",)) as buffer:
        buffer.sample(ROWS)


@pytest.mark.parametrize("form", [{}, {"compression": "lz4"}, {"stacked": True}])
def test_from_s3_only_wanted_columns_are_read(s3_url, form):
    """Fewer bytes than the shards hold, within the budget though several are read at once, and the rows are right."""
    columns = {**COLUMNS, "observation": Spec("uint8", (4, 40, 40), **form)}
    run = RunFolder(open_store(s3_url), "pixels")
    run.create({"config": {}})
    shards = [store_shard(run.store, columns, 0, round_, 0, 32, 4) for round_ in range(6)]
    commit_stage(run, 0, shards)
    stored_bytes = sum(shard.nbytes for shard in shards)
    actions = np.concatenate([fill(columns, round_, 0, 32, 4)["action"].reshape(-1) for round_ in range(6)])
    with StoredReplayBuffer(s3_url, "pixels", capacity_rows=1000, columns=("action", "reward")) as buffer:
        batch = buffer.sample(200)
        np.testing.assert_array_equal(batch.columns["action"], actions[batch.ids])
        tally = buffer.tally
    assert tally.reads == 6
    assert tally.requests >= 6
    assert len(actions) * 12 <= tally.read_bytes
    if not form:
        assert tally.read_bytes < stored_bytes / 5
    assert tally.held_bytes == len(actions) * 12
    wanted = ("observation", "next_observation")
    samples = []
    for budget_bytes in (4 << 20, 1 << 30):
        with StoredReplayBuffer(
            s3_url, "pixels", capacity_rows=1000, columns=wanted, budget_bytes=budget_bytes
        ) as buffer:
            samples.append([plain(buffer.sample(50)) for _ in range(2)])
            assert buffer.tally.peak_bytes <= budget_bytes
    assert samples[0] == samples[1]


@pytest.mark.slow
def test_neither_dask_nor_prefect_is_needed(tmp_path):
    """The learner's process and a notebook use the same class."""
    program = (
        "import sys, penstock.tasks.data.datasets.replay_buffer\n"
        "sys.exit(str({'dask', 'distributed', 'prefect'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "set()"
