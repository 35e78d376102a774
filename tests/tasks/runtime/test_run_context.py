"""Members of one process share what they read: the run, and the commit before, once for all of them."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.storage.errors import ObjectNotFoundError
from penstock.tasks.runtime.run_context import RecentCommit, _load, load_context

from ..conftest import MakeContext, first_stage_of


def test_members_that_begin_together_share_one_reading():
    """Eight threads that ask for the same commit get one object, read once; another stage's is read anew."""
    recent, begin, reads = RecentCommit(), threading.Barrier(8), []

    def read() -> dict[str, int]:
        reads.append(1)
        return {"stage": 3}

    def ask() -> dict[str, int]:
        begin.wait(150)
        return recent.get("digest-3", read)

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: ask(), range(8)))
    assert len(reads) == 1
    assert len({id(commit) for commit in found}) == 1
    assert recent.get("digest-4", lambda: {"stage": 4}) == {"stage": 4}


def test_a_commit_that_could_not_be_read_is_not_remembered():
    """The next call reads it again; the earlier commit is still cached."""
    recent = RecentCommit()
    before = recent.get("digest-3", lambda: {"stage": 3})

    def fail() -> dict[str, int]:
        raise ObjectNotFoundError("it is gone")

    with pytest.raises(ObjectNotFoundError):
        recent.get("digest-4", fail)
    assert recent.get("digest-3", fail) is before
    assert recent.get("digest-4", lambda: {"stage": 4}) == {"stage": 4}


def test_members_that_begin_together_load_their_run_once(make_context: MakeContext):
    """Eight threads get one context, and with it one store and one cache."""
    store = make_context().run.root.url
    _load.cache_clear()
    begin = threading.Barrier(8)

    def load(replica: int) -> int:
        begin.wait(150)
        return id(load_context(first_stage_of("act", 8, store=store, replica=replica)))

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(load, range(8)))) == 1
    assert _load.cache_info().misses == 1
