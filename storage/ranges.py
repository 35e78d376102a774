"""Whole objects, large ones of remote stores in several ranges at once.

One connection to an object store gives a part of what the network can, and a single slow answer holds up the whole
object. So a large object is asked for in parts, several of them under way, which are put together in a buffer of the
caller's. What is small, or lies on a local disk, is one read.
"""

from __future__ import annotations

import threading
from concurrent.futures import wait
from functools import partial
from typing import TYPE_CHECKING, Self

from storage.daemon_threads import DaemonThreads
from storage.errors import CorruptObjectError

if TYPE_CHECKING:
    from concurrent.futures import Future

    from storage.refs import Ref
    from storage.store import Store

PART_BYTES = 4 << 20
IN_FLIGHT = 16
_AT_FIRST = 4


class RangeReader:
    """Reads objects of one store. A context manager, safe for threads.

    Args:
        store: where objects are.
        part_bytes: of one request; objects of more than two parts are read in ranges.
        in_flight: requests for parts under way, of all objects together; a few at first, one more with each answer.
    """

    def __init__(self, store: Store, *, part_bytes: int = PART_BYTES, in_flight: int = IN_FLIGHT) -> None:
        if part_bytes < 1 or in_flight < 1:
            raise ValueError(f"part_bytes is {part_bytes} and in_flight {in_flight}, expected 1 or more of each")
        self._store = store
        self._part_bytes = part_bytes
        self._in_flight = in_flight
        self._lock = threading.Lock()
        # As many as there are slots: a part that has a slot is under way at once.
        self._threads = DaemonThreads(in_flight, "range-reader")
        self._closed = False
        # All at once, the first objects would share the network with many that are wanted later.
        self._allowed = min(_AT_FIRST, in_flight)
        self._slots = threading.Semaphore(self._allowed)
        self._turn = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def in_parts(self, ref: Ref) -> bool:
        """Whether `read_into` is the way for an object; otherwise it is `Store.view`."""
        return ref.nbytes > 2 * self._part_bytes and self._store.path(ref.name) is None

    def read_into(self, ref: Ref, buffer: memoryview) -> None:
        """Fill a buffer with an object, of which the size must be known.

        When this raises, nothing writes to the buffer any more.

        Args:
            ref: the object.
            buffer: `ref.nbytes` writable bytes.

        Raises:
            CorruptObjectError: the object is shorter than its reference says.
            StoreError: it can't be read.
            RuntimeError: the reader was closed.
        """
        parts: list[Future[None]] = []
        try:
            # One object after the other: whoever comes first is not held up by parts of those who came later.
            with self._turn:
                for start in range(0, ref.nbytes, self._part_bytes):
                    self._slots.acquire()
                    parts.append(self._submit(ref, buffer, start))
            for part in parts:
                part.result()
        except BaseException:
            wait(parts)
            raise

    def close(self) -> None:
        """Start no more requests; those under way are not waited for."""
        self._closed = True
        self._slots.release()

    def _read_part(self, ref: Ref, buffer: memoryview, start: int) -> None:
        stop = min(start + self._part_bytes, ref.nbytes)
        part = self._store.read_range(ref.name, start, stop)
        if part.nbytes != stop - start:
            raise CorruptObjectError(
                f"'{ref.name}' in the store '{self._store.url}' ends at byte {start + part.nbytes}, expected "
                f"{ref.nbytes} bytes: it was cut short. Resume the run: a round that no commit names is acted again"
            )
        buffer[start:stop] = part

    def _submit(self, ref: Ref, buffer: memoryview, start: int) -> Future[None]:
        if self._closed:
            self._slots.release()  # whoever waits for a turn is told as well
            raise RuntimeError("this reader was closed while, or before, an object was asked of it")
        part = self._threads.submit(partial(self._read_part, ref, buffer, start))
        part.add_done_callback(self._answered)
        return part

    def _answered(self, _: Future[None]) -> None:
        with self._lock:
            more = self._allowed < self._in_flight
            self._allowed += more
        self._slots.release(1 + more)
