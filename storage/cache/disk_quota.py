"""Keeps a folder of cached files within a number of bytes: writes files whole and evicts the least recently used.

Processes of a node share the folder. A small file next to the locks has the number of bytes in use, so that adding a
file costs the same however many there are. Each process reserves a little more than it needs, and reserves again when
that is used up: otherwise hundreds of actors on a node would wait for each other at every shard. The folder itself is
scanned when the number is missing, when a process uses it for the first time, and when files must be evicted. A scan
does not see reservations that are not used yet, so a part of the limit is kept free for them; any other error of the
number makes it too high, and costs a scan.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.storage.cache.node_lock import NO_LOCKS, node_lock

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from typing_extensions import Buffer

LOCKS_FOLDER = "locks"

_PART = ".part"
_USED = "used"
_LOW_WATER = 0.9  # of the limit: used after an eviction, so that not every new file scans the folder
_RESERVE = 1 / 1024  # of the limit: reserved ahead by one process
_FREE = 1 / 16  # of the limit: kept free for reservations, enough for 64 processes
_LOCK_SECONDS = 10.0  # a scan and some removals take less; after this, a process continues without the lock, inexactly
_STARTING_SECONDS = 60.0  # between a part file's creation and its lock
_LEFTOVER_SECONDS = 3_600.0  # used where the file system has no locks, which show whether a writer is alive
_COUNTER = itertools.count()


class DiskQuota:
    """Keeps files of one folder, by name, within a limit. Safe for threads and processes.

    Evicting a mapped file is harmless: its content stays until the last mapping is gone.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._scanned = False
        self._here = threading.Lock()
        self._reserved_bytes = 0

    def keep(self, name: str, parts: Sequence[Buffer]) -> None:
        """Write a file, whole or not at all, after evicting the least recently used ones if needed.

        A file that is larger than the limit is kept alone.

        Raises:
            OSError: the disk is full, or the folder can't be written.
        """
        views = [memoryview(part).cast("B") for part in parts]
        part, descriptor = self._begin(name, sum(view.nbytes for view in views))
        try:
            try:
                for view in views:
                    written = 0
                    while written < view.nbytes:
                        written += os.write(descriptor, view[written:])
            finally:
                os.close(descriptor)
            part.replace(self._folder / name)
        except BaseException:
            with contextlib.suppress(OSError):
                part.unlink()
            raise

    def _begin(self, name: str, nbytes: int) -> tuple[Path, int]:
        """Create a part file of that size, locked while its writer lives; it counts from now on."""
        part = self._folder / f"{name}.{os.getpid()}-{next(_COUNTER)}{_PART}"
        with self._here, nullcontext() if nbytes <= self._reserved_bytes else self._lock():
            if nbytes > self._reserved_bytes:
                self._reserve(nbytes)
            self._reserved_bytes -= nbytes
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            try:
                with contextlib.suppress(OSError):
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.truncate(descriptor, nbytes)  # under the lock of the scan: from now on a scan sees its size
            except BaseException:
                os.close(descriptor)
                part.unlink()
                raise
        return part, descriptor

    def _reserve(self, nbytes: int) -> None:
        """Reserve as many bytes, and some more."""
        wanted = nbytes - self._reserved_bytes + int(_RESERVE * self._limit_bytes)
        used = self._read_used()
        if used is None or not self._scanned or used + wanted > (1 - _FREE) * self._limit_bytes:
            used = self._evict(wanted)
            self._scanned = True
        self._write_used(used + wanted)
        self._reserved_bytes += wanted

    def _evict(self, nbytes: int) -> int:
        """Remove leftovers, evict until `nbytes` more fit, and return the bytes in use then."""
        files = []
        used = 0
        for entry in os.scandir(self._folder):
            with contextlib.suppress(FileNotFoundError):
                if not entry.is_file():
                    continue
                status = entry.stat()
                if not entry.name.endswith(_PART):
                    files.append((status.st_mtime_ns, status.st_size, entry.path))
                elif _is_leftover(entry.path, time.time() - status.st_mtime):
                    Path(entry.path).unlink()
                    continue
                used += status.st_size
        if used + nbytes > (1 - _FREE) * self._limit_bytes:
            for _, size, path in sorted(files):
                if used + nbytes <= _LOW_WATER * self._limit_bytes:
                    break
                with contextlib.suppress(FileNotFoundError):
                    Path(path).unlink()
                used -= size
        return used

    def _read_used(self) -> int | None:
        try:
            return int((self._folder / LOCKS_FOLDER / _USED).read_bytes())
        except (OSError, ValueError):
            return None

    def _write_used(self, used: int) -> None:
        (self._folder / LOCKS_FOLDER / _USED).write_bytes(b"%d" % used)

    def _lock(self) -> AbstractContextManager[None]:
        """Lock the number of bytes for one process of this node."""
        folder = self._folder / LOCKS_FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        return node_lock(folder / "room", _LOCK_SECONDS)


def _is_leftover(part: str, age_seconds: float) -> bool:
    """Return whether the writer of a part file is dead, in whichever container of this node it ran."""
    if age_seconds < _STARTING_SECONDS:
        return False
    descriptor = os.open(part, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return age_seconds > _LEFTOVER_SECONDS
    finally:
        os.close(descriptor)
    return True
