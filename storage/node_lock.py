"""A lock between the processes of a node, for work that is only worth doing once: going on without it is harmless."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_POLL_SECONDS = 0.002
_POLL_AT_MOST_SECONDS = 0.02


@contextlib.contextmanager
def node_lock(file: Path, wait_seconds: float, enough: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Hold a lock, or go on without it when that took too long or the file system has no locks.

    Args:
        file: that is locked; it stays, and its folder must be there.
        wait_seconds: after which whoever holds it is taken to hang.
        enough: looked at while waiting; True ends the wait, without the lock.
    """
    lock = FileLock(file)
    give_up_at = time.monotonic() + wait_seconds
    pause = _POLL_SECONDS
    while time.monotonic() < give_up_at:
        try:
            lock.acquire(blocking=False)
        except Timeout:
            if enough():
                break
            time.sleep(pause)
            pause = min(2 * pause, _POLL_AT_MOST_SECONDS)
        except NotImplementedError:
            break
        else:
            break
    try:
        yield
    finally:
        lock.release()
