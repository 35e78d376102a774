"""A folder of cached files within a number of bytes: what comes in whole, and what goes when there is no room for it.

Processes of a node share the folder. How many bytes lie there is kept in a small file beside the locks, so that a file
that comes in costs the same however many are there. Each process takes a little more from that account than it needs,
and asks again when that is used up: otherwise hundreds of actors on a node would wait for each other with every shard.
The folder itself is counted when the account is missing, when a process comes to it for the first time, and when
something has to go. What processes have taken and not used is no part of such a count, so a part of the limit is kept
free for that; in everything else a count that is off is too high, and costs a look.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from storage.node_lock import node_lock

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from typing_extensions import Buffer

LOCKS_FOLDER = "locks"

_PART = ".part"
_USED = "used"
_LOW_WATER = 0.9  # of the limit: what is left when something has to go, so that not every file that comes counts all
_AHEAD = 1 / 1024  # of the limit, for one process
_FREE = 1 / 16  # of the limit, for what is taken ahead: enough for 64 processes
_LOCK_SECONDS = 10.0  # a count and some removals take less; whoever can't wait any longer goes on and is not exact
_STARTING_SECONDS = 60.0  # between a part file's creation and its lock
_LEFTOVER_SECONDS = 3_600.0  # where the file system has no locks, so that nobody can tell whether a writer lives
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}
_COUNTER = itertools.count()


class CacheRoom:
    """Files of one folder, by name. Safe for threads and processes.

    Removing a file that somebody has mapped harms nobody: the content stays until the last mapping is gone.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._counted = False
        self._here = threading.Lock()
        self._ahead_bytes = 0

    def keep(self, name: str, parts: Sequence[Buffer]) -> None:
        """Write a file, whole or not at all; what was not used for longest makes room for it.

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
        """A part file of that size, which its writer holds locked while it lives; it counts from now on."""
        part = self._folder / f"{name}.{os.getpid()}-{next(_COUNTER)}{_PART}"
        with self._here, nullcontext() if nbytes <= self._ahead_bytes else self._lock():
            if nbytes > self._ahead_bytes:
                self._take(nbytes)
            self._ahead_bytes -= nbytes
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            try:
                with contextlib.suppress(OSError):
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.truncate(descriptor, nbytes)  # while nobody counts: from now on it is seen with its size
            except BaseException:
                os.close(descriptor)
                part.unlink()
                raise
        return part, descriptor

    def _take(self, nbytes: int) -> None:
        """Have room for as many bytes, and for some more."""
        wanted = nbytes - self._ahead_bytes + int(_AHEAD * self._limit_bytes)
        used = self._read_used()
        if used is None or not self._counted or used + wanted > (1 - _FREE) * self._limit_bytes:
            used = self._make_room(wanted)
            self._counted = True
        self._write_used(used + wanted)
        self._ahead_bytes += wanted

    def _make_room(self, nbytes: int) -> int:
        """Remove leftovers, and what was not used for longest until `nbytes` more fit; bytes that are there then."""
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
        """One process of this node at a time."""
        folder = self._folder / LOCKS_FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        return node_lock(folder / "room", _LOCK_SECONDS)


def _is_leftover(part: str, age_seconds: float) -> bool:
    """Whether whoever wrote a part file is dead, whichever container of this node it lived in."""
    if age_seconds < _STARTING_SECONDS:
        return False
    descriptor = os.open(part, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return age_seconds > _LEFTOVER_SECONDS
    finally:
        os.close(descriptor)
    return True
