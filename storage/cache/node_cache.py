"""Caches immutable objects on a node: each is downloaded once, however many threads and processes request it.

Files are named by the digest of their content, so a cached file is never stale; it is verified when it is added, and
when a process that did not wait for that uses it for the first time. A failure of the cache's own disk costs speed,
never an answer.
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

from penstock.storage.cache.disk_quota import LOCKS_FOLDER, DiskQuota
from penstock.storage.cache.node_lock import node_lock
from penstock.storage.errors import CorruptObjectError, StoreError
from penstock.storage.private_folder import is_private, make_private
from penstock.storage.refs import is_digest
from penstock.storage.shards.verify import check_content

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from typing import TypeAlias

    from typing_extensions import Buffer

    from penstock.storage.refs import Ref
    from penstock.storage.stores.protocol import Store

    Make: TypeAlias = Callable[[], memoryview | None]

LIMIT_BYTES = 4 << 30
"""The default limit of a cache."""

_LOG = logging.getLogger(__name__)
_LOCKS = 256  # lock files are never removed, so there is a fixed number of them
_LOCK_SECONDS = 300.0  # a download that takes longer than this is done twice
_MAP_ATTEMPTS = 3  # another process may evict a file between its download and its mapping
_CHECKED_AT_MOST = 65_536  # remembered digests; forgetting them costs another verification


@dataclass(slots=True)
class CacheTally:
    """Counts the hits and misses of reads through a cache. Safe for threads; reads of a local store are not counted.

    Every read is a hit or a miss. A miss that waits for another reader's download is a wait, and causes no request.
    """

    hits: int = 0
    misses: int = 0
    downloads: int = 0
    waits: int = 0
    origin_bytes: int = 0
    """The bytes of its own downloads."""
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
        """Return the counters as `timings/` has them."""
        names = ("hits", "misses", "downloads", "waits", "origin_bytes")
        return {name: getattr(self, name) for name in names}


def default_cache_folder() -> Path:
    """Return the folder that all runs of a user on a node share.

    It is in `$PENSTOCK_CACHE_DIR`, otherwise in the user's cache folder, or in the temporary one without a home folder.
    """
    if given := os.environ.get("PENSTOCK_CACHE_DIR"):
        return Path(given) / "objects"
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock" / "objects"
    except RuntimeError:
        return Path(tempfile.gettempdir()) / f"penstock-cache-{os.geteuid()}"


class NodeCache:
    """Keeps content-addressed files in a folder that the processes of a node share. Picklable, safe for threads.

    Objects of a local store are used in place, neither copied nor verified: their decoders verify them.
    """

    def __init__(self, folder: Path | str, limit_bytes: int = LIMIT_BYTES) -> None:
        self.folder = Path(folder)
        self.limit_bytes = limit_bytes
        self._quota = DiskQuota(self.folder, limit_bytes)
        self._checked: set[str] = set()  # files of a folder that was found to be private
        self._fetching: dict[str, Future[bool]] = {}
        self._fetching_lock = threading.Lock()
        self._warned = False

    def __reduce__(self) -> tuple[type[NodeCache], tuple[Path, int]]:
        return NodeCache, (self.folder, self.limit_bytes)

    def get(self, store: Store, ref: Ref, tally: CacheTally | None = None, make: Make | None = None) -> Path:
        """Return a local file with the object's content. Open it at once: other processes may evict it later.

        Args:
            store: where the object is.
            ref: of the object.
            tally: counts the read.
            make: returns the content if that costs less than its download, or None. A result with another digest, and
                a CorruptObjectError, only lead to the download. Called by one reader of the node, as a download is.

        Raises:
            CorruptObjectError: the stored object's digest differs from its reference.
            StoreError: the store can't be read, or the cache's disk can't be written (`get_buffer` handles that).
        """
        local = store.path(ref.name)
        if local is not None:
            return local
        try:
            return self._file(store, ref, tally or CacheTally(), make)
        except OSError as error:
            raise StoreError(
                f"cannot keep '{ref.name}' in the cache '{self.folder}': {error}; check that the folder is writable "
                "and has space"
            ) from error

    def get_buffer(
        self, store: Store, ref: Ref, tally: CacheTally | None = None, make: Make | None = None
    ) -> memoryview:
        """Return the object's content as a private writable buffer, directly from the store if the cache's disk fails.

        Its arguments are those of `get`.

        Raises:
            CorruptObjectError: the stored object's digest differs from its reference.
            StoreError: the store can't be read.
        """
        if store.path(ref.name) is not None:
            return store.view(ref.name)
        tally = tally or CacheTally()
        try:
            for _ in range(_MAP_ATTEMPTS):
                with contextlib.suppress(FileNotFoundError):
                    return _map(self._file(store, ref, tally, make))
        except _NotKeptError as error:
            self._warn(error)
            # All readers that waited for this download get the same error.
            return memoryview(bytearray(error.content))
        except OSError as error:
            self._warn(error)
        return _download(store, ref, tally)

    def put(self, store: Store, ref: Ref, parts: Sequence[Buffer]) -> None:
        """Keep an object that this process made, so that readers on this node need not download it.

        This is best effort: if the cache's disk fails, readers use the store. Objects of a local store are not kept.
        The parts' digest is assumed to be the reference's.
        """
        if store.path(ref.name) is not None:
            return
        try:
            make_private(self.folder)
            # No download lock is needed: no process can download this object before this returns, unless it was made
            # before, and then either file is right.
            if not self._has(ref):
                self._quota.keep(ref.digest, parts)
                self._trust(ref.digest)
        except OSError as error:
            self._warn(error)

    def find(self, ref: Ref) -> memoryview | None:
        """Return the object's content as a private writable buffer if this node keeps it, without asking a store.

        The buffer stays whole, even if the file is evicted.
        """
        try:
            return _map(self._path(ref)) if self._has(ref) else None
        except OSError:
            return None

    def _path(self, ref: Ref) -> Path:
        """Return where the object's file is kept: a digest is a file's name here, and must never be a path.

        Raises:
            CorruptObjectError: the reference has no digest.
        """
        if not is_digest(ref.digest):
            raise CorruptObjectError(
                f"'{ref.name}' is referenced with the digest {ref.digest!r}, expected 32 hexadecimal digits: the "
                f"reference was altered. Restore the object that has it from a copy"
            )
        return self.folder / ref.digest

    def _file(self, store: Store, ref: Ref, tally: CacheTally, make: Make | None) -> Path:
        """Return the object's file. One reader in this process gets it; the others wait for that one."""
        file = self._path(ref)
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
                self._lead(store, ref, tally, make, fetching)
                return file
            if fetching.result():
                tally.count(waits=1)
                return file

    def _lead(self, store: Store, ref: Ref, tally: CacheTally, make: Make | None, fetching: Future[bool]) -> None:
        error: BaseException | None = None
        try:
            self._fetch(store, ref, tally, make)
        except BaseException as raised:
            error = raised
            raise
        finally:
            with self._fetching_lock:
                del self._fetching[ref.digest]
            if isinstance(error, Exception):
                fetching.set_exception(error)
            else:
                fetching.set_result(error is None)  # if only the leader was interrupted, the others try themselves

    def _fetch(self, store: Store, ref: Ref, tally: CacheTally, make: Make | None) -> None:
        """Make or download the object, unless another process of the node is faster."""
        make_private(self.folder)
        file = self._path(ref)
        was_missing = not file.exists()
        with self._lock(ref.digest):
            if was_missing and file.exists():
                self._trust(
                    ref.digest
                )  # who has added it since has verified or made it, and no power cut came in between
            if self._has(ref):
                tally.count(waits=1)
                return
            content = make_content(ref, make)
            if content is None:
                content = _download(store, ref, tally)
            try:
                self._quota.keep(ref.digest, [content])
            except OSError as error:
                raise _NotKeptError(content, error) from error
            self._trust(ref.digest)

    def _has(self, ref: Ref) -> bool:
        """Return whether the file exists and is right, and if so mark it as used now."""
        file = self._path(ref)
        if not self._checked and not is_private(self.folder):
            return False
        try:
            if ref.digest not in self._checked:
                # A power cut may leave a named file of zeros, so trust no file that was not verified.
                try:
                    check_content(_map(file), ref, str(file))
                except CorruptObjectError:
                    file.unlink()
                    return False
                self._trust(ref.digest)
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
            _LOG.warning("the cache '%s' failed (%s); objects are read from the store instead", self.folder, error)

    def _lock(self, name: str) -> AbstractContextManager[None]:
        """Hold the lock of an object's download on this node; continuing without it costs a second download.

        A waiting process also polls for the file, so that many need not get the lock one after the other.
        """
        folder = self.folder / LOCKS_FOLDER
        folder.mkdir(exist_ok=True)
        lock = folder / f"{int(name[:4], 16) % _LOCKS:02x}"
        return node_lock(lock, _LOCK_SECONDS, (self.folder / name).exists)


class _NotKeptError(OSError):
    """The object was downloaded, but the cache could not write it to its disk."""

    def __init__(self, content: memoryview, error: OSError) -> None:
        super().__init__(error.errno, error.strerror)
        self.content = content


def make_content(ref: Ref, make: Make | None) -> memoryview | None:
    """Return the content that `make` gives if it is right, verified; otherwise None."""
    try:
        content = make() if make else None
        if content is not None:
            check_content(content, ref, "this process")
    except CorruptObjectError as error:
        _LOG.warning("'%s' is downloaded, because what was made here instead is not right: %s", ref.name, error)
        return None
    return content


def _download(store: Store, ref: Ref, tally: CacheTally) -> memoryview:
    content = store.view(ref.name)
    tally.count(downloads=1, origin_bytes=content.nbytes)
    check_content(content, ref, store.url)
    return content


def _map(file: Path) -> memoryview:
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        return memoryview(mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY) if size else bytearray())
    finally:
        os.close(descriptor)
