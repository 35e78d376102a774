"""A node's cache of immutable objects: each is downloaded once per node, however many processes ask for it.

Files are named by the digest of their content, so a cached file is never stale; it is checked when it comes in and when
a process meets it for the first time. Whatever goes wrong with the cache's own disk costs speed, never an answer.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import mmap
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from storage.digest import digest
from storage.errors import CorruptObjectError, StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from storage.refs import Ref
    from storage.store import Store

_LOG = logging.getLogger(__name__)
_LOCKS = 256  # lock files stay for ever, so there is a fixed number of them
_LOCK_SECONDS = 300.0  # a download that takes longer than this is done twice
_LOCK_POLL_SECONDS = 0.01
_LEFTOVER_SECONDS = 3_600.0
_MAP_ATTEMPTS = 3  # another process may evict a file between its download and its mapping
_COUNTER = itertools.count()


class NodeCache:
    """Content-addressed files in a folder that the processes of a node share. Picklable, safe for threads.

    Objects of a local store are used where they lie: nothing is copied. Neither are they checked here; whoever decodes
    them does.
    """

    def __init__(self, folder: Path | str, limit_bytes: int) -> None:
        self.folder = Path(folder)
        self.limit_bytes = limit_bytes
        self._checked: set[str] = set()
        self._warned = False

    def __reduce__(self) -> tuple[type[NodeCache], tuple[Path, int]]:
        return NodeCache, (self.folder, self.limit_bytes)

    def get(self, store: Store, ref: Ref) -> Path:
        """A local file with the object's content. Open it at once: other processes may evict it later on.

        Raises:
            CorruptObjectError: the stored object has another digest than its reference.
            StoreError: the store can't be read, or the cache's disk can't be written (`get_buffer` copes with that).
        """
        local = store.path(ref.name)
        if local is not None:
            return local
        try:
            return self._file(store, ref)
        except OSError as error:
            raise StoreError(
                f"cannot keep '{ref.name}' in the cache '{self.folder}': {error}; check that the folder may be written "
                "and has space"
            ) from error

    def get_buffer(self, store: Store, ref: Ref) -> memoryview:
        """The object's content as a private writable buffer, straight from the store if the cache's disk fails.

        Raises:
            CorruptObjectError: the stored object has another digest than its reference.
            StoreError: the store can't be read.
        """
        if store.path(ref.name) is not None:
            return store.view(ref.name)
        try:
            for _ in range(_MAP_ATTEMPTS):
                with contextlib.suppress(FileNotFoundError):
                    return _map(self._file(store, ref))
        except OSError as error:
            if not self._warned:
                self._warned = True
                _LOG.warning("the cache '%s' fails (%s); objects are read from the store instead", self.folder, error)
        return _download(store, ref)

    def _file(self, store: Store, ref: Ref) -> Path:
        file = self.folder / ref.digest
        if self._hit(file, ref):
            return file
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._lock(ref):
            if not self._hit(file, ref):  # else another process was faster
                self._keep(file, _download(store, ref))
                self._checked.add(ref.digest)
        return file

    def _hit(self, file: Path, ref: Ref) -> bool:
        try:
            if ref.digest not in self._checked:
                # A power cut may leave a file that is named but holds zeros; so trust nothing unseen.
                if digest(_map(file)) != ref.digest:
                    file.unlink()
                    return False
                self._checked.add(ref.digest)
            with contextlib.suppress(PermissionError):  # another user's file
                os.utime(file)  # its last use; access times are often switched off
        except FileNotFoundError:
            self._checked.discard(ref.digest)
            return False
        return True

    def _keep(self, file: Path, content: memoryview) -> None:
        part = file.with_name(f"{file.name}.{os.getpid()}-{next(_COUNTER)}.part")
        try:
            with part.open("xb", buffering=0) as opened:
                written = 0
                while written < len(content):
                    written += opened.write(content[written:])
            part.replace(file)
        except BaseException:
            with contextlib.suppress(OSError):
                part.unlink()
            raise
        self._evict(file)

    def _evict(self, newest: Path) -> None:
        """Remove what was not used for longest until the limit holds; `newest` stays even if it alone is above."""
        files = []
        for entry in os.scandir(self.folder):
            with contextlib.suppress(FileNotFoundError):
                status = entry.stat()
                if entry.name.endswith(".part"):
                    if status.st_mtime < time.time() - _LEFTOVER_SECONDS:
                        Path(entry.path).unlink()
                elif entry.is_file():
                    files.append((status.st_mtime_ns, status.st_size, entry.path))
        total_bytes = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total_bytes <= self.limit_bytes:
                break
            if path != str(newest):
                with contextlib.suppress(FileNotFoundError):
                    Path(path).unlink()
                total_bytes -= size

    @contextlib.contextmanager
    def _lock(self, ref: Ref) -> Iterator[None]:
        """One download of an object at a time on this node; going on without the lock costs a second download."""
        folder = self.folder / "locks"
        folder.mkdir(exist_ok=True)
        lock = FileLock(folder / f"{int(ref.digest[:4], 16) % _LOCKS:02x}", timeout=_LOCK_SECONDS)
        # Timeout: the other download hangs. NotImplementedError: the file system has no locks.
        with contextlib.suppress(Timeout, NotImplementedError):
            lock.acquire(poll_interval=_LOCK_POLL_SECONDS)
        try:
            yield
        finally:
            lock.release()


def _download(store: Store, ref: Ref) -> memoryview:
    content = store.view(ref.name)
    found = digest(content)
    if found != ref.digest:
        raise CorruptObjectError(
            f"'{ref.name}' in the store '{store.url}' has the digest {found} ({len(content)} bytes), expected "
            f"{ref.digest} ({ref.nbytes or 'unknown'} bytes); it was altered or cut short: restore it, or resume from "
            "an older commit"
        )
    return content


def _map(file: Path) -> memoryview:
    with file.open("rb") as opened:
        if os.fstat(opened.fileno()).st_size == 0:
            return memoryview(bytearray())
        return memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY))
