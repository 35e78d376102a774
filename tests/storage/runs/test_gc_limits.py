"""Garbage collection has limits: it stops once its lease is lost, reads so many commits, and obeys readers' claims."""

from dataclasses import replace
from functools import partial

import pytest

from penstock.storage.errors import LeaseLostError
from penstock.storage.runs.gc import collect
from penstock.storage.runs.lease import acquire
from penstock.storage.runs.reader_claims import reading, shards_kept_from
from penstock.storage.stores.open import open_store

from ...support.stored.leases import TTL, Clock, make_lease, put
from .test_gc import History


@pytest.fixture
def history(tmp_path):
    return History(open_store(tmp_path))


def test_a_collection_whose_lease_is_taken_over_leaves_the_rest(history, monkeypatch):
    """It was suspended between two removals, say; the next flow may need what is still there."""
    clock, done = Clock(), []

    def suspended(removed, of):
        done.append((removed, of))
        put(history.run.store, make_lease(generation=2, owner="the next flow"))
        clock.now += 10 * TTL

    monkeypatch.setattr("penstock.storage.runs.gc.acquire", partial(acquire, clock=clock))
    monkeypatch.setattr("penstock.storage.runs.gc._DELETE_AT_ONCE", 1)
    for stage in range(2):
        history.commit(stage)
    names = collect(history.run, dry_run=True).names
    with pytest.raises(LeaseLostError, match="the next flow"):
        collect(history.run, on_progress=suspended)
    assert done == [(1, len(names))]
    assert set(names[1:]) == set(names) & history.contents().keys()


def test_a_reader_of_no_shards_prevents_no_dropping(history):
    """It keeps the snapshot that it reads, while the shards of its stage are given up."""
    for stage in range(2):
        history.commit(stage)
    with reading(history.run.store, "test", 0, 0, shards=False):
        collect(history.run, drop_shards_before=1)
        assert shards_kept_from(history.run.store) == 1
        assert history.resumable(0) <= history.contents().keys()


def test_the_best_evaluation_counts_only_while_its_snapshot_is_there(history):
    """Nothing can be loaded from it otherwise, so the next best one is kept."""
    for stage, mean_return in enumerate((9.0, 5.0, 1.0)):
        history.commit(stage, mean_return=mean_return)
    history.run.store.delete(history.named(0, "snapshots"))
    assert history.run.store.list("snapshots/00000001-")
    collect(history.run)
    names = history.contents().keys()
    assert not history.resumable(0) & names
    assert history.resumable(1) | history.resumable(2) <= names


def test_an_evaluation_without_a_return_is_passed_over(history):
    """Garbage is collected although it is damaged: it only chooses one more commit to keep."""
    history.commit(0, mean_return=1.0)
    unread = replace(history.run.log.read(0), stage=1, parent=history.run.log.digest_of(0), evaluation={"version": 2.0})
    history.run.log.append(unread)
    assert set(collect(history.run).names) == set(history.uncommitted)


def test_the_evaluations_of_the_newest_commits_alone_are_compared(history, monkeypatch):
    """A first collection of a very long run would read its whole log otherwise."""
    monkeypatch.setattr("penstock.storage.runs.gc._COMPARED_COMMITS", 2)
    for stage, mean_return in enumerate((9.0, 1.0, 5.0, 3.0)):
        history.commit(stage, mean_return=mean_return)
    collect(history.run)
    names = history.contents().keys()
    assert {stage for stage in range(4) if history.resumable(stage) <= names} == {2, 3}


def test_the_sizes_that_the_newest_commits_name_alone_are_reported(tmp_path, monkeypatch):
    """A store that lists no sizes would make a collection read a commit for each stage that it removes from."""
    monkeypatch.setattr("penstock.storage.runs.gc._SIZED_COMMITS", 2)
    history = History(open_store(f"memory://{tmp_path.name}/sized"))
    for stage in range(3):
        history.commit(stage)
    before = history.contents()
    report = collect(history.run)
    assert history.resumable(0) | history.resumable(1) <= set(report.names)
    assert report.nbytes == sum(len(before[name]) for name in history.resumable(1))
