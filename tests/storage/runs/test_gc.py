"""Garbage collection: leftovers and superseded state go, whatever can still be needed stays."""

import os
from dataclasses import replace

import pytest

from penstock.storage.digest import canonical_json, digest
from penstock.storage.errors import ConfigError, CorruptObjectError, LeaseHeldError, RunNotFoundError, StoreError
from penstock.storage.records import from_json
from penstock.storage.refs import difference_name, ref_of_name
from penstock.storage.runs.commit_schema import Commit
from penstock.storage.runs.gc import collect
from penstock.storage.runs.lease import LEASE, acquire
from penstock.storage.runs.reader_claims import (
    RETENTION,
    keep_shards_from,
    living_claims,
    reading,
    recorded_claims,
    shards_kept_from,
)
from penstock.storage.runs.run import RunFolder
from penstock.storage.stores.open import open_store

from ...support.stored.synthetic_shards import COLUMNS, store_shard

ROUNDS = 2


class History:
    """A run whose stages are stored as training stores them; remembers what it wrote, by kind and stage.

    Shards hold text, which no reader takes, unless `real_shards` is true. A run that exists is continued.
    """

    def __init__(self, root, name="history", real_shards=False, is_fenced=True, description=()):
        self.real_shards = real_shards
        self.run = RunFolder(root, name, is_fenced=is_fenced)
        if not self.run.exists():
            self.run.create({"seed": 1, **dict(description)})
        self.committed = {}
        self.uncommitted = []

    def put(self, name, suffix, **numbers):
        data = f"{name} {numbers}".encode()
        name = f"{name}-{digest(data)}.{suffix}"
        self.run.store.write(name, [data])
        return {"name": name, "digest": digest(data), "nbytes": len(data), **numbers}

    def parts(self, stage, attempt=0):
        """Return the objects that a stage writes before its commit."""
        folder, snapshots = (
            (f"{stage:08d}.{attempt}", f"snapshots/attempt-{attempt}") if attempt else (f"{stage:08d}", "snapshots")
        )
        rounds = range(ROUNDS * stage, ROUNDS * (stage + 1))
        if self.real_shards:
            placed = [(round_, tile) for round_ in rounds for tile in range(2)]
            shards = [store_shard(self.run.store, COLUMNS, stage, *place, 2, 4).to_json() for place in placed]
        else:
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

    def commit(self, stage, attempt=0, mean_return=None):
        """A stage, of which the commit names all shards and the last round's state and snapshot."""
        shards, states, snapshots = self.parts(stage, attempt)
        named = {
            "shards": shards,
            "states": states[-1:],
            "snapshots": snapshots[-1:],
            "checkpoint": self.put(f"checkpoints/{stage:08d}", "safetensors"),
        }
        version = ROUNDS * (stage + 1)
        evaluation = {"version": version, "mean_return": mean_return, "episodes": 4}
        log = self.run.log
        log.append(
            from_json(
                Commit,
                {
                    "stage": stage,
                    "parent": log.digest_of(stage - 1) if stage else self.run.genesis(),
                    "rounds": [ROUNDS * stage, ROUNDS * (stage + 1) - 1],
                    "version": version,
                    "env_steps": 0,
                    "episodes": 0,
                    "metrics": {},
                    "evaluation": None if mean_return is None else evaluation,
                    "finished": None,
                    **named,
                },
            )
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
        """Return the objects that are needed to resume from a stage's commit."""
        return self.named(stage, "states", "snapshots") | {self.committed[stage]["checkpoint"]["name"]}

    def contents(self):
        names = self.run.store.list()
        return {name: self.run.store.read(name) for name in names if name != "lease.json"}


@pytest.fixture(params=["local", "memory"])
def history(request, tmp_path):
    """A local store, and one that lists no sizes."""
    url = str(tmp_path) if request.param == "local" else f"memory://{tmp_path.name}/gc"
    return History(open_store(url))


def test_a_reader_does_not_wait_for_the_disk(tmp_path, monkeypatch):
    """Its claim is needed no longer than it lives; who reads it meanwhile finds it."""
    history = History(open_store(tmp_path))
    history.commit(0)
    flushed = []
    monkeypatch.setattr(os, "fsync", flushed.append)
    with reading(history.run.store, "test", 0, 0):
        (claim,) = living_claims(history.run.store)
        assert (claim.first, claim.last, claim.shards) == (0, 0, True)
    assert flushed == []


def test_readers_leave_nothing(tmp_path):
    """Neither those that end nor those that are found dead: a folder of empty folders is slow to list."""
    history = History(open_store(tmp_path))
    history.commit(0)
    with reading(history.run.store, "test", 0, 0):
        assert list((tmp_path / "history" / "readers").iterdir())
    assert not (tmp_path / "history" / "readers").exists()
    with reading(history.run.store, "test", 0, 0):
        (lease,) = (tmp_path / "history" / "readers").rglob(LEASE)
        dead = lease.read_bytes()
    lease.parent.mkdir(parents=True)
    lease.write_bytes(dead.replace(b'"released":true', b'"released":false'))
    assert living_claims(history.run.store) == []
    assert not (tmp_path / "history" / "readers").exists()


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
    """A resumed run continues from the objects that its unfinished stage has stored, in any attempt."""
    history.commit(0)
    history.commit(1)
    unfinished = {*history.give_up(2, 0), *history.give_up(2, 1), *history.give_up(2, 2)}
    ahead = history.put("checkpoints/00000002", "safetensors")["name"]
    collect(history.run)
    assert unfinished | {ahead} <= history.contents().keys()


def test_differences_between_snapshots_go_with_their_stages(history):
    """No commit names one; those of the unfinished stage still spare its actors downloads."""
    history.commit(0)
    history.commit(1)
    published = [ref for stage in range(2) for ref in history.named(stage, "snapshots")]
    published += [name for name in history.give_up(2, 0) if name.startswith("snapshots/")]
    names = {difference_name(ref_of_name(name)) for name in published}
    for name in names:
        history.run.store.write(name, [b"difference"])
    before = history.contents()
    collect(history.run)
    kept = {name for name in history.contents() if name.startswith("differences/")}
    assert kept == {name for name in names if name > "differences/00000005"}
    assert len(kept) == ROUNDS
    assert len(names) == len({name for name in before if name.startswith("differences/")}) == 4


@pytest.mark.parametrize("keep", [1, 2, 3, 9])
def test_the_requested_number_of_commits_stays_resumable(history, keep):
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


def test_the_best_evaluation_keeps_what_its_commit_names(history):
    """It can be loaded and forked, whether its commit or `penstock evaluate` has the result; of equals the newest."""
    for stage, mean_return in enumerate((3.0, 9.0, None, 9.0, 1.0, 2.0)):
        history.commit(stage, mean_return=mean_return)
    collect(history.run)
    names = history.contents().keys()
    assert {stage for stage in range(6) if history.resumable(stage) <= names} == {3, 5}
    history.run.store.write(
        "evaluations/00000012-0-8.json", [b'{"version": 12, "mean_return": 9.5, "episodes": 8, "seeds": 0}']
    )
    history.commit(6, mean_return=0.0)
    collect(history.run)
    names = history.contents().keys()
    assert {stage for stage in range(7) if history.resumable(stage) <= names} == {5, 6}
    assert collect(history.run).objects == 0


def test_a_dry_run_reports_the_same_and_removes_nothing(history):
    """It needs no lease, so it works while the run is being driven."""
    history.commit(0)
    history.commit(1)
    before = history.contents()
    with acquire(history.run.store, "the flow", 60.0):
        planned = collect(history.run, dry_run=True)
    assert history.contents() == before
    assert planned.objects > 0
    assert collect(history.run) == planned


def test_known_sizes_are_reported(history):
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


def test_sizes_of_dropped_shards_are_reported(history):
    """Their commits say them, whatever the store."""
    for stage in range(3):
        history.commit(stage)
    collect(history.run)
    before = history.contents()
    report = collect(history.run, drop_shards_before=2)
    assert set(report.names) == history.named(0, "shards") | history.named(1, "shards")
    assert report.nbytes == sum(len(before[name]) for name in report.names) > 0


def test_files_of_users_are_left_alone(history):
    """Files with names that Penstock does not use are a user's."""
    names = [
        "shards/notes.txt",
        "snapshots/best.safetensors",
        "checkpoints/mine",
        "report/index.html",
        "timings/0.json",
        "shards/1/photo.arrow",
        "shards/00000000.old/photo.arrow",
        "shards/00000000/mine/photo.arrow",
        "snapshots/1-best.safetensors",
        "snapshots/mine/00000001-best.safetensors",
        "snapshots/00000001-best/mine.safetensors",
        "checkpoints/0-mine.safetensors",
        "checkpoints/00000000.safetensors",
        "checkpoints/00000000-mine/notes.txt",
        "shards/00000000/notes.txt",
        "shards/00000000/.DS_Store",
        f"shards/00000000/00000000-0000-{'0' * 32}.arrow.bak",
        f"states/00000000/00000000-0000-{'0' * 32}.arrow",
        "orders/00000000/mine.json",
        "choices/00000000/00000000.txt",
        "checkpoints/00000000-mine.safetensors",
        "snapshots/00000001-best.bak",
        f"differences/00000001-{'0' * 32}.safetensors",
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
    """Collecting while a flow drives the run is refused before anything is removed; then the lease is free at once."""
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
    """The objects that a damaged commit names are unknown."""
    for stage in range(3):
        history.commit(stage)
    history.run.store.write("commits/00000001.json", [b"{"])
    before = history.contents()
    with pytest.raises(CorruptObjectError, match=r"00000001\.json"):
        collect(history.run)
    assert history.contents() == before


def test_collecting_a_missing_run_creates_nothing(history, tmp_path):
    """Collecting it is refused, and creates no lease."""
    other = RunFolder(open_store(str(tmp_path / "other")), "absent")
    with pytest.raises(RunNotFoundError):
        collect(other)
    assert other.store.list() == []


def test_the_newest_checkpoint_cannot_be_given_up(history):
    """Keeping none would end the run."""
    with pytest.raises(ValueError, match="keep_checkpoints"):
        collect(history.run, keep_checkpoints=0)


def test_shards_are_dropped_only_on_request_and_are_recorded(history):
    """Those of earlier stages go and stay gone; the log still names them, and a reader of them is refused by name."""
    for stage in range(4):
        history.commit(stage)
    assert not any(name.startswith("shards/") for name in collect(history.run).names)
    report = collect(history.run, drop_shards_before=2)
    gone = history.named(0, "shards") | history.named(1, "shards")
    assert {name for name in report.names if name.startswith("shards/")} == gone
    assert not gone & history.contents().keys()
    assert history.named(2, "shards") | history.named(3, "shards") <= history.contents().keys()
    assert shards_kept_from(history.run.store) == 2
    assert len(list(history.run.log.shard_refs())) == 16
    with (
        pytest.raises(ConfigError, match=r"stages 1 to 1 in .* dropped.*from stage 2 on"),
        reading(history.run.store, "test", 1, 3),
    ):
        pass
    assert collect(history.run, drop_shards_before=1).objects == 0
    assert shards_kept_from(history.run.store) == 2


def test_uncommitted_shards_cannot_be_dropped(history):
    """A resumed run continues from its unfinished stage, so that stage stays."""
    history.commit(0)
    before = history.contents()
    with pytest.raises(ConfigError, match=r"--drop-shards-before 2.*1 stages"):
        collect(history.run, drop_shards_before=2)
    assert history.contents() == before


def test_a_reader_that_is_reading_loses_nothing(history):
    """While it reads, what its stages' commits name stays, and dropping them is refused; afterwards all goes."""
    for stage in range(3):
        history.commit(stage)
    before = history.contents()
    with reading(history.run.store, "test", 1, 1):
        report = collect(history.run)
        assert set(report.names) >= history.named(0, "states") | {history.committed[0]["checkpoint"]["name"]}
        assert (history.resumable(1) | history.named(1, "shards")) <= history.contents().keys()
        assert all(history.run.store.read(name) == before[name] for name in history.named(1, "shards", "snapshots"))
        with pytest.raises(LeaseHeldError, match=r"reader 'test-.*of stages 1 to 1"):
            collect(history.run, drop_shards_before=2)
        assert shards_kept_from(history.run.store) == 0
        assert history.named(1, "shards") <= history.contents().keys()
        collect(history.run, drop_shards_before=1)
        assert not history.named(0, "shards") & history.contents().keys()
    assert history.run.store.list("readers/") == []
    collect(history.run, drop_shards_before=2)
    assert not (history.resumable(1) | history.named(1, "shards")) & history.contents().keys()


def test_a_reader_that_died_protects_nothing_and_leaves_nothing(history):
    """A killed reader never releases its claim: its lease expires instead."""
    for stage in range(2):
        history.commit(stage)
    below = history.run.store.at("readers/killed-1")
    below.write("claim.json", [canonical_json({"first": 0, "last": 0, "shards": True})])
    acquire(below, "killed", 60.0).release()
    assert history.named(0, "shards") <= set(collect(history.run, drop_shards_before=1, dry_run=True).names)
    collect(history.run, drop_shards_before=1)
    assert not history.named(0, "shards") & history.contents().keys()
    assert history.run.store.list("readers/") == []


def test_a_claim_whose_lease_is_damaged_counts_in_a_dry_run(history):
    """Its reader may be alive: a collection would watch it for a while."""
    history.commit(0)
    below = history.run.store.at("readers/unknown-1")
    below.write("claim.json", [canonical_json({"first": 0, "last": 0, "shards": True})])
    assert recorded_claims(history.run.store) == []
    below.write(LEASE, [b"{"])
    assert [claim.reader for claim in recorded_claims(history.run.store)] == ["unknown-1"]


def test_a_claim_during_dropping_revokes_it(history, monkeypatch):
    """If a reader claims between the check and the announcement, dropping is revoked and it continues."""
    for stage in range(2):
        history.commit(stage)
    begun = []

    def announce(store, stage):
        if not begun:
            begun.append(reading(store, "late", 0, 0))
            begun[0].__enter__()
        keep_shards_from(store, stage)

    monkeypatch.setattr("penstock.storage.runs.gc.keep_shards_from", announce)
    with pytest.raises(LeaseHeldError, match="late-"):
        collect(history.run, drop_shards_before=1)
    assert shards_kept_from(history.run.store) == 0
    assert history.named(0, "shards") <= history.contents().keys()
    assert [claim.first for claim in living_claims(history.run.store)] == [0]
    begun[0].__exit__(None, None, None)


def test_a_replay_that_is_not_finished_keeps_its_shards(history):
    """It may have been killed and be resumed next month: it has no lease then, but its run.json names them."""
    for stage in range(3):
        history.commit(stage)
    other = RunFolder(history.run.root, "clone")
    other.create({"reads": {"sources": [{"run": "history", "stages": [1, 2], "commit": "x"}]}})
    collect(history.run, drop_shards_before=1)
    for dry_run in (True, False):
        with pytest.raises(LeaseHeldError, match="replay 'clone'"):
            collect(history.run, drop_shards_before=2, dry_run=dry_run)
    assert history.named(1, "shards") <= history.contents().keys()
    commit = replace(history.run.log.read(0), parent=other.genesis(), finished="max_stages 1 done")
    other.log.append(commit)
    collect(history.run, drop_shards_before=2)
    assert not history.named(1, "shards") & history.contents().keys()


def test_a_crash_between_announcement_and_removal_is_repaired(history):
    """Shards that were announced as dropped are removed by the next collection."""
    for stage in range(2):
        history.commit(stage)
    keep_shards_from(history.run.store, 1)
    assert history.named(0, "shards") <= set(collect(history.run).names)


def test_a_damaged_retention_file_is_refused(history):
    """Nothing is removed if retention.json, which names the dropped shards, cannot be read."""
    history.commit(0)
    history.run.store.write(RETENTION, [b"{}"])
    before = history.contents()
    with pytest.raises(CorruptObjectError, match=RETENTION):
        collect(history.run)
    assert history.contents() == before
    assert LEASE not in history.run.store.list(LEASE)


def test_a_read_only_store_is_read_unprotected_if_allowed(history, tmp_path, caplog):
    """A dataset of a store that may only be read: a warning; a reader that requires the protection gets the error."""
    blocked = open_store(str(tmp_path / "blocked"))
    blocked.write("readers", [b"a file where the folder would be"])
    with reading(blocked, "test", 0, 0, optional=True):
        assert "not protected" in caplog.text
    with pytest.raises(StoreError, match="readers"), reading(blocked, "test", 0, 0):
        pass
