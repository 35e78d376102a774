"""Reads that are asked for again when they take unusually long: the first answer wins.

A remote store answers most reads in about the same time and a few much later, because a connection or a server was
unlucky. A pipeline that reads in order waits for each of those. The second request is as good as the first, since
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

from storage.counts import RequestCounter, RequestCounts, request_counts
from storage.daemon_threads import DaemonThreads
from storage.errors import ObjectNotFoundError, StoreError

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable, Iterable, Sequence

    from typing_extensions import Buffer

    from storage.store import Store

Result = TypeVar("Result")

FLOOR_SECONDS = 0.05
"""No read is asked for again before this."""
PERCENTILE = 0.95
MAX_SHARE = 0.05
"""Of all reads, asked for twice."""
MIN_RECENT = 20
"""Reads of a kind that must have been seen before one is called slow."""

_RECENT = 128
_KINDS = 256
_THREADS = 64  # a slow read holds one until its client gives up


class HedgeSettings(TypedDict):
    """When a read is asked for again; `HedgedStore` says what these mean."""

    floor_seconds: float
    percentile: float
    max_share: float
    min_recent: int


def hedged(store: Store) -> Store:
    """The store with hedged reads if it is remote, and as it is if it is a local folder or hedged already."""
    if isinstance(store, HedgedStore) or store.path("any") is not None:
        return store
    return HedgedStore(store)


class HedgedStore:
    """Another store, whose slow reads are asked for once more. Everything but reads passes through.

    A read is slow when it has taken longer than the 95th percentile of recent reads of its kind, and than a floor. Its
    kind is the folder and, for ranges, the size by powers of two: a snapshot takes longer than a commit. At most a
    bounded share of all reads is asked for twice, so a service that is slow as a whole is not made slower.

    Safe for threads; a copy by pickle starts with nothing seen. A read that hangs keeps no process from ending.
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
        """Where the store is; opened from it, a store is not hedged."""
        return self._store.url

    @property
    def counts(self) -> RequestCounts:
        """Requests and retries of the store below, and the second requests of this one, which are among its requests.

        Over a store that counts nothing, requests are the reads alone.
        """
        below, own = request_counts(self._store), self._counter.counts()
        return RequestCounts(below.requests or own.requests, below.retries, own.hedges)

    def read(self, name: str) -> bytes:
        """Whole object."""
        return self._hedge(name, 0, lambda: self._store.read(name))

    def view(self, name: str) -> memoryview:
        """Whole object as a private writable buffer."""
        return self._hedge(name, 0, lambda: self._store.view(name))

    def read_range(self, name: str, start: int, stop: int) -> memoryview:
        """Bytes [start, stop) of an object as a private writable buffer."""
        return self._hedge(name, stop - start, lambda: self._store.read_range(name, start, stop))

    def write(self, name: str, parts: Sequence[Buffer], *, durable: bool = False) -> None:
        """Store the concatenated parts."""
        self._store.write(name, parts, durable=durable)

    def create(self, name: str, data: bytes) -> None:
        """Store `data` if there is no such object."""
        self._store.create(name, data)

    def exists(self, name: str) -> bool:
        """Whether there is such an object."""
        return self._store.exists(name)

    def list(self, prefix: str = "") -> builtins.list[str]:
        """Names that start with `prefix`, sorted."""
        return self._store.list(prefix)

    def delete(self, names: Iterable[str]) -> None:
        """Remove objects."""
        self._store.delete(names)

    def sync(self, names: Iterable[str]) -> None:
        """Make objects that were written before durable."""
        self._store.sync(names)

    def path(self, name: str) -> Any:
        """The local file of an object, if the store below has any."""
        return self._store.path(name)

    def at(self, prefix: str) -> HedgedStore:
        """The same store below a folder, with the same counts; what is slow is seen anew there."""
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
        # That nothing is there is an answer; any other failure may be this request's own.
        return other.result() if _failed(answer) else answer.result()

    def _slow_seconds(self, kind: tuple[str, int]) -> float | None:
        """When a read of this kind is called slow; None while too few were seen."""
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
