"""A run in another store: whole or not there, and what another store holds is never replaced."""

import errno
import os

import pytest

from penstock.storage.errors import (
    ConfigError,
    CorruptObjectError,
    LeaseHeldError,
    RunExistsError,
    RunNotFoundError,
    StoreError,
)
from penstock.storage.refs import difference_name
from penstock.storage.runs.commits import commit_name
from penstock.storage.runs.copying import copy_run
from penstock.storage.runs.lease import LEASE, acquire
from penstock.storage.runs.run import RunFolder
from penstock.storage.runs.verification import verify_run
from penstock.storage.stores.open import open_store

from ...support.stored.stored_run import damage
from .test_gc import History

OBJECTS = {"shards", "states", "snapshots", "checkpoints"}


@pytest.fixture
def source(tmp_path):
    history = History(open_store(tmp_path / "runs"), real_shards=True)
    for stage in range(3):
        history.commit(stage)
    history.run.store.write("timings/00000000-00000001.json", [b"{}"])
    history.run.store.write("readers/somebody/claim.json", [b"{}"])
    return history.run


@pytest.fixture
def target(tmp_path):
    return RunFolder(open_store(tmp_path / "other"), "moved")


def contents(run):
    """Return what each command leaves as it is; the lease is of those that made or read the run."""
    return {name: run.store.read(name) for name in run.store.list() if name != LEASE}


def test_a_copy_has_every_file_but_leases_and_claims(source, target):
    """Byte for byte; leases and claims stay behind, and the source is what it was. Each object is progress."""
    before = contents(source)
    seen = []
    report = copy_run(source, target, lambda done, total: seen.append((done, total)))
    assert seen == [(done, report.objects - 1) for done in range(1, report.objects)]  # run.json is the last object
    left = "readers/somebody/claim.json"
    assert contents(target) == {name: data for name, data in before.items() if name != left}
    assert contents(source) == before
    assert b'"released":true' in target.store.read(LEASE)
    assert (report.objects, report.commits) == (len(before) - 1, 3)
    assert report.nbytes == sum(len(data) for name, data in contents(target).items() if name != "run.json")


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES])
def test_an_archive_that_may_only_be_read_is_copied(source, target, monkeypatch, caplog, code):
    """With a warning; and not if a stage was committed meanwhile. Other failures of the store end the copy."""

    def refuse(self, name, data):
        if self.url == source.store.url:
            raise StoreError(f"cannot write '{name}'") from OSError(code, os.strerror(code))
        return create(self, name, data)

    create = type(source.store).create
    monkeypatch.setattr(type(source.store), "create", refuse)
    copy_run(source, target)
    assert "without its lease" in caplog.text
    assert verify_run(target).faults == ()
    with pytest.raises(LeaseHeldError, match="was driven while it was copied"):
        copy_run(source, RunFolder(target.root, "again"), lambda *_: source.store.write(commit_name(3), [b"{}"]))
    source.store.delete([commit_name(3)])
    code = errno.EIO
    with pytest.raises(StoreError, match="cannot write 'lease"):
        copy_run(source, RunFolder(target.root, "third"))


def test_an_interrupted_copy_can_be_resumed(source, target, monkeypatch):
    """Until it is whole there is no run; what is there already is not copied again."""
    *_, last = sorted(name for name in source.store.list() if name.startswith("shards/"))
    read = type(source.store).read

    def failing(store, name):
        if name == last and store.url == source.store.url:
            raise CorruptObjectError("the disk")
        return read(store, name)

    with monkeypatch.context() as patched:
        patched.setattr(type(source.store), "read", failing)
        with pytest.raises(CorruptObjectError, match="the disk"):
            copy_run(source, target)
    assert not target.exists()
    digested = sum(name.split("/")[0] in {"shards", "states", "snapshots", "checkpoints"} for name in contents(target))
    assert digested
    report = copy_run(source, target)
    assert target.exists()
    assert report.objects == len(contents(target)) - digested


@pytest.mark.parametrize("kind", ["cut", "empty"])
def test_what_a_power_cut_has_left_of_a_copy_is_copied_again(source, target, tmp_path, monkeypatch, kind):
    """Names were there, and their content had not reached the disk; so a copy that says it is whole is whole."""
    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "create", interrupt)
        with pytest.raises(KeyboardInterrupt):
            copy_run(source, target)
    torn = [next(name for name in target.store.list(folder)) for folder in ("shards/", "checkpoints/")]
    for name in torn:
        damage(tmp_path / "other" / "moved", name, kind)
    kept = len([name for name in contents(target) if name.partition("/")[0] in OBJECTS]) - len(torn)
    report = copy_run(source, target)
    assert verify_run(target).faults == ()
    assert report.objects == len(contents(target)) - kept


def test_a_run_that_was_made_meanwhile_keeps_its_commits(source, target, monkeypatch):
    """Another command copied it and went on, while this one waited for the source."""
    verify = type(source.log).verify

    def slowly(log, genesis):
        found = verify(log, genesis)
        if log.newest_stage() == 2 and not target.exists():
            with monkeypatch.context() as patched:
                patched.setattr(type(source.log), "verify", verify)
                for name in source.store.list():
                    if name not in (LEASE, "run.json"):
                        target.store.write(name, [source.store.read(name)])
                target.create(source.load())
            History(target.root, target.name, real_shards=True).commit(3)
        return found

    monkeypatch.setattr(type(source.log), "verify", slowly)
    with pytest.raises(RunExistsError, match="no copy of"):
        copy_run(source, target)
    assert target.log.newest_stage() == 3


def test_of_two_copies_to_one_name_one_is_refused(source, target, tmp_path):
    """Otherwise the slower one would write its commits over those of a run that the other one has made."""
    other = History(open_store(tmp_path / "third"), "shorter", real_shards=True)
    other.commit(0)
    refused = []

    def meanwhile(done: int, _: int) -> None:
        if done == 1:
            with pytest.raises(LeaseHeldError, match="a copy"):
                copy_run(other.run, target)
            refused.append(done)

    copy_run(source, target, meanwhile)
    assert refused == [1]
    assert target.log.newest_stage() == 2
    assert not verify_run(target).faults
    with pytest.raises(RunExistsError, match="no copy of 'shorter'"):
        copy_run(other.run, target)


def interrupt(*_):
    raise KeyboardInterrupt


def test_a_run_is_not_copied_into_itself(source, tmp_path):
    """However its folder is named: every later copy would carry that one too."""
    inside = RunFolder(open_store(tmp_path / "runs" / "history"), "history")
    with pytest.raises(ConfigError, match="inside the run's own folder"):
        copy_run(source, inside)
    with pytest.raises(ConfigError, match="already; copy it to another store"):
        copy_run(source, RunFolder(open_store(f"{tmp_path}/runs/../runs"), "history"))
    assert not inside.store.list()


def test_a_copy_replaces_no_existing_run(source, target):
    """Neither a run of that name, nor the run itself."""
    target.create({"seed": 2})
    with pytest.raises(RunExistsError, match="another name"):
        copy_run(source, target)
    assert list(contents(target)) == ["run.json"]
    with pytest.raises(ConfigError, match="another store"):
        copy_run(source, source)


def test_a_run_that_can_change_or_cannot_be_trusted_is_refused(source, target, tmp_path):
    """One that is driven, one that was altered, and one that is not there."""
    with acquire(source.store, "somebody", 30.0), pytest.raises(LeaseHeldError):
        copy_run(source, target)
    source.store.write("commits/00000001.json", [b"{}"])
    with pytest.raises(CorruptObjectError, match="00000001"):
        copy_run(source, target)
    assert not target.exists()
    with pytest.raises(RunNotFoundError):
        copy_run(RunFolder(open_store(tmp_path / "runs"), "absent"), target)


@pytest.mark.parametrize("kind", ["altered", "cut", "empty"])
@pytest.mark.parametrize("folder", ["shards", "states", "snapshots", "checkpoints"])
def test_a_damaged_object_of_a_commit_is_not_copied(source, target, tmp_path, folder, kind):
    """The error names what a commit names, and there is no run in the other store."""
    victim = next(ref.name for ref in source.log.read(0).references() if ref.name.startswith(folder))
    damage(tmp_path / "runs" / "history", victim, kind)
    with pytest.raises(CorruptObjectError, match=rf"{victim}.* A commit names it: restore it from another copy"):
        copy_run(source, target)
    assert not target.exists()


@pytest.mark.parametrize("kind", ["altered", "cut", "empty"])
def test_damaged_objects_that_no_commit_names_are_left_out(source, target, tmp_path, kind):
    """A power cut leaves such objects; nothing needs them, so they keep no copy from being made."""
    left = (
        "states/00000001/00000001-0000-" + "a" * 32 + ".safetensors",
        "snapshots/00000001-" + "b" * 32 + ".safetensors",
    )
    for name in left:
        source.store.write(name, [b"x" * 100])
        damage(tmp_path / "runs" / "history", name, kind)
    report = copy_run(source, target)
    assert report.left_out == len(left)
    assert set(contents(source)) - set(contents(target)) == {*left, "readers/somebody/claim.json"}
    assert not verify_run(target).faults


def test_a_copy_that_was_made_before_is_reported(source, target, tmp_path):
    """Its command may have been stopped just before it said so. A run that went on there is not the copy any more."""
    copied = copy_run(source, target)
    before = contents(target)
    again = copy_run(source, target)
    assert (again.objects, again.nbytes, again.commits) == (0, 0, copied.commits)
    assert contents(target) == before
    target.store.delete(["commits/00000002.json"])
    with pytest.raises(RunExistsError, match="no copy of 'history'"):
        copy_run(source, target)


def test_differences_between_snapshots_are_not_copied(source, target):
    """Only the actors of an unfinished stage read them, and they take whole snapshots instead; `verify` wants none."""
    difference = difference_name(source.log.read(0).snapshots[0])
    source.store.write(difference, [b"altered"])
    verified = verify_run(source)
    assert (verified.faults, verified.foreign) == ((), 0)
    copy_run(source, target)
    assert set(contents(source)) - set(contents(target)) == {difference, "readers/somebody/claim.json"}
    assert not verify_run(target).faults


def test_files_of_other_programs_are_copied_as_they_are(source, target):
    """No name of theirs has a digest to compare with."""
    source.store.write("shards/00000000/notes.txt", [b"mine"])
    copy_run(source, target)
    assert target.store.read("shards/00000000/notes.txt") == b"mine"
