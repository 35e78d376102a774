"""Members of one process share what they read: the run, and the commit before, once for all of them."""

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from penstock.storage.errors import ConfigError, ObjectNotFoundError
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


def test_a_run_that_replaced_another_of_its_name_is_loaded_anew(make_context: MakeContext):
    """In a process that has worked for the first one, whose settings must not train the second."""
    first = make_context()
    assignment = first_stage_of("act", store=first.run.root.url, description=first.run.description_digest())
    assert load_context(assignment).config.schedule.round_steps == 8
    shutil.rmtree(first.run.store.url)
    second = make_context({"schedule": {"round_steps": 4}})
    replaced = replace(assignment, description=second.run.description_digest())
    assert load_context(replaced).config.schedule.round_steps == 4


def test_a_run_that_is_another_one_than_the_flows_is_refused(make_context: MakeContext):
    """As where a worker's host has another folder of that name, or the run was replaced since the flow began."""
    context = make_context()
    assignment = first_stage_of("act", store=context.run.root.url, description="0" * 64)
    with pytest.raises(ConfigError, match="another description here than where its work was assigned"):
        load_context(assignment)
