"""A node's lock is held by one at a time, and waiting for it is bounded."""

import errno
import fcntl
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.storage.cache.node_lock import NO_LOCKS, node_lock

LONG_SECONDS = 150.0


def test_one_thread_holds_the_lock_at_a_time(tmp_path):
    """Each of eight waiting threads continues when the one before has released the lock."""
    inside, most = [], []

    def work() -> None:
        with node_lock(tmp_path / "lock", LONG_SECONDS):
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.005)
            inside.pop()

    with ThreadPoolExecutor(8) as threads:
        for done in [threads.submit(work) for _ in range(8)]:
            done.result(LONG_SECONDS)
    assert most == [1] * 8


def test_a_waiter_continues_without_the_lock_after_its_time_out(tmp_path):
    """The holder that hangs keeps it."""
    with node_lock(tmp_path / "lock", LONG_SECONDS):
        started = time.monotonic()
        with node_lock(tmp_path / "lock", 0.1):
            assert time.monotonic() - started >= 0.1
        with node_lock(tmp_path / "lock", 0.0):
            pass


def test_a_waiter_continues_when_enough_returns_true(tmp_path):
    """The lock's purpose was reached meanwhile."""
    came = threading.Event()
    with node_lock(tmp_path / "lock", LONG_SECONDS), ThreadPoolExecutor(1) as threads:

        def wait() -> bool:
            with node_lock(tmp_path / "lock", LONG_SECONDS, came.is_set):
                return came.is_set()

        waiting = threads.submit(wait)
        assert not waiting.done()
        came.set()
        assert waiting.result(LONG_SECONDS)


def test_work_continues_where_a_file_system_has_no_locks(tmp_path, monkeypatch: pytest.MonkeyPatch):
    """A folder on NFS without a lock daemon is one; any other error is raised. filelock itself handles ENOSYS."""

    def lock(number: int) -> None:
        def refuse(*_: object) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(fcntl, "flock", refuse)
        with node_lock(tmp_path / "lock", LONG_SECONDS):
            pass

    for number in NO_LOCKS - {errno.ENOSYS}:
        lock(number)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        lock(errno.EIO)
