"""Locks work among the processes of a node that should be done only once; continuing without the lock is harmless."""

from __future__ import annotations

import contextlib
import errno
import time
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL})
"""Error numbers of a file system without locks: a folder on NFS without a lock daemon, say."""

_POLL_SECONDS = 0.001
_POLL_AT_MOST_SECONDS = 0.02
_POLL_SHARE = 0.1  # of the time waited so far


@contextlib.contextmanager
def node_lock(file: Path, wait_seconds: float, enough: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Hold a lock, or continue without it if that takes too long or the file system has no locks.

    Args:
        file: the file to lock; it stays, and its folder must exist.
        wait_seconds: time after which the holder is assumed to hang.
        enough: polled while waiting; True ends the wait, without the lock.
    """
    lock = FileLock(file)
    started = time.monotonic()
    while (waited := time.monotonic() - started) < wait_seconds:
        try:
            lock.acquire(blocking=False)
        except Timeout:
            if enough():
                break
            time.sleep(min(max(_POLL_SECONDS, _POLL_SHARE * waited), _POLL_AT_MOST_SECONDS))
        except NotImplementedError:
            break
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            break
        else:
            break
    try:
        yield
    finally:
        lock.release()
