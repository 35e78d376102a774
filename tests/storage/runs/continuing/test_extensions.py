"""An extension is recorded once, belongs to the commit that ended its run, and is understood by all that reads runs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from penstock.storage.digest import digest
from penstock.storage.errors import CommitConflictError, ConfigError, CorruptObjectError, RunExistsError, StoreError
from penstock.storage.refs import Ref, checkpoint_name
from penstock.storage.runs.commit_schema import Commit
from penstock.storage.runs.commits import commit_ref
from penstock.storage.runs.continuing.extensions import (
    Extension,
    Limits,
    extension_after,
    extension_name,
    limits_at,
    list_extensions,
    store_extension,
)
from penstock.storage.runs.continuing.forking import fork_run
from penstock.storage.runs.copying import copy_run
from penstock.storage.runs.gc import collect
from penstock.storage.runs.run import RunFolder, list_runs
from penstock.storage.runs.verification import verify_run
from penstock.storage.stores.open import open_store

if TYPE_CHECKING:
    from pathlib import Path


def append(run: RunFolder, finished: str | None = None) -> Commit:
    newest = run.log.newest()
    stage = newest.stage + 1 if newest else 0
    data = b"checkpoint %d" % stage
    ref = Ref(checkpoint_name(stage, digest(data)), digest(data), len(data))
    run.store.write(ref.name, [data])
    commit = Commit(
        stage=stage, parent=commit_ref(newest).digest if newest else run.genesis(), rounds=(stage, stage),
        version=stage + 1, env_steps=stage + 1, episodes=0, shards=(), states=(), snapshots=(), checkpoint=ref,
        metrics={}, evaluation=None, finished=finished,
    )  # fmt: skip
    run.log.append(commit)
    return commit


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run that ended with stage 1."""
    run = RunFolder(open_store(str(tmp_path / "root")), "ended")
    run.create({"identity": {"seed": 1}, "created": "2026-01-01"})
    append(run)
    append(run, "max_stages 2 done")
    return run


def extend(run: RunFolder, max_stages: int = 4) -> Extension:
    newest = run.log.newest()
    assert newest is not None
    extension = Extension(newest.stage, commit_ref(newest).digest, max_stages, None)
    store_extension(run.store, extension)
    return extension


def test_it_is_stored_once(run: RunFolder):
    """Storing it again changes nothing, another one is refused, and the first stays."""
    extension = extend(run)
    before = run.store.read(extension_name(1))
    store_extension(run.store, extension)
    with pytest.raises(CommitConflictError, match="to max_stages 4"):
        extend(run, 5)
    assert run.store.read(extension_name(1)) == before
    assert list_extensions(run.store) == {1: extension}


def test_a_run_is_unfinished_until_its_new_end(run: RunFolder):
    """The log keeps why it ended first; lists show the run as it is."""
    assert list_runs(run.root)[0].finished == "max_stages 2 done"
    extend(run)
    assert (run.newest().finished, run.log.newest().finished) == (None, "max_stages 2 done")
    assert list_runs(run.root)[0].finished is None
    append(run)
    append(run, "max_stages 4 done")
    assert list_runs(run.root)[0].finished == run.newest().finished == "max_stages 4 done"
    extensions = list_extensions(run.store).values()
    assert [limits_at(Limits(2), extensions, stage).max_stages for stage in range(4)] == [2, 2, 4, 4]


@pytest.mark.parametrize(
    "damaged", [b"", b"{}", b'{"format": "penstock-extension/1"}', b"[]"], ids=["empty", "none", "spaces", "list"]
)
def test_a_damaged_one_is_named(run: RunFolder, damaged: bytes):
    """Readers refuse it; `verify` says so, and that of another commit too."""
    extension = extend(run)
    run.store.write(extension_name(1), [damaged])
    with pytest.raises(CorruptObjectError, match=r"extensions/00000001.json"):
        run.newest()
    assert [fault.name for fault in verify_run(run).faults] == [extension_name(1)]
    run.store.write(extension_name(1), [replace(extension, commit="0" * 32).encode()])
    with pytest.raises(CorruptObjectError, match="one of the two was replaced"):
        extension_after(run.store, run.log.newest())
    assert [fault.name for fault in verify_run(run).faults] == [extension_name(1)]


def test_a_missing_one_is_named(run: RunFolder):
    """A stage after the end without the record that allows it is a fault."""
    extend(run)
    append(run)
    assert verify_run(run).faults == ()
    run.store.delete([extension_name(1)])
    (fault,) = verify_run(run).faults
    assert (fault.name, fault.committed) == (extension_name(1), True)
    assert "00000002.json" in fault.problem


def test_copies_and_forks_are_extended_too(run: RunFolder, tmp_path: Path):
    """Garbage collection keeps extensions; a fork from before has none; a copy from before is another run."""
    other = open_store(str(tmp_path / "other"))
    copy_run(run, RunFolder(other, "early"))
    with pytest.raises(ConfigError, match="ended with that stage"):
        fork_run(run, RunFolder(other, "refused"), 1)
    extend(run)
    fork_run(run, RunFolder(other, "at"), 1)
    assert RunFolder(other, "at").newest().finished is None
    with pytest.raises(RunExistsError, match="no copy"):
        copy_run(run, RunFolder(other, "early"))
    append(run)
    collect(run, keep_checkpoints=3)
    for name, stage in (("before", 0), ("after", 2)):
        fork_run(run, RunFolder(other, name), stage)
    copy_run(run, RunFolder(other, "copy"))
    found = {name: len(list_extensions(RunFolder(other, name).store)) for name in ("before", "at", "after", "copy")}
    assert found == {"before": 0, "at": 1, "after": 1, "copy": 1}
    assert verify_run(RunFolder(other, "copy")).faults == verify_run(RunFolder(other, "after")).faults == ()


def test_a_lost_answer_is_not_a_failure(run: RunFolder):
    """The record may be stored although its store reported an error; an error without it is raised."""

    class Lossy:
        url = run.store.url
        read = run.store.read
        writes = True

        def create(self, name: str, data: bytes) -> None:
            if self.writes:
                run.store.create(name, data)
            raise StoreError("no answer")

    lossy, extension = Lossy(), Extension(1, commit_ref(run.log.newest()).digest, 4, None)
    lossy.writes = False
    with pytest.raises(StoreError, match="no answer"):
        store_extension(lossy, extension)
    lossy.writes = True
    store_extension(lossy, extension)
    assert run.newest().finished is None
