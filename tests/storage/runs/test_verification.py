"""Verification finds every object that is not what its name says, every broken chain, and nothing else."""

import shutil
from dataclasses import replace
from functools import partial

import pytest

from penstock.storage.digest import canonical_json, digest, parse_json
from penstock.storage.errors import ConfigError, CorruptObjectError, LeaseHeldError, LeaseLostError, RunNotFoundError
from penstock.storage.refs import initial_name, plan_name
from penstock.storage.runs.commits import commit_name
from penstock.storage.runs.continuing.arrival_orders import damaged_orders
from penstock.storage.runs.gc import collect
from penstock.storage.runs.latest import LATEST
from penstock.storage.runs.lease import acquire
from penstock.storage.runs.reader_claims import RETENTION, keep_shards_from, shards_kept_from
from penstock.storage.runs.run import RUN
from penstock.storage.runs.verification import repair, verify_run
from penstock.storage.stores.open import open_store

from ...support.stored.leases import TTL, Clock, make_lease, put
from ...support.stored.stored_run import damage
from .test_gc import History

STAGES = 3
FOLDERS = ("shards/", "states/", "snapshots/", "checkpoints/")


@pytest.fixture
def history(tmp_path):
    """Three stages, and the objects of a fourth that has no commit."""
    history = History(open_store(tmp_path / "runs"), real_shards=True)
    for stage in range(STAGES):
        history.commit(stage)
    history.parts(STAGES)
    return history


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "runs" / "history"


def objects(run):
    return [name for folder in FOLDERS for name in run.store.list(folder)]


def test_an_intact_run_has_no_faults(history):
    """Every object is read, also those that no commit names; other programs' files are counted."""
    history.run.store.write("shards/00000000/.DS_Store", [b"x"])
    seen = []
    found = verify_run(history.run, on_progress=lambda done, total: seen.append((done, total)))
    count = len(objects(history.run)) - 1
    assert (found.commits, found.objects, found.faults, found.foreign) == (STAGES, count, (), 1)
    assert sorted(seen) == [(done, count) for done in range(1, count + 1)]


@pytest.mark.parametrize("kind", ["altered", "cut", "empty", "missing"])
def test_a_damaged_plan_of_a_replay_is_found(tmp_path, kind):
    """`run.json` names it, and no replay resumes without it: nor is it copied or forked."""
    data = b"a list of shards"
    plan = plan_name(digest(data))
    run = History(open_store(tmp_path / "runs"), description={"reads": {"sources": [], "plan": plan}}).run
    run.store.write(plan, [data])
    assert verify_run(run).faults == ()
    if kind == "missing":
        run.store.delete([plan])
    else:
        damage(tmp_path / "runs" / "history", plan, kind)
    assert [(fault.name, fault.committed) for fault in verify_run(run).faults] == [(plan, True)]


@pytest.mark.parametrize("kind", ["altered", "cut", "empty"])
@pytest.mark.parametrize("since", [0, 1])
def test_a_damaged_description_hides_no_other_fault(history, folder, kind, since):
    """Commits, their chain and all objects are verified without `run.json`; nothing is removed before it is restored.

    What it may name is not taken for what nothing needs.
    """
    initial, shard = initial_name("0" * 32), history.committed[1]["shards"][0]["name"]
    history.run.store.write(initial, [b"other parameters"])
    leftover = history.run.store.list("shards/00000003/")[0]
    for name in (RUN, shard, leftover, commit_name(2)):
        damage(folder, name, kind)
    found = verify_run(history.run, since)
    needed = {RUN, commit_name(2), initial, shard}
    assert {fault.name for fault in found.faults if fault.committed} == needed
    assert {fault.name for fault in found.faults if not fault.committed} == (set() if since else {leftover})
    assert found.commits == STAGES - 1 - since
    (of_description,) = (fault for fault in found.faults if fault.name == RUN)
    assert "the first commit's parent" in of_description.problem
    with pytest.raises(CorruptObjectError, match=rf"^{commit_name(2)}, {RUN} of run"):
        repair(history.run, found.faults)
    assert history.run.store.exists(leftover)


def test_without_its_description_a_run_that_is_whole_has_one_fault(history, folder):
    """The first commit is not compared with an identity that can't be read, and repair says what it waits for."""
    damage(folder, RUN, "empty")
    faults = verify_run(history.run).faults
    assert [fault.name for fault in faults] == [RUN]
    with pytest.raises(CorruptObjectError, match=f"{RUN} .*must be restored from a copy before anything is removed"):
        repair(history.run, faults)


@pytest.mark.parametrize("since", [0, 1])
def test_a_missing_description_hides_no_other_fault(history, since):
    """With commits there is a run: the rest is verified, and nothing is removed before `run.json` is restored."""
    shard = history.committed[1]["shards"][0]["name"]
    history.run.store.delete([RUN, shard])
    found = verify_run(history.run, since)
    assert found.commits == STAGES - since
    by_name = {fault.name: fault.problem for fault in found.faults if fault.committed}
    assert by_name.keys() == {RUN, shard}
    assert by_name[RUN].startswith("it is missing, and there are commits")
    assert "the first commit's parent" in by_name[RUN]
    with pytest.raises(CorruptObjectError, match=f"^{RUN} of run"):
        repair(history.run, found.faults)


def test_without_description_and_commits_there_is_no_run(history):
    """Objects alone are no run: a run's description is there before its first object."""
    history.run.store.delete([RUN, *history.run.store.list("commits/"), LATEST])
    with pytest.raises(RunNotFoundError):
        verify_run(history.run)


def test_a_damaged_record_of_dropped_shards_hides_no_other_fault(history, folder):
    """`retention.json` alone says which shards may be missing: without it none counts as missing."""
    keep_shards_from(history.run.store, 1)
    gone, cut = (history.committed[stage]["shards"][0]["name"] for stage in (0, 1))
    (folder / gone).unlink()
    damage(folder, RETENTION, "cut")
    damage(folder, cut, "cut")
    faults = verify_run(history.run).faults
    assert [(fault.name, fault.committed) for fault in faults] == [(RETENTION, True), (cut, True)]


@pytest.mark.parametrize("kind", ["altered", "cut", "empty"])
def test_each_damaged_object_is_found_alone(history, folder, tmp_path, kind):
    """Whatever its kind and stage; whether a commit names it is told apart."""
    committed = {ref["name"] for stage in range(STAGES) for kind in ("shards", "states", "snapshots")
                 for ref in history.committed[stage][kind]}  # fmt: skip
    committed |= {history.committed[stage]["checkpoint"]["name"] for stage in range(STAGES)}
    for name in objects(history.run):
        kept = tmp_path / "kept"
        shutil.copy(folder / name, kept)
        damage(folder, name, kind)
        (fault,) = verify_run(history.run).faults
        assert (fault.name, fault.committed) == (name, name in committed)
        assert "\n" not in fault.problem
        assert not fault.committed or "Resume the run" not in fault.problem
        shutil.copy(kept, folder / name)
    assert verify_run(history.run).faults == ()


@pytest.mark.parametrize("stage", range(STAGES))
@pytest.mark.parametrize("kind", ["altered", "cut", "empty", "removed"])
def test_a_damaged_commit_is_found(history, folder, stage, kind):
    """The newest commit's removal shortens the log, and its objects are then those of no commit."""
    name = commit_name(stage)
    if kind == "removed":
        (folder / name).unlink()
    else:
        damage(folder, name, kind)
    faults = verify_run(history.run).faults
    assert {fault.name for fault in faults} == (set() if kind == "removed" and stage == STAGES - 1 else {name})


def test_a_damaged_newest_commit_is_the_only_fault_of_a_collected_run(history, folder):
    """The commit before names objects that garbage collection removed, and that nothing needs any more."""
    collect(history.run)
    damage(folder, commit_name(STAGES - 1), "cut")
    assert [fault.name for fault in verify_run(history.run).faults] == [commit_name(STAGES - 1)]


def test_a_finished_run_has_no_faults(history):
    """Its newest commit says that it ended, and has no extension; none is needed before another stage follows."""
    newest, ended = history.run.log.read(STAGES - 1), "max_stages 4 done"
    history.run.log.append(replace(newest, stage=STAGES, parent=history.run.log.digest_of(STAGES - 1), finished=ended))
    assert verify_run(history.run).faults == ()


def test_objects_that_are_collected_meanwhile_are_no_faults(history, monkeypatch):
    """Garbage collection may remove them after they were listed and before they are read."""

    def collected(store):
        collect(history.run)
        return shards_kept_from(store)

    monkeypatch.setattr("penstock.storage.runs.verification.shards_kept_from", collected)
    count = len(objects(history.run))
    found = verify_run(history.run)
    assert len(objects(history.run)) < count == found.objects
    assert found.faults == ()


def test_a_replaced_commit_breaks_the_chain(history, tmp_path):
    """A commit of another history in its place, well-formed as it is, is noticed by its successor's parent."""
    other = History(open_store(tmp_path / "other"), real_shards=True)
    other.commit(0, attempt=1)
    history.run.store.write(commit_name(0), [other.run.store.read(commit_name(0))])
    names = {fault.name for fault in verify_run(history.run).faults}
    assert commit_name(1) in names


def test_another_description_breaks_the_chain(history):
    """The first commit was built upon the identity in run.json."""
    history.run.store.write("run.json", [b'{"identity":{"seed":2},"seed":1}\n'])
    (fault,) = verify_run(history.run).faults
    assert fault.name == commit_name(0)
    assert "run.json" in fault.problem


def test_missing_objects_are_faults_if_they_are_needed(history):
    """The newest commit's, and shards that were not dropped; garbage collection removes older states."""
    newest = history.committed[STAGES - 1]
    older = history.committed[0]
    gone = [newest["states"][0]["name"], newest["checkpoint"]["name"], older["shards"][0]["name"]]
    history.run.store.delete([*gone, older["states"][0]["name"], older["checkpoint"]["name"]])
    found = verify_run(history.run)
    assert [fault.name for fault in found.faults] == sorted(gone)
    assert all(fault.committed for fault in found.faults)
    keep_shards_from(history.run.store, 1)
    assert [fault.name for fault in verify_run(history.run).faults] == sorted(gone[:2])


def test_since_verifies_later_stages_alone(history, folder):
    """Objects and commits of earlier stages are not read."""
    damage(folder, history.committed[0]["shards"][0]["name"], "altered")
    damage(folder, commit_name(0), "altered")
    found = verify_run(history.run, since=1)
    assert (found.commits, found.faults) == (STAGES - 1, ())
    assert found.objects == sum(len(history.committed[stage][kind]) for stage in (1, 2)
                                for kind in ("shards", "states", "snapshots")) + 2  # fmt: skip


@pytest.mark.parametrize("since", [-1, STAGES, 99])
def test_since_must_be_a_committed_stage(history, since):
    """A mistake must not look like an intact run."""
    with pytest.raises(ConfigError, match=f"--since {since}.*expected 0 to 2"):
        verify_run(history.run, since)


def test_repair_waits_for_damaged_commits(history, folder):
    """Their objects look like those of no commit, and must not be removed."""
    damage(folder, commit_name(1), "cut")
    damage(folder, history.committed[1]["shards"][0]["name"], "cut")
    with pytest.raises(CorruptObjectError, match=commit_name(1)):
        repair(history.run, verify_run(history.run).faults)
    assert history.run.store.exists(history.committed[1]["shards"][0]["name"])


def test_repair_leaves_what_was_made_again_meanwhile(history, folder):
    """A run may be resumed while it is verified: it makes the damaged objects again, and commits them."""
    whole, damaged = history.run.store.list("shards/00000003/")[:2]
    data = history.run.store.read(whole)
    for name in (whole, damaged):
        damage(folder, name, "cut")
    faults = verify_run(history.run).faults
    assert [fault.name for fault in faults] == [whole, damaged]
    history.run.store.write(whole, [data])
    assert repair(history.run, faults) == [damaged]
    assert history.run.store.read(whole) == data


def test_repair_leaves_what_was_committed_meanwhile(history, folder):
    """A commit needs it, whole or not: it must be restored from a copy, and is not made again."""
    name = history.run.store.list("shards/00000003/")[0]
    damage(folder, name, "cut")
    faults = verify_run(history.run).faults
    assert [(fault.name, fault.committed) for fault in faults] == [(name, False)]
    history.commit(STAGES)
    damage(folder, name, "cut")
    assert repair(history.run, faults) == []
    assert history.run.store.exists(name)


def test_repair_removes_nothing_once_another_process_drives_the_run(history, folder, monkeypatch):
    """It was suspended while it looked, say, and its lease was taken over."""
    store, clock = history.run.store, Clock()
    name = store.list("shards/00000003/")[0]
    damage(folder, name, "cut")
    faults = verify_run(history.run).faults

    def suspended(store):
        put(store, make_lease(generation=2, owner="the next"))
        clock.now += 10 * TTL
        return damaged_orders(store)

    monkeypatch.setattr("penstock.storage.runs.verification.acquire", partial(acquire, clock=clock))
    monkeypatch.setattr("penstock.storage.runs.verification.damaged_orders", suspended)
    with pytest.raises(LeaseLostError, match="the next"):
        repair(history.run, faults)
    assert store.exists(name)


def test_repair_removes_what_is_made_again(history, folder):
    """Damaged objects that no commit names go, committed ones stay; a run that is driven is left alone."""
    committed = history.committed[1]["shards"][0]["name"]
    uncommitted = history.run.store.list("shards/00000003/")[0]
    damage(folder, committed, "empty")
    damage(folder, uncommitted, "empty")
    faults = verify_run(history.run).faults
    with acquire(history.run.store, "a flow", 30.0), pytest.raises(LeaseHeldError):
        repair(history.run, faults)
    assert repair(history.run, faults) == [uncommitted]
    assert not history.run.store.exists(uncommitted)
    assert [fault.name for fault in verify_run(history.run).faults] == [committed]


@pytest.mark.parametrize("between", ["intact", "damaged"])
def test_missing_commits_with_another_between_them_do_not_end_the_search(tmp_path, monkeypatch, between):
    """Only so many in a row do: any commit in between, even a damaged one, says that the log goes on."""
    monkeypatch.setattr("penstock.storage.runs.verification._MISSING_AT_MOST", 2)
    history = History(open_store(tmp_path / "runs"))
    for stage in range(5):
        history.commit(stage)
    history.run.store.delete([commit_name(1), commit_name(3)])
    if between == "damaged":
        damage(tmp_path / "runs" / "history", commit_name(2), "cut")
    found = verify_run(history.run)
    missing = [1, 3] if between == "intact" else [1, 2, 3]
    assert found.commits == 5 - len(missing)
    assert [fault.name for fault in found.faults if "commits/" in fault.name] == [*map(commit_name, missing)]


def test_a_forged_number_of_commits_ends_the_search(tmp_path, monkeypatch):
    """The newest commit's name is anybody's: without an end, verifying such a run would take for ever."""
    monkeypatch.setattr("penstock.storage.runs.verification._MISSING_AT_MOST", 5)
    history = History(open_store(tmp_path / "runs"), real_shards=True)
    history.commit(0)
    store, far = history.run.store, 10**11
    commit = parse_json(store.read(commit_name(0)))
    store.write(commit_name(far), [canonical_json({**commit, "stage": far})])
    store.write("latest.json", [canonical_json({"stage": far})])
    found = verify_run(history.run)
    assert [fault.name for fault in found.faults if "commits/" in fault.name] == [
        commit_name(stage) for stage in range(1, 6)
    ]
