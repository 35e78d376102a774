"""Reads whole objects, large ones of remote stores in several concurrent ranges.

One connection to an object store gives a fraction of the network's bandwidth, and a single slow response delays the
whole object. So a large object is requested in concurrent parts, which are assembled in the caller's buffer. A small
object, or one on a local disk, is one read.
"""

from __future__ import annotations

import threading
from concurrent.futures import wait
from functools import partial
from typing import TYPE_CHECKING, Self

from penstock.storage.errors import CorruptObjectError
from penstock.storage.shards.header import ADVICE
from penstock.storage.stores.daemon_threads import DaemonThreads

if TYPE_CHECKING:
    from concurrent.futures import Future

    from penstock.storage.refs import Ref
    from penstock.storage.stores.protocol import Store

PART_BYTES = 4 << 20
IN_FLIGHT = 16
_AT_FIRST = 4


class RangeReader:
    """Reads objects of one store. A context manager, safe for threads.

    Args:
        store: the objects' store.
        part_bytes: size of one request; objects of more than two parts are read in ranges.
        in_flight: concurrent requests for parts, of all objects together; a few at first, one more with each response.
    """

    def __init__(self, store: Store, *, part_bytes: int = PART_BYTES, in_flight: int = IN_FLIGHT) -> None:
        if part_bytes < 1 or in_flight < 1:
            raise ValueError(f"part_bytes is {part_bytes} and in_flight {in_flight}, expected 1 or more of each")
        self._store = store
        self._part_bytes = part_bytes
        self._in_flight = in_flight
        self._lock = threading.Lock()
        # One thread per slot: a part that has a slot is requested immediately.
        self._threads = DaemonThreads(in_flight, "range-reader")
        self._closed = False
        # With all slots at once, the first objects would share the network with many that are needed later.
        self._allowed = min(_AT_FIRST, in_flight)
        self._slots = threading.Semaphore(self._allowed)
        self._turn = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def in_parts(self, ref: Ref) -> bool:
        """Return whether to read an object with `read_into`; otherwise use `Store.view`."""
        return ref.nbytes > 2 * self._part_bytes and self._store.path(ref.name) is None

    def read_into(self, ref: Ref, buffer: memoryview) -> None:
        """Fill a buffer with an object, whose size must be known.

        Once this raises, nothing writes to the buffer.

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
            # One object after the other: an earlier caller is not delayed by parts of later ones.
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
        """Start no more requests, without waiting for those under way."""
        self._closed = True
        self._slots.release()

    def _read_part(self, ref: Ref, buffer: memoryview, start: int) -> None:
        stop = min(start + self._part_bytes, ref.nbytes)
        part = self._store.read_range(ref.name, start, stop)
        if part.nbytes != stop - start:
            raise CorruptObjectError(
                f"'{ref.name}' in the store '{self._store.url}' ends at byte {start + part.nbytes}, expected "
                f"{ref.nbytes} bytes: {ADVICE}"
            )
        buffer[start:stop] = part

    def _submit(self, ref: Ref, buffer: memoryview, start: int) -> Future[None]:
        if self._closed:
            self._slots.release()  # wakes threads that wait for their turn as well
            raise RuntimeError("this reader was closed while, or before, an object was asked of it")
        part = self._threads.submit(partial(self._read_part, ref, buffer, start))
        part.add_done_callback(self._answered)
        return part

    def _answered(self, _: Future[None]) -> None:
        with self._lock:
            more = self._allowed < self._in_flight
            self._allowed += more
        self._slots.release(1 + more)
