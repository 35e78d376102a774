"""Garbage collection: leftovers and superseded state go, whatever can still be needed stays."""

import pytest

from storage.digest import digest
from storage.errors import CorruptObjectError, LeaseHeldError, RunNotFoundError
from storage.gc import collect
from storage.lease import acquire
from storage.run import RunFolder
from storage.store import open_store

ROUNDS = 2


class History:
    """A run whose stages are stored as training stores them; remembers what it wrote, by kind and stage."""

    def __init__(self, root):
        self.run = RunFolder(root, "history")
        self.run.create({"seed": 1})
        self.committed = {}
        self.uncommitted = []

    def put(self, name, suffix, **numbers):
        data = f"{name} {numbers}".encode()
        name = f"{name}-{digest(data)}.{suffix}"
        self.run.store.write(name, [data])
        return {"name": name, "digest": digest(data), "nbytes": len(data), **numbers}

    def parts(self, stage, attempt=0):
        """What a stage writes before its commit."""
        folder, snapshots = (
            (f"{stage:08d}.{attempt}", f"snapshots/attempt-{attempt}") if attempt else (f"{stage:08d}", "snapshots")
        )
        rounds = range(ROUNDS * stage, ROUNDS * (stage + 1))
        shards = [
            self.put(f"shards/{folder}/{round_:08d}-{tile:04d}", "arrow", round=round_, tile=tile, rows=8)
            for round_ in rounds
            for tile in range(2)
        ]
        states = [
            self.put(f"states/{folder}/{round_:08d}-0000", "safetensors", round=round_, tile=0) for round_ in rounds
        ]
        published = [self.put(f"{snapshots}/{round_ + 1:08d}", "safetensors", version=round_ + 1) for round_ in rounds]
        return shards, states, published

    def commit(self, stage, attempt=0):
        """A stage, of which the commit names all shards and the last round's state and snapshot."""
        shards, states, snapshots = self.parts(stage, attempt)
        named = {
            "shards": shards,
            "states": states[-1:],
            "snapshots": snapshots[-1:],
            "checkpoint": self.put(f"checkpoints/{stage:08d}", "safetensors"),
        }
        log = self.run.log
        log.append(
            {
                "format": "penstock-commit/1",
                "stage": stage,
                "parent": log.digest_of(stage - 1) if stage else self.run.genesis(),
                "rounds": [ROUNDS * stage, ROUNDS * (stage + 1) - 1],
                "version": ROUNDS * (stage + 1),
                "env_steps": 0,
                "episodes": 0,
                "metrics": {},
                "evaluation": None,
                "finished": None,
                **named,
            }
        )
        self.committed[stage] = named
        self.uncommitted += [ref["name"] for ref in (*states[:-1], *snapshots[:-1])]

    def give_up(self, stage, attempt):
        """An attempt that ended without a commit."""
        names = [ref["name"] for refs in self.parts(stage, attempt) for ref in refs]
        self.uncommitted += names
        return names

    def named(self, stage, *kinds):
        return {ref["name"] for kind in kinds for ref in self.committed[stage][kind]}

    def resumable(self, stage):
        """What a stage's commit needs to be gone on from."""
        return self.named(stage, "states", "snapshots") | {self.committed[stage]["checkpoint"]["name"]}

    def contents(self):
        names = self.run.store.list()
        return {name: self.run.store.read(name) for name in names if name != "lease.json"}


@pytest.fixture(params=["local", "memory"])
def history(request, tmp_path):
    """A local store, and one that tells no sizes."""
    url = str(tmp_path) if request.param == "local" else f"memory://{tmp_path.name}/gc"
    return History(open_store(url))


def test_the_newest_commit_keeps_all_that_it_names_and_all_shards_stay(history):
    """Uncommitted files of committed stages and older state go; every committed shard and the resume point stay."""
    history.commit(0)
    abandoned = history.give_up(1, 0)
    history.commit(1, attempt=1)
    history.commit(2)
    before = history.contents()
    report = collect(history.run)
    gone = before.keys() - history.contents().keys()
    assert gone == {*history.uncommitted, *history.resumable(0), *history.resumable(1)}
    assert gone >= set(abandoned)
    assert report.names == tuple(sorted(gone, key=report.names.index))
    assert report.objects == len(gone) == len(report.names)
    assert all(before[name] == data for name, data in history.contents().items())
    shards = {ref.name for ref in history.run.log.shard_refs()}
    assert shards == history.named(0, "shards") | history.named(1, "shards") | history.named(2, "shards")
    assert shards | history.resumable(2) <= history.contents().keys()
    assert history.run.log.verify(history.run.genesis()) == 3
    assert collect(history.run).objects == 0


def test_the_stage_after_the_newest_commit_is_not_touched(history):
    """A resumed run goes on from what its unfinished stage has stored, whichever the attempt."""
    history.commit(0)
    history.commit(1)
    unfinished = {*history.give_up(2, 0), *history.give_up(2, 1), *history.give_up(2, 2)}
    ahead = history.put("checkpoints/00000002", "safetensors")["name"]
    collect(history.run)
    assert unfinished | {ahead} <= history.contents().keys()


@pytest.mark.parametrize("keep", [1, 2, 3, 9])
def test_as_many_commits_stay_resumable_as_asked_for(history, keep):
    """Their checkpoints, snapshots and states stay, and those of older ones go."""
    for stage in range(4):
        history.commit(stage)
    collect(history.run, keep_checkpoints=keep)
    names = history.contents().keys()
    for stage in range(4):
        if stage >= 4 - keep:
            assert history.resumable(stage) <= names
        else:
            assert not history.resumable(stage) & names


def test_a_dry_run_tells_the_same_and_removes_nothing(history):
    """And needs no lease: it may look while the run is being driven."""
    history.commit(0)
    history.commit(1)
    before = history.contents()
    with acquire(history.run.store, "the flow", 60.0):
        looked = collect(history.run, dry_run=True)
    assert history.contents() == before
    assert looked.objects > 0
    assert collect(history.run) == looked


def test_sizes_are_told_as_far_as_they_are_known(history):
    """All of them on a local disk; elsewhere those of states, snapshots and checkpoints that a commit names."""
    history.commit(0)
    history.give_up(1, 0)
    history.commit(1, attempt=1)
    before = history.contents()
    report = collect(history.run)
    if history.run.store.path("run.json") is None:
        assert report.nbytes == sum(len(before[name]) for name in history.resumable(0))
    else:
        assert report.nbytes == sum(len(before[name]) for name in report.names)


def test_strangers_are_left_alone(history):
    """What isn't named as ours was put there by somebody who may want it."""
    names = [
        "shards/notes.txt",
        "snapshots/best.safetensors",
        "checkpoints/mine",
        "report/index.html",
        "timings/0.json",
    ]
    for name in names:
        history.run.store.write(name, [b"a stranger's"])
    history.commit(0)
    history.commit(1)
    collect(history.run)
    assert set(names) <= history.contents().keys()


def test_a_run_without_commits_is_not_touched(history):
    """Everything in it belongs to the first stage."""
    history.give_up(0, 0)
    before = history.contents()
    assert collect(history.run).objects == 0
    assert history.contents() == before


def test_a_driven_run_is_refused_and_a_collected_one_is_free_again(history):
    """Collecting beside a flow is refused before anything is removed; afterwards the lease is free at once."""
    history.commit(0)
    history.commit(1)
    before = history.contents()
    with acquire(history.run.store, "the flow", 60.0), pytest.raises(LeaseHeldError, match="the flow"):
        collect(history.run)
    assert history.contents() == before
    assert collect(history.run).objects > 0
    sleeps = []
    with acquire(history.run.store, "the flow", 60.0, sleep=sleeps.append) as keeper:
        assert keeper.generation == 3
    assert sum(sleeps) < 1


def test_nothing_is_removed_where_the_log_is_damaged(history):
    """What commits name can't be known then."""
    for stage in range(3):
        history.commit(stage)
    history.run.store.write("commits/00000001.json", [b"{"])
    before = history.contents()
    with pytest.raises(CorruptObjectError, match=r"00000001\.json"):
        collect(history.run)
    assert history.contents() == before


def test_a_run_that_is_not_there_is_not_made(history, tmp_path):
    """Not even a lease."""
    other = RunFolder(open_store(str(tmp_path / "other")), "absent")
    with pytest.raises(RunNotFoundError):
        collect(other)
    assert other.store.list() == []


def test_the_newest_checkpoint_cannot_be_given_up(history):
    """Keeping none would end the run."""
    with pytest.raises(ValueError, match="keep_checkpoints"):
        collect(history.run, keep_checkpoints=0)
