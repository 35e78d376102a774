"""A read that hangs is repeated, and not more often than allowed."""

import pickle
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from penstock.storage.errors import ObjectNotFoundError, StoreError
from penstock.storage.stores.daemon_threads import DaemonThreads
from penstock.storage.stores.hedged import FLOOR_SECONDS, HedgedStore, hedged
from penstock.storage.stores.open import open_store
from penstock.storage.stores.protocol import Store
from penstock.storage.stores.remote import RequestCounts, request_counts
from penstock.storage.testing import StoreContract

SEEN = 20


class TestHedgedStore(StoreContract):
    @pytest.fixture
    def store(self) -> Iterator[Store]:
        store = HedgedStore(
            open_store(f"memory://{uuid.uuid4().hex}"), floor_seconds=0.0, percentile=0.5, max_share=1.0, min_recent=1
        )
        yield store
        store.delete(store.list())


class Gate:
    """Blocks one read until it is opened, possibly with an error."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._opened: Future[None] = Future()

    def open(self, error: Exception | None = None) -> None:
        self._opened.set_exception(error) if error else self._opened.set_result(None)

    def pass_through(self) -> None:
        self.reached.set()
        self._opened.result(150)


class GatedStore:
    """Make a store whose reads meet these gates in order."""

    url = "memory://gated"

    def __init__(self, *gates: Gate | None) -> None:
        self._gates = iter(gates)
        self._lock = threading.Lock()

    def read(self, name: str) -> bytes:
        with self._lock:
            gate = next(self._gates, None)
        if gate:
            gate.pass_through()
        return name.encode()


def seen(*gates: Gate) -> HedgedStore:
    """Make a hedged store that has recorded enough reads to detect slow ones; the gates are for later reads."""
    store = HedgedStore(GatedStore(*[None] * SEEN, *gates), min_recent=SEEN)
    for _ in range(SEEN):
        store.read("shards/seen")
    assert store.counts == RequestCounts(requests=SEEN)
    return store


@pytest.fixture
def reader() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as threads:
        yield threads


def test_a_read_that_hangs_is_answered_by_a_second_one():
    """The first request never answers while this waits; the read ends nevertheless, and is counted."""
    stuck = Gate()
    store = seen(stuck)
    assert store.read("shards/new") == b"shards/new"
    assert store.counts == RequestCounts(requests=SEEN + 2, hedges=1)
    stuck.open()


def test_the_first_request_may_still_win(reader: ThreadPoolExecutor):
    """Its answer is taken while the second request hangs."""
    first, second = Gate(), Gate()
    reading = reader.submit(seen(first, second).read, "shards/new")
    assert second.reached.wait(150)
    first.open()
    assert reading.result(150) == b"shards/new"
    second.open()


@pytest.mark.parametrize("fails", [0, 1])
def test_one_failed_request_of_two_is_no_failure(reader: ThreadPoolExecutor, fails: int):
    """When either request fails, the read waits for the other's answer."""
    gates = [Gate(), Gate()]
    reading = reader.submit(seen(*gates).read, "shards/new")
    assert gates[1].reached.wait(150)
    gates[fails].open(StoreError("a request of two failed"))
    gates[1 - fails].open()
    assert reading.result(150) == b"shards/new"


def test_two_failed_requests_are_one_failure(reader: ThreadPoolExecutor):
    """When both fail, the read does."""
    gates = [Gate(), Gate()]
    reading = reader.submit(seen(*gates).read, "shards/new")
    assert gates[1].reached.wait(150)
    for gate in gates:
        gate.open(StoreError("both failed"))
    with pytest.raises(StoreError, match="both failed"):
        reading.result(150)


def test_a_missing_object_is_an_answer(reader: ThreadPoolExecutor):
    """The first request that finds no object ends the read."""
    first, second = Gate(), Gate()
    reading = reader.submit(seen(first, second).read, "shards/new")
    assert second.reached.wait(150)
    second.open(ObjectNotFoundError("nothing there"))
    with pytest.raises(ObjectNotFoundError):
        reading.result(150)
    first.open()


def test_second_requests_are_a_bounded_share():
    """If every read is slower than all before, most are not repeated."""

    class SlowerAndSlower(GatedStore):
        delay_seconds = 0.0

        def read(self, name: str) -> bytes:
            self.delay_seconds += 0.0005
            time.sleep(self.delay_seconds)
            return b""

    store = HedgedStore(SlowerAndSlower(), floor_seconds=0.0, max_share=0.1, min_recent=1)
    for _ in range(50):
        store.read("shards/new")
    assert store.counts.hedges <= 5
    assert store.counts.requests == 50 + store.counts.hedges


def test_kinds_of_reads_have_separate_times(reader: ThreadPoolExecutor):
    """Fast small reads make no large one slow: the first read of a kind is not repeated."""
    large, again = Gate(), Gate()
    store = seen(large, again)
    reading = reader.submit(store.read, "snapshots/large")
    assert large.reached.wait(150)
    assert not again.reached.wait(5 * FLOOR_SECONDS), "as a small read of that time would be"
    large.open()
    assert reading.result(150) == b"snapshots/large"
    assert store.counts == RequestCounts(requests=SEEN + 1)


def test_local_folders_are_left_alone(tmp_path):
    """Only remote stores are wrapped, and once."""
    local, remote = open_store(tmp_path), open_store("memory://somewhere")
    assert hedged(local) is local
    wrapped = hedged(remote)
    assert isinstance(wrapped, HedgedStore)
    assert hedged(wrapped) is wrapped


def test_folders_share_counts_and_copies_start_from_zero():
    """Reads of a store below a folder are counted with the rest; a copy by pickle counts from zero."""
    store = hedged(open_store(f"memory://{uuid.uuid4().hex}"))
    below = store.at("runs")
    below.write("object", [b"content"])
    below.read("object")
    assert request_counts(store) == request_counts(below) == RequestCounts(requests=2)
    copy = pickle.loads(pickle.dumps(store))
    assert request_counts(copy) == RequestCounts()
    copy.delete(["runs/object"])


READ_FROM_THE_DEAD = """
import sys, threading
from penstock.storage.stores.hedged import hedged
from penstock.storage.stores.open import open_store

never = {"read_timeout": 600}
store = hedged(open_store("s3://bucket/runs", endpoint_url=sys.argv[1], key="k", secret="s", config_kwargs=never))
threading.Thread(target=store.read, args=("object",), daemon=True).start()
sys.stdin.read()
"""


def test_a_read_that_hangs_keeps_no_process_from_ending():
    """The server accepts the request and never answers, and the client would wait for ten minutes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        command = [sys.executable, "-c", READ_FROM_THE_DEAD, endpoint]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            server.settimeout(150)
            connection, _ = server.accept()
            with connection:
                assert connection.recv(1)
                try:
                    _, said = process.communicate("", timeout=150)
                finally:
                    process.kill()
    assert (process.returncode, said) == (0, "")


def test_threads_are_started_as_needed_up_to_the_limit():
    """Four run at once, all of them daemons; a fifth task waits, and idle threads take the next one."""
    threads, gates = DaemonThreads(4, "test-daemon"), [Gate() for _ in range(5)]
    pieces = [threads.submit(gate.pass_through) for gate in gates]
    assert all(gate.reached.wait(150) for gate in gates[:4])
    mine = [thread for thread in threading.enumerate() if thread.name == "test-daemon"]
    assert len(mine) == 4
    assert all(thread.daemon for thread in mine)
    assert not gates[4].reached.is_set()
    for gate in gates:
        gate.open()
    for piece in pieces:
        piece.result(150)
    assert threads.submit(threading.current_thread).result(150) in mine


def test_a_failed_task_sets_its_futures_exception():
    """The thread continues with the next task."""
    threads = DaemonThreads(1, "test-daemon")

    def fail() -> None:
        raise StoreError("failed")

    with pytest.raises(StoreError, match="failed"):
        threads.submit(fail).result(150)
    assert threads.submit(lambda: 7).result(150) == 7
