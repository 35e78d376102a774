"""Copies of commits and the rest of a run: they are copied, verified, collected by nobody, and cost others nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.storage.errors import CommitConflictError, CorruptObjectError
from penstock.storage.runs.commit_copies import COPIES, copy_name, list_copies
from penstock.storage.runs.commit_schema import encode_commit
from penstock.storage.runs.commits import CommitLog, commit_name, commit_ref
from penstock.storage.runs.continuing.forking import ABANDONED, abandon_after, fork_run
from penstock.storage.runs.copying import copy_run
from penstock.storage.runs.gc import collect
from penstock.storage.runs.latest import LATEST
from penstock.storage.runs.run import RunFolder, list_runs
from penstock.storage.runs.verification import repair, verify_run
from penstock.storage.stores.open import open_store

from ...support.stored.faulty import FaultyStore
from ...support.stored.stored_run import damage
from .test_commits import GENESIS, fill
from .test_gc import History
from .test_two_writers import one_of_two

STAGES = 3


@pytest.fixture
def history(tmp_path: Path) -> History:
    """Return a run whose commits have copies, as on a store that does not create exclusively."""
    history = History(open_store(tmp_path / "runs"), real_shards=True, is_fenced=False)
    for stage in range(STAGES):
        history.commit(stage)
    return history


@pytest.fixture
def conflicting(history: History) -> tuple[History, list[str]]:
    """Return the run with another commit in place of the second one's copy, and the names of both copies."""
    store, log = history.run.store, history.run.log
    other = store.read(commit_name(1)).replace(b'"episodes":0', b'"episodes":1')
    names = [copy_name(1, log.digest_of(1)), copy_name(1, "0" * 32)]
    store.write(names[1], [other])
    return history, sorted(names)


def test_every_commit_has_a_copy_and_the_hint_says_so(history: History):
    """Readers that know nothing of the store look for conflicts where the hint says that there are copies."""
    store, log = history.run.store, history.run.log
    assert list_copies(store) == {stage: [log.digest_of(stage)] for stage in range(STAGES)}
    for stage in range(STAGES):
        assert store.read(copy_name(stage, log.digest_of(stage))) == store.read(commit_name(stage))
    assert json.loads(store.read(LATEST)) == {"stage": STAGES - 1, "digest": log.digest_of(STAGES - 1), "copies": True}
    store.write(f"{COPIES}notes.txt", [b"foreign"])
    assert CommitLog(store).newest() == log.read(STAGES - 1)


def test_a_fenced_log_pays_nothing(tmp_path: Path):
    """No copy is written, and the newest commit and the shards are read without a look at any."""
    store = FaultyStore(open_store(tmp_path / "run"))
    fill(CommitLog(store), STAGES)
    CommitLog(store).newest()
    CommitLog(store).shard_table()
    assert not [call for call in store.calls if call.name.startswith(COPIES)]
    assert CommitLog(store).verify(GENESIS) == STAGES


def test_copies_survive_collection_and_are_copied(history: History, tmp_path: Path):
    """Neither command knows of a conflict that may be ahead."""
    copies = {name: history.run.store.read(name) for name in history.run.store.list(COPIES)}
    collect(history.run)
    target = RunFolder(open_store(tmp_path / "other"), "moved")
    copy_run(history.run, target)
    for run in (history.run, target):
        assert {name: run.store.read(name) for name in run.store.list(COPIES)} == copies
        assert not verify_run(run).faults
    assert target.log.newest() == history.run.log.newest()


def test_a_fork_takes_no_copies(history: History, tmp_path: Path):
    """It is another run, whose commits so far are written by one process."""
    target = RunFolder(open_store(tmp_path / "runs"), "forked")
    fork_run(history.run, target, 1)
    assert target.store.list(COPIES) == []
    assert target.log.newest() == history.run.log.read(1)


def test_a_conflict_is_found_by_every_command(conflicting, tmp_path: Path):
    """It is an error that names both, a fault of `verify`, and a problem in the list of runs; a fork avoids it."""
    history, names = conflicting
    target = RunFolder(open_store(tmp_path / "runs"), "forked")
    for command in (
        RunFolder(history.run.root, "history").log.newest,
        lambda: collect(history.run),
        lambda: copy_run(history.run, RunFolder(open_store(tmp_path / "other"), "moved")),
        lambda: fork_run(history.run, target, 1),
        lambda: fork_run(history.run, target, 2),
    ):
        with pytest.raises(CommitConflictError) as found:
            command()
        for said in (*names, "--from-stage 0", "'commits/00000002.json' was built upon"):
            assert said in str(found.value)
    faults = verify_run(history.run).faults
    assert names[0] in next(fault.problem for fault in faults if fault.name == commit_name(1))
    with pytest.raises(CorruptObjectError, match=commit_name(1)):
        repair(history.run, faults)
    summary = next(summary for summary in list_runs(history.run.root) if summary.name == "history")
    assert names[0] in (summary.problem or "")
    assert [fault.name for fault in verify_run(history.run, since=2).faults] == [commit_name(2)]
    fork_run(history.run, target, 0)
    assert target.log.newest_stage() == 0


def test_a_damaged_copy_is_a_fault_that_a_repair_removes(history: History, tmp_path: Path):
    """The commit itself is intact, and nothing depends on the copy."""
    name = copy_name(1, history.run.log.digest_of(1))
    damage(tmp_path / "runs" / "history", name, "cut")
    faults = verify_run(history.run).faults
    assert [(fault.name, fault.committed) for fault in faults] == [(name, False)]
    assert repair(history.run, faults) == [name]
    assert not verify_run(history.run).faults


def test_copies_of_abandoned_commits_go_with_them(history: History, tmp_path: Path):
    """Otherwise the next driver would take a copy without its commit for one that it has to complete."""
    folder = tmp_path / "runs" / "history"
    newest = copy_name(2, history.run.log.digest_of(2))
    damage(folder, commit_name(2), "cut")
    abandon_after(history.run, 1)
    assert sorted(list_copies(history.run.store)) == [0, 1]
    moved = [Path(name).name for name in history.run.store.list(ABANDONED)]
    assert sorted(moved) == sorted([Path(commit_name(2)).name, Path(newest).name, "record.json"])
    newest_commit = history.run.log.newest()
    assert history.run.log.complete(newest_commit, history.run.genesis()) == newest_commit
    assert json.loads(history.run.store.read(LATEST))["copies"] is True
    history.commit(2)
    assert history.run.log.verify(history.run.genesis()) == STAGES


@pytest.mark.parametrize("harm", ["built upon another", "altered"])
def test_a_copy_that_does_not_continue_the_log_is_an_error(tmp_path: Path, harm: str):
    """It names the file, and changes nothing."""
    store = open_store(tmp_path / "run")
    log = CommitLog(store, is_fenced=False)
    log.append(one_of_two("a"))
    pending = encode_commit(one_of_two("b", 1, commit_ref(one_of_two("b")).digest))
    name = copy_name(1, commit_ref(one_of_two("b", 1, commit_ref(one_of_two("b")).digest)).digest)
    store.write(name, [pending if harm == "built upon another" else pending[:-1]])
    before = store.list()
    with pytest.raises(CommitConflictError if harm == "built upon another" else CorruptObjectError, match=name):
        log.complete(log.newest(), GENESIS)
    assert store.list() == before


def test_a_copy_that_was_replaced_by_another_commit_is_an_error(tmp_path: Path):
    """A whole commit in its place would continue the log as well: only the digest in the copy's name differs."""
    store = open_store(tmp_path / "run")
    log = CommitLog(store, is_fenced=False)
    log.append(one_of_two("a"))
    mine, other = (one_of_two(which, 1, log.digest_of(0)) for which in "ab")
    name = copy_name(1, commit_ref(mine).digest)
    store.write(name, [encode_commit(other)])
    before = store.list()
    with pytest.raises(CorruptObjectError, match=f"'{name}'.*has the digest {commit_ref(other).digest}"):
        log.complete(log.newest(), GENESIS)
    assert store.list() == before
