"""Garbage collection of a whole store goes on after any run that it can't collect."""

import json

import pytest

from penstock.flows.support.garbage import collect_all
from penstock.flows.support.verify_runs import verify_runs
from penstock.storage.digest import digest
from penstock.storage.errors import ConfigError, StoreError
from penstock.storage.runs.commit_copies import copy_name
from penstock.storage.runs.commits import commit_name
from penstock.storage.runs.latest import LATEST
from penstock.storage.runs.lease import acquire
from penstock.storage.stores.local import LocalStore
from penstock.storage.stores.open import open_store

from ...storage.runs.test_gc import History


def with_a_conflict(run):
    data = run.store.read(commit_name(2)).replace(b'"episodes":0', b'"episodes":7')
    run.store.write(copy_name(2, digest(data)), [data])
    run.store.delete([LATEST])


def without_a_commit(run):
    run.store.delete([commit_name(1)])


def with_a_damaged_description(run):
    run.store.write("run.json", [b"{"])


@pytest.mark.parametrize("harm", [with_a_conflict, without_a_commit, with_a_damaged_description])
def test_a_run_that_cannot_be_collected_is_skipped(tmp_path, harm):
    """The row says why, and the runs behind it are collected; a driven one is skipped as well."""
    root = open_store(tmp_path)
    runs = {name: History(root, name) for name in ("a-harmed", "b-driven", "c-whole")}
    for history in runs.values():
        for stage in range(3):
            history.commit(stage)
    harm(runs["a-harmed"].run)
    with acquire(runs["b-driven"].run.store, "a flow", 60.0):
        harmed, driven, whole = collect_all(str(tmp_path), 1, dry_run=False)
    assert harmed["run"] == "a-harmed"
    assert harmed["left"]
    assert harmed["objects"] == driven["objects"] == 0
    assert "a flow" in (driven["left"] or "")
    assert whole["left"] is None
    assert whole["objects"] > 0


def test_runs_that_may_only_be_read_are_skipped(tmp_path, monkeypatch):
    """As others' in a shared folder; where none can be written, the store is what is wrong."""
    root = open_store(tmp_path)
    for name in ("a-theirs", "b-mine"):
        history = History(root, name)
        for stage in range(3):
            history.commit(stage)
    History(open_store(tmp_path / "other"), "a-theirs").commit(0)
    create = LocalStore.create

    def refuse(self, name, data):
        if self.url.endswith("/a-theirs"):
            raise StoreError(f"cannot write '{name}'")
        return create(self, name, data)

    monkeypatch.setattr(LocalStore, "create", refuse)
    theirs, mine = collect_all(str(tmp_path), 1, dry_run=False)
    assert "cannot write 'lease.json'" in (theirs["left"] or "")
    assert mine["left"] is None
    assert mine["objects"] > 0
    with pytest.raises(StoreError, match="cannot write"):
        collect_all(str(tmp_path / "other"), 1, dry_run=False)


def test_a_run_that_lost_its_description_is_verified(tmp_path):
    """Unless it is being made: a copy and a fork make `run.json` last. A folder without commits holds no run."""
    root = open_store(tmp_path)
    histories = [History(root, name, real_shards=True) for name in ("a-lost", "b-made", "c-empty")]
    for history in histories[:2]:
        history.commit(0)
    for history in histories:
        history.run.store.delete(["run.json"])
    with acquire(histories[1].run.store, "a copy", 60.0):
        (lost,) = verify_runs(str(tmp_path), None, 0)
    assert (lost["run"], lost["commits"], lost["faults"]) == ("a-lost", 1, 1)
    assert (lost["first"] or "").startswith("run.json: it is missing")
    taken = json.loads(histories[1].run.store.read("lease.json")) | {"released": False, "machine": "another"}
    for owner, found in (("a copy", ["a-lost"]), ("flow run", ["a-lost", "b-made"])):
        histories[1].run.store.write("lease.json", [json.dumps(taken | {"owner": owner}).encode()])
        assert [row["run"] for row in verify_runs(str(tmp_path), None, 0)] == found
    (skipped, _) = verify_runs(str(tmp_path), None, 5)
    assert (skipped["run"], skipped["commits"], skipped["faults"]) == ("a-lost", 0, 0)


def test_runs_without_a_stage_are_not_verified_from_it(tmp_path):
    """Runs that are not named are verified as far as they have it; a named one must have it."""
    root = open_store(tmp_path)
    for name, stages in (("a-short", 1), ("b-long", 3)):
        history = History(root, name, real_shards=True)
        for stage in range(stages):
            history.commit(stage)
    short, long = verify_runs(str(tmp_path), None, 2)
    assert (short["commits"], short["faults"], long["faults"]) == (0, 0, 0)
    assert long["commits"] > 0
    with pytest.raises(ConfigError, match="--since 2"):
        verify_runs(str(tmp_path), "a-short", 2)
