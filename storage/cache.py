"""A node's cache of immutable objects: each is downloaded once per node, however many threads and processes ask for it.

Files are named by the digest of their content, so a cached file is never stale; it is checked when it comes in and when
a process meets it for the first time. Whatever goes wrong with the cache's own disk costs speed, never an answer.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import tempfile
import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from storage.cache_room import LOCKS_FOLDER, CacheRoom
from storage.contents import check_content
from storage.errors import CorruptObjectError, StoreError
from storage.node_lock import node_lock

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from typing_extensions import Buffer

    from storage.refs import Ref
    from storage.store import Store

LIMIT_BYTES = 4 << 30
"""Of a cache that nobody gave another limit."""

_LOG = logging.getLogger(__name__)
_LOCKS = 256  # lock files stay for ever, so there is a fixed number of them
_LOCK_SECONDS = 300.0  # a download that takes longer than this is done twice
_MAP_ATTEMPTS = 3  # another process may evict a file between its download and its mapping
_CHECKED_AT_MOST = 65_536  # digests remembered; forgetting them costs another check


@dataclass(slots=True)
class CacheTally:
    """What became of somebody's reads through a cache. Counts up from any thread; a local store's reads count nowhere.

    Every read is a hit or a miss. A miss that had to wait for another reader's download is a wait, and causes no
    request.
    """

    hits: int = 0
    misses: int = 0
    downloads: int = 0
    waits: int = 0
    origin_bytes: int = 0
    """Of its own downloads."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def count(
        self, *, hits: int = 0, misses: int = 0, waits: int = 0, downloads: int = 0, origin_bytes: int = 0
    ) -> None:
        """Add to the counters."""
        with self._lock:
            self.hits += hits
            self.misses += misses
            self.waits += waits
            self.downloads += downloads
            self.origin_bytes += origin_bytes

    def to_json(self) -> dict[str, int]:
        """For `timings/`."""
        names = ("hits", "misses", "downloads", "waits", "origin_bytes")
        return {name: getattr(self, name) for name in names}


def default_cache_folder() -> str:
    """One for all runs of a user on a node."""
    return str(Path(tempfile.gettempdir()) / f"penstock-cache-{os.getuid()}")


class NodeCache:
    """Content-addressed files in a folder that the processes of a node share. Picklable, safe for threads.

    Objects of a local store are used where they lie: nothing is copied. Neither are they checked here; whoever decodes
    them does.
    """

    def __init__(self, folder: Path | str, limit_bytes: int = LIMIT_BYTES) -> None:
        self.folder = Path(folder)
        self.limit_bytes = limit_bytes
        self._room = CacheRoom(self.folder, limit_bytes)
        self._checked: set[str] = set()
        self._fetching: dict[str, Future[None]] = {}
        self._fetching_lock = threading.Lock()
        self._warned = False

    def __reduce__(self) -> tuple[type[NodeCache], tuple[Path, int]]:
        return NodeCache, (self.folder, self.limit_bytes)

    def get(self, store: Store, ref: Ref, tally: CacheTally | None = None) -> Path:
        """A local file with the object's content. Open it at once: other processes may evict it later on.

        Raises:
            CorruptObjectError: the stored object has another digest than its reference.
            StoreError: the store can't be read, or the cache's disk can't be written (`get_buffer` copes with that).
        """
        local = store.path(ref.name)
        if local is not None:
            return local
        try:
            return self._file(store, ref, tally or CacheTally())
        except OSError as error:
            raise StoreError(
                f"cannot keep '{ref.name}' in the cache '{self.folder}': {error}; check that the folder may be written "
                "and has space"
            ) from error

    def get_buffer(self, store: Store, ref: Ref, tally: CacheTally | None = None) -> memoryview:
        """The object's content as a private writable buffer, straight from the store if the cache's disk fails.

        Raises:
            CorruptObjectError: the stored object has another digest than its reference.
            StoreError: the store can't be read.
        """
        if store.path(ref.name) is not None:
            return store.view(ref.name)
        tally = tally or CacheTally()
        try:
            for _ in range(_MAP_ATTEMPTS):
                with contextlib.suppress(FileNotFoundError):
                    return _map(self._file(store, ref, tally))
        except _NotKeptError as error:
            self._warn(error)
            # All readers that waited for this download get the same error.
            return memoryview(bytearray(error.content))
        except OSError as error:
            self._warn(error)
        return _download(store, ref, tally)

    def put(self, store: Store, ref: Ref, parts: Sequence[Buffer]) -> None:
        """Keep what this process has made itself, so that readers of this node need not download it.

        A hint: where the cache's disk fails, readers go to the store. Nothing is kept of a local store's objects. The
        parts' digest is taken to be the reference's.
        """
        if store.path(ref.name) is not None:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            # Without the lock of a download: nobody can be at one before this returns, unless what is made here was
            # made before, and then either file is right.
            if not self._has(ref):
                self._room.keep(ref.digest, parts)
                self._trust(ref.digest)
        except OSError as error:
            self._warn(error)

    def find(self, ref: Ref) -> memoryview | None:
        """The object's content as a private writable buffer if this node keeps it; asks no store.

        What is found stays whole, whatever becomes of the file.
        """
        try:
            return _map(self.folder / ref.digest) if self._has(ref) else None
        except OSError:
            return None

    def _file(self, store: Store, ref: Ref, tally: CacheTally) -> Path:
        """The object's file. Of the readers in this process one goes for it; the others wait for that one."""
        file = self.folder / ref.digest
        if self._has(ref):
            tally.count(hits=1)
            return file
        tally.count(misses=1)
        while True:
            with self._fetching_lock:
                fetching = self._fetching.get(ref.digest)
                leads = fetching is None
                if fetching is None:
                    fetching = self._fetching[ref.digest] = Future()
            if leads:
                self._lead(store, ref, tally, fetching)
                return file
            fetching.result()
            if self._has(ref):
                tally.count(waits=1)
                return file

    def _lead(self, store: Store, ref: Ref, tally: CacheTally, fetching: Future[None]) -> None:
        error: BaseException | None = None
        try:
            self._fetch(store, ref, tally)
        except BaseException as raised:
            error = raised
            raise
        finally:
            with self._fetching_lock:
                del self._fetching[ref.digest]
            if isinstance(error, Exception):
                fetching.set_exception(error)
            else:
                fetching.set_result(None)  # an interrupted leader says nothing of the object: the others try themselves

    def _fetch(self, store: Store, ref: Ref, tally: CacheTally) -> None:
        """Download, unless another process of the node is faster."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._lock(ref.digest):
            if self._has(ref):
                tally.count(waits=1)
                return
            content = _download(store, ref, tally)
            try:
                self._room.keep(ref.digest, [content])
            except OSError as error:
                raise _NotKeptError(content, error) from error
            self._trust(ref.digest)

    def _has(self, ref: Ref) -> bool:
        """Whether the file is there and right; then it was used now."""
        file = self.folder / ref.digest
        try:
            if ref.digest not in self._checked:
                # A power cut may leave a file that is named but holds zeros; so trust nothing unseen.
                try:
                    check_content(_map(file), ref, str(file))
                except CorruptObjectError:
                    file.unlink()
                    return False
                self._trust(ref.digest)
            with contextlib.suppress(PermissionError):  # another user's file
                os.utime(file)  # its last use; access times are often switched off
        except FileNotFoundError:
            self._checked.discard(ref.digest)
            return False
        return True

    def _trust(self, name: str) -> None:
        if len(self._checked) >= _CHECKED_AT_MOST:
            self._checked.clear()
        self._checked.add(name)

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            _LOG.warning("the cache '%s' fails (%s); objects are read from the store instead", self.folder, error)

    def _lock(self, name: str) -> AbstractContextManager[None]:
        """One download of an object at a time on this node; going on without the lock costs a second download.

        Whoever waits looks for the file as well: many that wait then need not have the lock one after the other.
        """
        folder = self.folder / LOCKS_FOLDER
        folder.mkdir(exist_ok=True)
        lock = folder / f"{int(name[:4], 16) % _LOCKS:02x}"
        return node_lock(lock, _LOCK_SECONDS, (self.folder / name).exists)


class _NotKeptError(OSError):
    """The object is downloaded, but the cache's disk did not take it."""

    def __init__(self, content: memoryview, error: OSError) -> None:
        super().__init__(error.errno, error.strerror)
        self.content = content


def _download(store: Store, ref: Ref, tally: CacheTally) -> memoryview:
    content = store.view(ref.name)
    tally.count(downloads=1, origin_bytes=content.nbytes)
    check_content(content, ref, store.url)
    return content


def _map(file: Path) -> memoryview:
    with file.open("rb") as opened:
        if os.fstat(opened.fileno()).st_size == 0:
            return memoryview(bytearray())
        return memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY))
