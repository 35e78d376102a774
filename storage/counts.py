"""How many requests a process made of its remote stores, how many of them again, and how many in advance."""

from __future__ import annotations

import threading
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """Since the store was opened in this process, by it and by every store made from it with `at`."""

    requests: int = 0
    """Calls of the client, first and further attempts alike; a long listing is one call."""
    retries: int = 0
    """Those made again because an earlier attempt had failed."""
    hedges: int = 0
    """Those made although an earlier one was still on its way, because that took unusually long."""


class RequestCounter:
    """What stores count with; safe for threads. A copy by pickle counts from zero."""

    __slots__ = ("_hedges", "_lock", "_requests", "_retries")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests = self._retries = self._hedges = 0

    def __reduce__(self) -> tuple[type[RequestCounter], tuple[()]]:
        return RequestCounter, ()

    def add(self, *, requests: int = 0, retries: int = 0, hedges: int = 0) -> None:
        """Count these."""
        with self._lock:
            self._requests += requests
            self._retries += retries
            self._hedges += hedges

    def counts(self) -> RequestCounts:
        """What was counted so far."""
        with self._lock:
            return RequestCounts(self._requests, self._retries, self._hedges)


def request_counts(store: object) -> RequestCounts:
    """What a store counted; zeros for one that counts nothing, such as a local folder."""
    counts = getattr(store, "counts", None)
    return counts if isinstance(counts, RequestCounts) else RequestCounts()
