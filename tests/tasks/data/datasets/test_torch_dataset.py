"""Stored runs as a torch dataset: every row once, the same for any number of readers, exact after a stop."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from penstock.storage.errors import ConfigError, CorruptObjectError, RunNotFoundError, SpecMismatchError
from penstock.storage.runs.run import RunFolder
from penstock.storage.shards.specs import Spec
from penstock.storage.stores.local import LocalStore
from penstock.storage.stores.open import open_store
from penstock.tasks.data.datasets import torch_dataset
from penstock.tasks.data.datasets.replay_buffer import StoredReplayBuffer
from penstock.tasks.data.datasets.shard_windows import ShardWindow, concatenated
from penstock.tasks.data.datasets.torch_dataset import TrajectoryDataset
from penstock.tasks.data.input.pipeline import ShardPipeline

from ....support.stored.synthetic_shards import COLUMNS, commit_stage, fill, make_stage, store_shard

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.context import BaseContext

GOLDEN = Path(__file__).parents[3] / "golden"
STAGES, ROUNDS, TILES, STEPS, ENVS = 2, 2, 3, 4, 2
SHARDS, ROWS = STAGES * ROUNDS * TILES, STAGES * ROUNDS * TILES * STEPS * ENVS
MIXED = {"shuffle": "rows", "window_shards": 2, "lanes": 4, "batch_rows": 5, "seed": 3}
MORE_WORKERS_THAN_CORES = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

Batches = list[dict[str, torch.Tensor]]


@pytest.fixture
def forked() -> BaseContext:
    """Workers come from one process that has imported torch, instead of importing it each."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["penstock.tasks.data.datasets.torch_dataset"])
    return context


@pytest.fixture
def url(tmp_path: Path) -> str:
    for name in ("one", "two"):
        run = RunFolder(open_store(str(tmp_path)), name)
        run.create({"config": {}})
        for stage in range(STAGES):
            make_stage(run, stage, ROUNDS, TILES, STEPS, ENVS)
    return str(tmp_path)


def plain(batches: Any) -> list[dict[str, list[Any]]]:
    return [{name: column.tolist() for name, column in batch.items()} for batch in batches]


def stored_rows() -> list[tuple[float, int]]:
    """(first number of the observation, environment) of every row of a run, in the order of the log."""
    found = []
    for round_ in range(STAGES * ROUNDS):
        for tile in range(TILES):
            arrays = fill(COLUMNS, round_, tile, STEPS, ENVS)
            observation = arrays["observation"].reshape(-1, 3)[:, 0].tolist()
            found += zip(observation, arrays["env_id"].reshape(-1).tolist(), strict=True)
    return found


def rows_of(batches: Batches) -> list[tuple[float, int]]:
    return [
        row
        for batch in batches
        for row in zip(batch["observation"][:, 0].tolist(), batch["env_id"].tolist(), strict=True)
    ]


def test_without_shuffling_rows_come_as_they_were_stored(url):
    """All columns, of their stored types, across batches that are no whole shards."""
    dataset = TrajectoryDataset(url, "one", batch_rows=7)
    batches = list(dataset)
    assert rows_of(batches) == stored_rows()
    assert len(dataset) == len(batches) == -(-ROWS // 7)
    assert {name: column.dtype for name, column in batches[0].items()} == {
        "observation": torch.float32,
        "reward": torch.float32,
        "terminated": torch.uint8,
        "truncated": torch.uint8,
        "action": torch.int64,
        "env_id": torch.int32,
    }
    tally = dataset.tally
    assert tally is not None
    assert tally.shards == SHARDS


def test_shards_are_read_while_the_stages_are_claimed(url, monkeypatch):
    """The first batch waits for both, and not for one after the other."""
    read = threading.Event()

    class Store(LocalStore):
        def view(self, name: str) -> memoryview:
            read.set()
            return super().view(name)

        def at(self, prefix: str) -> Store:
            return Store(super().at(prefix).url)

    @contextmanager
    def claims(store: Store, *_: Any, **__: Any) -> Iterator[None]:
        assert read.wait(150)
        yield

    monkeypatch.setattr(torch_dataset, "open_store", Store)
    monkeypatch.setattr(torch_dataset, "reading", claims)
    assert rows_of(list(TrajectoryDataset(url, "one"))) == stored_rows()


@pytest.mark.parametrize("shuffle", ["shards", "rows"])
def test_shuffled_epochs_are_every_row_once(url, shuffle):
    """Each in an order of its own, the same whenever it is read."""
    dataset = TrajectoryDataset(url, "one", batch_rows=5, shuffle=shuffle, window_shards=3)
    first = rows_of(list(dataset))
    assert rows_of(list(dataset)) == first
    dataset.set_epoch(1)
    second = rows_of(list(dataset))
    assert first != second != stored_rows()
    assert sorted(first) == sorted(second) == sorted(stored_rows())


@MORE_WORKERS_THAN_CORES
def test_workers_change_nothing(url, forked):
    """A DataLoader with workers gives the very batches, in the very order, that the dataset alone gives."""
    dataset = TrajectoryDataset(url, "one", **MIXED)
    alone = plain(dataset)
    loader = DataLoader(dataset, batch_size=None, num_workers=3, multiprocessing_context=forked)
    assert plain(loader) == alone


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_ranks_together_read_what_one_reads(url, ranks):
    """Turn by turn: the batches of all ranks, in order, are those of one reader."""
    whole = plain(TrajectoryDataset(url, "one", **MIXED))
    parts = [plain(TrajectoryDataset(url, "one", rank=rank, ranks=ranks, **MIXED)) for rank in range(ranks)]
    assert [parts[index % ranks][index // ranks] for index in range(len(whole))] == whole
    assert sum(map(len, parts)) == len(whole)


@pytest.mark.parametrize("ranks_after", [1, 2, 3])
@pytest.mark.parametrize("taken", [0, 1, 4])
def test_a_state_is_gone_on_from_exactly(url, taken, ranks_after):
    """Stored by two ranks in the middle of an epoch, loaded by any number: no row is skipped, none read twice."""
    whole = plain(TrajectoryDataset(url, "one", **MIXED))
    states = []
    for rank in range(2):
        dataset = TrajectoryDataset(url, "one", rank=rank, ranks=2, **MIXED)
        reading = iter(dataset)
        for _ in range(taken):
            next(reading)
        states.append(json.loads(json.dumps(dataset.state_dict())))
        reading.close()
    assert states[0] == states[1]
    left = []
    for rank in range(ranks_after):
        dataset = TrajectoryDataset(url, "one", rank=rank, ranks=ranks_after, **{**MIXED, "seed": 99})
        dataset.load_state_dict(states[0])
        left.append(plain(dataset))
        assert len(dataset) == len(left[-1])
    count = sum(map(len, left))
    assert [left[index % ranks_after][index // ranks_after] for index in range(count)] == whole[2 * taken :]


def test_a_state_of_other_commits_is_refused(url, tmp_path):
    """A store may lack the newest ones, or have those of a run that was trained again: the cursor counts other rows."""
    state = json.loads(json.dumps(TrajectoryDataset(url, "one", batch_rows=5).state_dict()))
    other = RunFolder(open_store(str(tmp_path / "other")), "one")
    other.create({"config": {}})
    make_stage(other, 0, ROUNDS, TILES, STEPS, ENVS)
    dataset = TrajectoryDataset(str(tmp_path / "other"), "one", batch_rows=5)
    with pytest.raises(ConfigError, match=r"had committed stage 1, and in .* it has committed stages 0 to 0"):
        dataset.load_state_dict(state)
    commit_stage(other, 1, [store_shard(other.store, COLUMNS, 1, ROUNDS, 0, STEPS, ENVS)])
    with pytest.raises(ConfigError, match="another commit of stage 1 of run 'one'"):
        dataset.load_state_dict(state)
    del state["digests"]  # as earlier versions stored it
    dataset.load_state_dict(state)


@pytest.mark.parametrize(
    ("altered", "said"),
    [({"epoch": None}, "epoch is None, expected 0"), ({"cursor": -1}, "cursor is -1"), ({"seed": "a"}, "seed is 'a'")],
)
def test_an_altered_state_is_refused(url, altered, said):
    """By the name of what is wrong; so is one that lacks something."""
    dataset = TrajectoryDataset(url, "one")
    with pytest.raises(ConfigError, match=said):
        dataset.load_state_dict({**dataset.state_dict(), **altered})
    with pytest.raises(ConfigError, match="the state has no cursor"):
        dataset.load_state_dict({name: value for name, value in dataset.state_dict().items() if name != "cursor"})


@pytest.mark.parametrize("changed", [{"reward": Spec("float64")}, {"observation": Spec("float32", (5,))}])
@pytest.mark.parametrize("shuffle", ["none", "rows"])
def test_runs_with_other_types_are_refused(url, changed, shuffle):
    """Batches of an epoch would have several dtypes, or widths that can't be joined."""
    run = RunFolder(open_store(url), "three")
    run.create({"config": {}})
    commit_stage(run, 0, [store_shard(run.store, {**COLUMNS, **changed}, 0, 0, 0, STEPS, ENVS)])
    (name,) = changed
    with pytest.raises(SpecMismatchError, match=f"'{name}' is .* in one and .* in another"):
        list(TrajectoryDataset(url, ["one", "three"], batch_rows=5, shuffle=shuffle))


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "uint64"])
def test_rows_of_wide_unsigned_numbers_are_shuffled(tmp_path, dtype):
    """All of them, bit for bit; torch can't index them by itself."""
    run = RunFolder(open_store(str(tmp_path)), "wide")
    run.create({"config": {}})
    commit_stage(run, 0, [store_shard(run.store, {**COLUMNS, "observation": Spec(dtype, (3,))}, 0, 0, 0, STEPS, ENVS)])
    plainly, shuffled = (
        torch.cat([batch["observation"] for batch in TrajectoryDataset(str(tmp_path), "wide", shuffle=shuffle, seed=1)])
        for shuffle in ("none", "rows")
    )
    assert str(shuffled.dtype) == f"torch.{dtype}"
    assert plainly.tolist() != shuffled.tolist()
    assert sorted(plainly.tolist()) == sorted(shuffled.tolist())


@pytest.fixture
def images(tmp_path: Path) -> RunFolder:
    """A run whose batches are large, so that they are copied otherwise than those of small rows."""
    columns = {**COLUMNS, "observation": Spec("uint8", (84, 84))}
    run = RunFolder(open_store(str(tmp_path)), "images")
    run.create({"config": {}})
    commit_stage(run, 0, [store_shard(run.store, columns, 0, 0, tile, STEPS, ENVS) for tile in range(TILES)])
    return run


@pytest.mark.parametrize("batch_rows", [5, 8, 20])
def test_large_batches_are_the_stored_rows(images, tmp_path, batch_rows):
    """Within a shard, a whole one, and over several."""
    columns = {"observation": Spec("uint8", (84, 84))}
    stored = [fill(columns, 0, tile, STEPS, ENVS)["observation"].reshape(-1, 84, 84) for tile in range(TILES)]
    found = [batch["observation"] for batch in TrajectoryDataset(str(tmp_path), "images", batch_rows=batch_rows)]
    assert (torch.cat(found).numpy() == np.concatenate(stored)).all()


def test_large_batches_are_the_callers_own(images):
    """As small ones: they stay when the shard's memory is overwritten, whether of one shard or of several."""
    with ShardPipeline(images.log.shard_refs(), images.store) as pipeline:
        loaded = pipeline.take()
        column = loaded.trajectory.columns["observation"]
        window = ShardWindow([loaded], None)
        whole, spanning = window.rows(slice(0, 8)), concatenated([window.part(slice(2, 8)), window.part(slice(0, 2))])
        expected = column.flatten(0, 1).clone()
        column.fill_(255)
        assert (whole["observation"] == expected).all()
        assert (spanning["observation"] == torch.cat([expected[2:], expected[:2]])).all()


@MORE_WORKERS_THAN_CORES
def test_a_state_with_workers_needs_the_loops_count(url, forked):
    """Workers read ahead; what the loop took decides, and a guess is refused."""
    whole = plain(TrajectoryDataset(url, "one", **MIXED))
    dataset = TrajectoryDataset(url, "one", **MIXED)
    loader = iter(DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=forked))
    for _ in range(3):
        next(loader)
    with pytest.raises(ConfigError, match="batches="):
        dataset.state_dict()
    resumed = TrajectoryDataset(url, "one", **MIXED)
    resumed.load_state_dict(dataset.state_dict(batches=3))
    assert plain(resumed) == whole[3:]
    # A loop in this process knows its position again.
    here = iter(dataset)
    next(here)
    assert dataset.state_dict() == dataset.state_dict(batches=1)


def test_an_epoch_covers_what_was_committed_when_it_began(url):
    """The log grows meanwhile: this epoch, and a state of it, stay as they were; the next epoch has the new rows."""
    dataset = TrajectoryDataset(url, "one", **MIXED)
    before, state = plain(dataset), dataset.state_dict(batches=2)
    make_stage(RunFolder(open_store(url), "one"), STAGES, ROUNDS, TILES, STEPS, ENVS)
    assert plain(dataset) == before
    later = TrajectoryDataset(url, "one", **MIXED)
    assert len(rows_of(list(later))) == ROWS * (STAGES + 1) // STAGES
    later.load_state_dict(state)
    assert plain(later) == before[2:]
    later.set_epoch(0)
    assert plain(later) == before[2:]
    dataset.set_epoch(1)
    assert len(rows_of(list(dataset))) == ROWS * (STAGES + 1) // STAGES


def test_stages_and_columns_can_be_chosen(url):
    """Stages and columns that are not chosen are not read."""
    dataset = TrajectoryDataset(url, "one", batch_rows=ROWS, columns=("action", "observation"), stages=range(1, 2))
    (batch,) = dataset
    assert list(batch) == ["action", "observation"]
    assert batch["observation"][:, 0].tolist() == [row[0] for row in stored_rows()[ROWS // 2 :]]
    assert dataset.tally is not None
    assert dataset.tally.shards == SHARDS // 2
    assert list(TrajectoryDataset(url, "one", stages=range(0))) == []


def test_the_next_observation_is_what_followed(url):
    """The row of the same environment one step later; at an end, of an episode or the round, what was seen there."""
    dataset = TrajectoryDataset(url, "one", batch_rows=STEPS * ENVS, columns=("observation", "next_observation"))
    batch = next(iter(dataset))
    observation, successor = batch["observation"], batch["next_observation"]
    ends = [1, *range((STEPS - 1) * ENVS, STEPS * ENVS)]
    for row in range(STEPS * ENVS):
        expected = [100.0 + row] * 3 if row in ends else observation[row + ENVS].tolist()
        assert successor[row].tolist() == expected


def test_several_runs_are_one_dataset(url):
    """One after another where nothing is shuffled."""
    assert rows_of(list(TrajectoryDataset(url, ["two", "one"], batch_rows=9))) == stored_rows() * 2


def test_with_drop_last_every_rank_has_as_many_whole_batches(url):
    """Collectives in the training step would wait for ever otherwise."""
    settings = {**MIXED, "batch_rows": 10, "lanes": 3}
    parts = [list(TrajectoryDataset(url, "one", rank=rank, ranks=4, drop_last=True, **settings)) for rank in range(4)]
    assert len({len(part) for part in parts}) == 1
    assert {len(batch["action"]) for part in parts for batch in part} == {10}


@pytest.mark.parametrize("chosen", [slice(0, 3), slice(2, 7), np.array([4, 1])])
def test_batches_are_the_callers_own(url, chosen):
    """A batch stays what it was when the shard's memory, which is used for other shards later, is overwritten."""
    run = RunFolder(open_store(url), "one")
    with ShardPipeline(run.log.shard_refs(), run.store) as pipeline:
        loaded = pipeline.take()
        column = loaded.trajectory.columns["observation"]
        window = ShardWindow([loaded], None)
        batch = window.rows(chosen)
        expected = column.flatten(0, 1)[chosen].clone()
        column.fill_(-1.0)
        assert (batch["observation"] == expected).all()


@pytest.mark.parametrize("batch_rows", [1, 3, 8, 11])
@pytest.mark.parametrize("shuffle", ["none", "rows"])
def test_writing_to_a_batch_changes_no_other(url, batch_rows, shuffle):
    """Not one that is still to come, and nothing that is stored; whatever the size of batches."""
    settings = {"batch_rows": batch_rows, "shuffle": shuffle, "window_shards": 2}
    expected = [batch["observation"].clone() for batch in TrajectoryDataset(url, "one", **settings)]
    for _ in range(2):
        found = []
        for batch in TrajectoryDataset(url, "one", **settings):
            found.append(batch["observation"].clone())
            batch["observation"].fill_(-1.0)
        assert all((one == other).all() for one, other in zip(found, expected, strict=True))


def test_a_damaged_shard_is_named_and_stays(url):
    """A reader of somebody else's run removes nothing."""
    run = RunFolder(open_store(url), "one")
    name = run.store.list("shards/")[3]
    content = bytearray(run.store.read(name))
    content[content.index(fill(COLUMNS, 1, 0, STEPS, ENVS)["observation"].tobytes())] ^= 1
    run.store.write(name, [content])
    with pytest.raises(CorruptObjectError, match=name):
        list(TrajectoryDataset(url, "one"))
    assert run.store.exists(name)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"stages": [0]}, r"stages is \[0\], expected a range of consecutive stages"),
        ({"stages": 0}, r"stages is 0, expected a range"),
        ({"stages": range(-3, 1)}, r"stages is range\(-3, 1\), expected a range"),
        ({"runs": 3}, r"runs is 3, expected the names"),
        ({"runs": [3]}, r"runs is \[3\], expected the names"),
        ({"seed": -1}, r"seed is -1, expected a whole number of 0 or more"),
        ({"seed": 1.5}, r"seed is 1\.5, expected a whole number of 0 or more"),
        ({"runs": ["one", "one"]}, r"runs is \['one', 'one'\], expected the names of one or several different runs"),
        ({"runs": []}, r"runs is \[\], expected the names"),
        ({"columns": "reward"}, r"columns is 'reward', expected names of columns, such as \['reward'\]"),
        ({"columns": []}, r"columns is \[\], expected names"),
        ({"batch_rows": "512"}, r"batch_rows is '512', expected a whole number of 1 or more"),
        ({"lanes": 1.5}, r"lanes is 1\.5, expected a whole number"),
        ({"columns": (1,)}, r"columns is \(1,\), expected names of columns"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(url, wrong, message):
    """When the dataset is made, and not where a loop reads it."""
    with pytest.raises(ConfigError, match=message):
        TrajectoryDataset(url, **{"runs": "one", **wrong})


@pytest.mark.parametrize("state", [None, "x"])
def test_a_state_that_is_no_table_is_refused(url, state):
    """By both readers."""
    with pytest.raises(ConfigError, match=f"the state is {state!r}, expected what state_dict"):
        TrajectoryDataset(url, "one").load_state_dict(state)
    with pytest.raises(ConfigError, match=f"the state is {state!r}, expected what state_dict"):
        StoredReplayBuffer(url, "one", capacity_rows=1000).load_state_dict(state)


def test_a_loop_over_nothing_is_refused(url, tmp_path):
    """It would end at once, and have learned nothing."""
    dataset = TrajectoryDataset(url, "one", stages=range(70, 80))
    assert len(dataset) == 0
    with pytest.raises(ConfigError, match=r"no rows of the requested stages .*run 'one' has committed stages 0 to \d+"):
        next(iter(dataset))
    RunFolder(open_store(tmp_path), "new").create({"created": "now"})
    with pytest.raises(ConfigError, match=r"run 'new' has committed nothing"):
        next(iter(TrajectoryDataset(str(tmp_path), "new")))


def test_a_replay_has_no_rows_and_says_whose_it_read(tmp_path):
    """Its stages are committed, so there is nothing to wait for."""
    shutil.copytree(GOLDEN / "replayed", tmp_path / "replayed")
    said = "run 'replayed' is a replay, which stores no shards; name the runs that it read: golden"
    with pytest.raises(ConfigError, match=said):
        next(iter(TrajectoryDataset(str(tmp_path), "replayed")))
    buffer = StoredReplayBuffer(str(tmp_path), "replayed", capacity_rows=9)
    with buffer, pytest.raises(ConfigError, match=said):
        buffer.sample(1)


def test_settings_of_numpys_numbers_give_states_of_json(url):
    made = {"batch_rows": np.int64(7), "lanes": np.int32(2), "seed": np.uint8(3)}
    dataset = TrajectoryDataset(url, "one", **made)
    dataset.set_epoch(np.int64(2))
    state = json.loads(json.dumps(dataset.state_dict()))
    again = TrajectoryDataset(url, "one", **made)
    again.load_state_dict(state)
    assert again.epoch == 2
    buffer = StoredReplayBuffer(url, "one", capacity_rows=1e3, seed=np.int64(5))
    json.dumps(buffer.state_dict())


def test_what_can_not_be_is_refused(url):
    """By name, and before anything is read where that can be known."""
    with pytest.raises(RunNotFoundError, match="three"):
        TrajectoryDataset(url, "three")
    for wrong in (
        {"batch_rows": 0},
        {"shuffle": "all"},
        {"rank": 2, "ranks": 2},
        {"rank": 0},
        {"stages": range(0, 4, 2)},
    ):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            TrajectoryDataset(url, "one", **wrong)
    with pytest.raises(ConfigError, match="no value"):
        list(TrajectoryDataset(url, "one", columns=("value",)))
    state = TrajectoryDataset(url, "one").state_dict()
    for other in (
        TrajectoryDataset(url, "two"),
        TrajectoryDataset(url, "one", batch_rows=8),
        TrajectoryDataset(url, "one", stages=range(1)),
    ):
        with pytest.raises(ConfigError, match="state"):
            other.load_state_dict(state)
    with pytest.raises(ConfigError, match="format"):
        TrajectoryDataset(url, "one").load_state_dict({})
