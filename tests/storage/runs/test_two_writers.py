"""Two flows write one log: nothing that was committed is lost or forked, whatever the moment, the fault or the store.

A store that creates exclusively lets one of two commits stand. One that does not may let a late one replace another:
then both are kept, and every read of the log is an error that names both.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from s3fs import S3FileSystem

from penstock.storage.errors import CommitConflictError, PenstockError, StoreError
from penstock.storage.runs.commit_copies import copy_name, list_copies
from penstock.storage.runs.commit_schema import encode_commit
from penstock.storage.runs.commits import CommitLog, commit_name, commit_ref
from penstock.storage.stores.open import open_store

from ...support.services.s3_proxy import S3Proxy
from ...support.stored.faulty import REQUESTS, Fault, FaultyStore
from .test_commits import GENESIS, make_commit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.storage.runs.commit_schema import Commit
    from penstock.storage.stores.protocol import Store

FORGETFUL = Fault("forget", ("create",), calls=None)
"""The store ignores the condition of a creation, as some S3 servers do."""
FENCES = pytest.mark.parametrize("is_fenced", [True, False], ids=["fenced", "unfenced"])


class Killed(BaseException):
    """The flow's process is gone."""


class Paused:
    """A store that calls a function before one of its requests, whose number counts from 0."""

    def __init__(self, inner: Store, number: int, then: Callable[[], None]) -> None:
        self._inner, self._left, self._then = inner, number, then
        self.was_reached = False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return self._counted(found) if name in REQUESTS else found

    def _counted(self, request: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self._left -= 1
            if self._left == -1:
                self.was_reached = True
                self._then()
            return request(*arguments, **options)

        return call


def make_store(*, is_fenced: bool) -> FaultyStore:
    """Return a new store in memory, where nothing waits for a disk."""
    return FaultyStore(open_store(f"memory://{uuid.uuid4().hex}"), [] if is_fenced else [FORGETFUL])


def log_of(store: Any, *, is_fenced: bool) -> CommitLog:
    return CommitLog(store, rollup_interval=2, is_fenced=is_fenced)


def one_of_two(which: str, stage: int = 0, parent: str = GENESIS) -> Commit:
    """Return the commit of a stage by one of two flows, which have other results."""
    return make_commit(stage, parent, metrics={"loss": {"a": 1.0, "b": 2.0}[which]})


def append(log: CommitLog, commit: Commit) -> PenstockError | None:
    try:
        log.append(commit)
    except PenstockError as error:
        return error
    return None


def check(store: Any, commits: dict[str, Commit], errors: dict[str, PenstockError | None], *, is_fenced: bool) -> str:
    """Check that the commits of two flows are one history or a conflict that has both; return which it is."""
    newest, conflict = None, ""
    try:
        newest = log_of(store, is_fenced=is_fenced).newest()
    except CommitConflictError as error:
        conflict = str(error)
    if newest is None:
        assert not is_fenced
        for commit in commits.values():
            name = copy_name(commit.stage, commit_ref(commit).digest)
            assert name in conflict
            assert store.read(name) == encode_commit(commit)
        for read in (CommitLog(store).newest, CommitLog(store).shard_table, lambda: CommitLog(store).verify(GENESIS)):
            with pytest.raises(CommitConflictError):
                read()
        return "conflict"
    accepted = [commits[flow] for flow, error in errors.items() if error is None]
    assert accepted == [newest]
    assert log_of(store, is_fenced=is_fenced).verify(GENESIS) == newest.stage + 1
    return next(flow for flow, commit in commits.items() if commit == newest)


@FENCES
def test_a_flow_that_is_paused_before_any_request_forks_nothing(is_fenced):
    """Another flow commits the stage meanwhile, with other results; then the first one wakes, and continues."""
    ends = []
    for number in itertools.count():
        store = make_store(is_fenced=is_fenced)
        commits, errors = {flow: one_of_two(flow) for flow in "ab"}, {}

        def drive(flow: str, over: Any, commits: Any = commits, errors: Any = errors) -> None:
            errors[flow] = append(log_of(over, is_fenced=is_fenced), commits[flow])

        paused = Paused(store, number, lambda drive=drive, store=store: drive("b", store))
        drive("a", paused)
        if not paused.was_reached:
            break
        ends.append(check(store, commits, errors, is_fenced=is_fenced))
    assert set(ends) == ({"a", "b"} if is_fenced else {"a", "b", "conflict"})


@FENCES
def test_two_flows_with_the_same_bytes_agree_whenever_they_are_paused(is_fenced):
    """No order of their requests is a conflict where the same bytes are promised, on any store."""
    for number in itertools.count():
        store = make_store(is_fenced=is_fenced)
        twin = log_of(store, is_fenced=is_fenced)
        paused = Paused(store, number, lambda twin=twin: twin.append(one_of_two("a")))
        log_of(paused, is_fenced=is_fenced).append(one_of_two("a"))
        assert log_of(store, is_fenced=is_fenced).newest() == one_of_two("a")
        assert log_of(store, is_fenced=is_fenced).verify(GENESIS) == 1
        if not paused.was_reached:
            break
    assert number >= 2


@FENCES
@pytest.mark.parametrize("kind", ["killed", "drop", "lose", "repeat", "late"])
def test_whatever_happens_to_a_request_the_next_flow_continues_the_log(is_fenced, kind):
    """A flow is killed before a request, or the request fails, is unanswered, repeated, or lands when the flow is gone.

    The next flow continues from what is there, and commits; the late request lands after that.
    """
    ends = set()
    for number in itertools.count():
        store = make_store(is_fenced=is_fenced)
        mine = one_of_two("a")
        reached = _append_with(store, number, kind, mine, is_fenced=is_fenced)
        next_flow = log_of(store, is_fenced=is_fenced)
        store.heal()
        store.add(*([] if is_fenced else [FORGETFUL]))
        newest = next_flow.complete(next_flow.newest(), GENESIS)
        assert newest in (None, mine)
        theirs = one_of_two("b") if newest is None else one_of_two("b", 1, commit_ref(newest).digest)
        next_flow.append(theirs)
        store.land()
        if newest is None:
            ends.add(check(store, {"a": mine, "b": theirs}, {"b": None}, is_fenced=is_fenced))
        else:
            assert log_of(store, is_fenced=is_fenced).newest() == theirs
            assert log_of(store, is_fenced=is_fenced).verify(GENESIS) == 2
        if not reached:
            break
    # The copy alone may come so late that the next flow has not seen it.
    assert ends <= ({"b", "conflict"} if kind == "late" and not is_fenced else {"b"})


def _append_with(store: FaultyStore, number: int, kind: Any, commit: Commit, *, is_fenced: bool) -> bool:
    """Append a commit with a fault at one of the requests; return whether there are so many."""

    def kill() -> None:
        raise Killed

    if kind == "killed":
        paused = Paused(store, number, kill)
        with contextlib.suppress(Killed):
            log_of(paused, is_fenced=is_fenced).append(commit)
        return paused.was_reached
    before = len(store.met)
    store.add(Fault(kind, ("write", "create"), first=number + 1))
    with contextlib.suppress(StoreError):
        log_of(store, is_fenced=is_fenced).append(commit)
    return any(met == kind for met, _ in store.met[before:])


def test_a_flow_that_wakes_stages_later_replaces_nothing_silently():
    """Another flow has gone on meanwhile: the first is refused, or the conflict is found behind newer commits."""
    ends = []
    for number in itertools.count():
        store = make_store(is_fenced=False)
        second = log_of(store, is_fenced=False)

        def go_on(second: CommitLog = second) -> None:
            if append(second, one_of_two("b")) is None:
                for stage in (1, 2):
                    second.append(make_commit(stage, second.digest_of(stage - 1)))

        paused = Paused(store, number, go_on)
        error = append(log_of(paused, is_fenced=False), one_of_two("a"))
        if not paused.was_reached:
            break
        if store.exists(commit_name(1)):
            assert isinstance(error, CommitConflictError)
            commits = {flow: one_of_two(flow) for flow in "ab"}
            if list_copies(store)[0] == [commit_ref(commits["b"]).digest]:
                assert CommitLog(store).verify(GENESIS) == 3
                ends.append("refused")
            else:
                assert check(store, commits, {}, is_fenced=False) == "conflict"
                assert f"'{commit_name(1)}' was built upon {commit_ref(commits['b']).digest}" in str(error)
                ends.append("conflict")
                with pytest.raises(CommitConflictError):
                    second.append(make_commit(3, second.digest_of(2)))
    assert set(ends) == {"refused", "conflict"}


def test_a_creation_that_lands_after_another_commit_is_a_conflict():
    """Two flows drive: one's creation is under way while the other commits, which notices it at once."""
    store = make_store(is_fenced=False)
    store.add(Fault("late", ("create",)))
    commits = {flow: one_of_two(flow) for flow in "ab"}
    errors = {flow: append(log_of(store, is_fenced=False), commit) for flow, commit in commits.items()}
    assert check(store, commits, errors, is_fenced=False) == "conflict"
    store.land()
    assert store.read(commit_name(0)) == encode_commit(commits["a"])
    assert check(store, commits, errors, is_fenced=False) == "conflict"


def test_a_commit_that_was_replaced_by_one_without_a_copy_is_a_conflict():
    """As by an earlier version of Penstock: the copy has what was replaced."""
    store = make_store(is_fenced=False)
    log = log_of(store, is_fenced=False)
    log.append(one_of_two("b"))
    store.write(commit_name(0), [encode_commit(one_of_two("a"))])
    named = {flow: commit_ref(one_of_two(flow)).digest for flow in "ab"}
    for read in (CommitLog(store).newest, lambda: CommitLog(store).verify(GENESIS)):
        with pytest.raises(CommitConflictError) as found:
            read()
        assert copy_name(0, named["b"]) in str(found.value)
        assert f"'{commit_name(0)}' with the digest {named['a']}" in str(found.value)


def test_a_conflict_ends_when_one_of_both_is_kept():
    """As the error says: the kept one is stored as the commit, and the copy of the other is removed."""
    store = make_store(is_fenced=False)
    store.add(Fault("late", ("create",)))
    for flow in "ab":
        append(log_of(store, is_fenced=False), one_of_two(flow))
    store.land()
    kept, other = (commit_ref(one_of_two(flow)).digest for flow in "ba")
    store.write(commit_name(0), [store.read(copy_name(0, kept))])
    store.delete([copy_name(0, other)])
    log = log_of(store, is_fenced=False)
    assert log.newest() == one_of_two("b")
    log.append(make_commit(1, kept))
    assert log.verify(GENESIS) == 2


# --- over the wire ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def listening(endpoint: str) -> Iterator[S3Proxy]:
    S3FileSystem.clear_instance_cache()  # fsspec keeps them by their options, and those here are in the environment
    with S3Proxy(endpoint) as proxy:
        yield proxy
    S3FileSystem.clear_instance_cache()


@pytest.fixture(scope="module")
def s3_proxy(s3_server) -> Iterator[S3Proxy]:
    with listening(s3_server.endpoint) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def swift_proxy(swift_server) -> Iterator[S3Proxy]:
    with listening(swift_server.endpoint) as proxy:
        yield proxy


@pytest.fixture(params=["s3", "forgetful s3", pytest.param("swift", marks=pytest.mark.slow)])
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return the proxy of a real server that creates exclusively, ignores conditions, or is not atomic."""
    kind = "swift" if request.param == "swift" else "s3"
    url, proxy = request.getfixturevalue(f"{kind}_url"), request.getfixturevalue(f"{kind}_proxy")
    if request.param == "forgetful s3":
        proxy.add(Fault("forget", ("PUT",), calls=None))
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
    monkeypatch.setattr("penstock.storage.stores.remote.FIRST_WAIT_SECONDS", 0.01)
    monkeypatch.setattr("penstock.storage.stores.remote.RETRY_SECONDS", 0.5)
    S3FileSystem.clear_instance_cache()
    yield proxy, url, request.param
    proxy.heal()


def test_a_request_that_lands_minutes_late_loses_nothing(server):
    """The server has begun one flow's creation when another's comes, and ends it when that flow is long gone."""
    proxy, url, kind = server
    is_fenced = kind == "s3"
    commits = {flow: one_of_two(flow) for flow in "ab"}
    store = open_store(url)
    late = Fault("late", ("PUT",), f"*{commit_name(0)}", calls=100)  # all attempts of one client
    proxy.add(late)
    errors = {"a": append(log_of(open_store(url), is_fenced=is_fenced), commits["a"])}
    assert isinstance(errors["a"], StoreError)
    proxy.drop(late)
    errors["b"] = append(log_of(open_store(url), is_fenced=is_fenced), commits["b"])
    assert (errors["b"] is None) == is_fenced
    landed = proxy.land()
    assert len(landed) >= 2
    assert set(landed) == ({412} if is_fenced else {200})
    # Swift orders writes by when they began: it says that the late one succeeded, and keeps the other.
    standing = "a" if kind == "forgetful s3" else "b"
    assert store.read(commit_name(0)) == encode_commit(commits[standing])
    assert check(store, commits, errors, is_fenced=is_fenced) == ("b" if is_fenced else "conflict")


def test_flows_that_race_for_every_stage_lose_and_fork_nothing(server):
    """Two clients commit at once, over and over: one stands, or both are kept."""
    _, url, kind = server
    is_fenced = kind == "s3"
    for number in range(8):
        stores = {flow: open_store(f"{url}/{number}") for flow in "ab"}
        commits = {flow: one_of_two(flow) for flow in "ab"}
        barrier, errors = threading.Barrier(2), {}

        def race(flow: str, stores=stores, commits=commits, barrier=barrier, errors=errors) -> None:
            barrier.wait()
            errors[flow] = append(log_of(stores[flow], is_fenced=is_fenced), commits[flow])

        threads = [threading.Thread(target=race, args=(flow,)) for flow in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        check(stores["a"], commits, errors, is_fenced=is_fenced)
