"""Garbage collection of a whole store goes on after any run that it can't collect."""

import pytest

from penstock.flows.support.garbage import collect_all
from penstock.storage.digest import digest
from penstock.storage.runs.commit_copies import copy_name
from penstock.storage.runs.commits import commit_name
from penstock.storage.runs.latest import LATEST
from penstock.storage.runs.lease import acquire
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
