"""Hedges reads: repeats a request that takes unusually long, and returns the first answer.

A remote store answers most reads in about the same time and a few much later, because one connection or server is
slow. A pipeline that reads in order waits for each of those. The second request is as good as the first, since
objects are whole and mostly never change.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from penstock.storage.errors import ObjectNotFoundError, StoreError
from penstock.storage.stores.daemon_threads import DaemonThreads
from penstock.storage.stores.remote import RequestCounter, RequestCounts, request_counts

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable, Iterable, Sequence

    from typing_extensions import Buffer

    from penstock.storage.stores.protocol import Store

Result = TypeVar("Result")

FLOOR_SECONDS = 0.05
"""No read is repeated earlier than this."""
PERCENTILE = 0.95
MAX_SHARE = 0.05
"""At most this share of all reads is repeated."""
MIN_RECENT = 20
"""A kind needs this many recorded reads before one of them counts as slow."""

_RECENT = 128
_KINDS = 256
_THREADS = 64  # a slow read holds one until its client gives up


class HedgeSettings(TypedDict):
    """These settings decide when `HedgedStore` repeats a read."""

    floor_seconds: float
    percentile: float
    max_share: float
    min_recent: int


def hedged(store: Store) -> Store:
    """Return the store with hedged reads, or as it is if it is a local folder or hedged already."""
    if isinstance(store, HedgedStore) or store.path("any") is not None:
        return store
    return HedgedStore(store)


class HedgedStore:
    """Wraps another store and repeats its slow reads. Everything else passes through.

    A read is slow when it has taken longer than the 95th percentile of recent reads of its kind, and than a floor. Its
    kind is the folder and, for ranges, the size by powers of two: a snapshot takes longer than a commit. At most a
    bounded share of all reads is repeated, so a service that is slow as a whole is not made slower.

    Safe for threads; a copy by pickle starts without recorded times. A read that hangs keeps no process from ending.
    """

    def __init__(
        self,
        store: Store,
        *,
        floor_seconds: float = FLOOR_SECONDS,
        percentile: float = PERCENTILE,
        max_share: float = MAX_SHARE,
        min_recent: int = MIN_RECENT,
    ) -> None:
        self._store = store
        self._settings = HedgeSettings(
            floor_seconds=floor_seconds, percentile=percentile, max_share=max_share, min_recent=min_recent
        )
        self._lock = threading.Lock()
        self._recent_seconds: dict[tuple[str, int], deque[float]] = {}
        self._counter = RequestCounter()
        self._reads = 0
        self._hedges = 0
        self._threads: DaemonThreads | None = None
        self._threads_of = 0

    def __reduce__(self) -> tuple[Callable[..., HedgedStore], tuple[Store, HedgeSettings]]:
        return _again, (self._store, self._settings)

    def __repr__(self) -> str:
        return f"HedgedStore({self._store!r})"

    @property
    def url(self) -> str:
        """Return the address of the store below; `open_store` of it is not hedged."""
        return self._store.url

    @property
    def counts(self) -> RequestCounts:
        """Count requests and retries of the store below, and this one's repeated requests, which are among them.

        Over a store that counts nothing, requests are the reads alone.
        """
        below, own = request_counts(self._store), self._counter.counts()
        return RequestCounts(below.requests or own.requests, below.retries, own.hedges)

    def read(self, name: str) -> bytes:
        """Read a whole object."""
        return self._hedge(name, 0, lambda: self._store.read(name))

    def view(self, name: str) -> memoryview:
        """Read a whole object into a private writable buffer."""
        return self._hedge(name, 0, lambda: self._store.view(name))

    def read_range(self, name: str, start: int, stop: int) -> memoryview:
        """Read bytes [start, stop) of an object into a private writable buffer."""
        return self._hedge(name, stop - start, lambda: self._store.read_range(name, start, stop))

    def write(self, name: str, parts: Sequence[Buffer], *, durable: bool = False) -> None:
        """Store the concatenated parts."""
        self._store.write(name, parts, durable=durable)

    def create(self, name: str, data: bytes) -> None:
        """Store `data` if there is no such object."""
        self._store.create(name, data)

    def exists(self, name: str) -> bool:
        """Return whether the object exists."""
        return self._store.exists(name)

    def list(self, prefix: str = "") -> builtins.list[str]:
        """List names that start with `prefix`, sorted."""
        return self._store.list(prefix)

    def delete(self, names: Iterable[str]) -> None:
        """Remove objects."""
        self._store.delete(names)

    def sync(self, names: Iterable[str]) -> None:
        """Make previously written objects durable."""
        self._store.sync(names)

    def path(self, name: str) -> Any:
        """Return the local file of an object, or None if the store below has none."""
        return self._store.path(name)

    def at(self, prefix: str) -> HedgedStore:
        """Return the same store below a folder. It shares the counts, and records its own times."""
        below = HedgedStore(self._store.at(prefix), **self._settings)
        below._counter = self._counter
        return below

    def _hedge(self, name: str, nbytes: int, read: Callable[[], Result]) -> Result:
        kind = (name.rpartition("/")[0].partition("/")[0], nbytes.bit_length())
        with self._lock:
            self._reads += 1
        first = self._start(kind, read)
        slow_seconds = self._slow_seconds(kind)
        if slow_seconds is None or wait([first], slow_seconds).done or not self._may_hedge():
            return first.result()
        self._counter.add(hedges=1)
        second = self._start(kind, read)
        wait([first, second], return_when=FIRST_COMPLETED)
        answer, other = (first, second) if first.done() else (second, first)
        # A missing object is a valid response; any other failure may be specific to this request.
        return other.result() if _failed(answer) else answer.result()

    def _slow_seconds(self, kind: tuple[str, int]) -> float | None:
        """Return after how many seconds a read of this kind is slow; None while too few are recorded."""
        with self._lock:
            recent = sorted(self._recent_seconds.get(kind, ()))
        if len(recent) < self._settings["min_recent"]:
            return None
        return max(
            self._settings["floor_seconds"],
            recent[min(len(recent) - 1, math.ceil(self._settings["percentile"] * len(recent)) - 1)],
        )

    def _may_hedge(self) -> bool:
        with self._lock:
            if self._hedges + 1 > self._settings["max_share"] * self._reads:
                return False
            self._hedges += 1
            return True

    def _start(self, kind: tuple[str, int], read: Callable[[], Result]) -> Future[Result]:
        def timed() -> Result:
            started = time.monotonic()
            result = read()
            self._saw(kind, time.monotonic() - started)
            return result

        self._counter.add(requests=1)
        return self._pool().submit(timed)

    def _saw(self, kind: tuple[str, int], seconds: float) -> None:
        with self._lock:
            if kind not in self._recent_seconds and len(self._recent_seconds) >= _KINDS:
                self._recent_seconds.pop(next(iter(self._recent_seconds)))
            self._recent_seconds.setdefault(kind, deque(maxlen=_RECENT)).append(seconds)

    def _pool(self) -> DaemonThreads:
        with self._lock:
            if self._threads is None or self._threads_of != os.getpid():
                self._threads, self._threads_of = DaemonThreads(_THREADS, "hedged-read"), os.getpid()
            return self._threads


def _failed(answer: Future[Any]) -> bool:
    error = answer.exception()
    return isinstance(error, StoreError) and not isinstance(error, ObjectNotFoundError)


def _again(store: Store, settings: HedgeSettings) -> HedgedStore:
    return HedgedStore(store, **settings)
