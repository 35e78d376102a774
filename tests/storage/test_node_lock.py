"""A lock of a node: one at a time, as long as that is worth waiting for."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from storage.node_lock import node_lock

LONG_SECONDS = 30.0


def test_one_holds_it_at_a_time(tmp_path):
    """Of eight that want it at once, each goes on when the one before has let go."""
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


def test_who_waited_too_long_goes_on_without_it(tmp_path):
    """And lets the one that hangs keep it."""
    with node_lock(tmp_path / "lock", LONG_SECONDS):
        started = time.monotonic()
        with node_lock(tmp_path / "lock", 0.1):
            assert time.monotonic() - started >= 0.1
        with node_lock(tmp_path / "lock", 0.0):
            pass
        assert time.monotonic() - started < LONG_SECONDS


def test_who_waits_goes_on_when_that_is_enough(tmp_path):
    """What was wanted of the lock has come meanwhile."""
    came = threading.Event()
    with node_lock(tmp_path / "lock", LONG_SECONDS), ThreadPoolExecutor(1) as threads:

        def wait() -> bool:
            with node_lock(tmp_path / "lock", LONG_SECONDS, came.is_set):
                return came.is_set()

        waiting = threads.submit(wait)
        assert not waiting.done()
        came.set()
        assert waiting.result(LONG_SECONDS / 2)
