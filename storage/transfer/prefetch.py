"""Reads ahead, in order and within a byte budget.

One thread submits references, a few load them, one takes the items in the order of submission. Items that are
submitted and not yet released never exceed the budget, so a fast store can't fill the memory of a slow reader. One
exception: while the queue is empty, one item passes anyway, since a reader that holds the whole budget would otherwise
deadlock.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable


class Sized(Protocol):
    """Anything with a size can be submitted."""

    @property
    def nbytes(self) -> int:
        """Return the size in bytes, 0 if not known."""
        ...


RefT = TypeVar("RefT", bound=Sized)
T = TypeVar("T")

_CLOSE_SECONDS = 5.0


class Held(Generic[T]):
    """A taken item holds its value, and its share of the budget until `release`."""

    __slots__ = ("_charged_bytes", "_give_back", "value")

    def __init__(self, value: T, charged_bytes: int, give_back: Callable[[int], None]) -> None:
        self.value = value
        self._charged_bytes = charged_bytes
        self._give_back = give_back

    def release(self) -> None:
        """Return the bytes to the budget; a second call does nothing."""
        charged_bytes, self._charged_bytes = self._charged_bytes, 0
        if charged_bytes:
            self._give_back(charged_bytes)


class _Item:
    """An item is a submitted reference that is not yet taken."""

    __slots__ = ("charged_bytes", "error", "ready", "ref", "value")

    def __init__(self, ref: Any, charged_bytes: int) -> None:
        self.ref = ref
        self.charged_bytes = charged_bytes
        self.ready = False
        self.value: Any = None
        self.error: BaseException | None = None


class Prefetcher(Generic[RefT, T]):
    """Queues references and loads their items in the background. A context manager.

    Args:
        load: loads a reference's item; called on several threads concurrently.
        budget_bytes: limit for items that are submitted and not yet released; a single item may be larger.
        threads: how many threads load; they start with the first item to load.
        size_of: bytes of a loaded item, for references without a size. Until it is loaded, and without this function
            until it is released, such an item counts as an equal part of the budget, two per thread.
        charge_of: bytes that a reference counts until its item is loaded, 0 if not known; by default its `nbytes`.
        at_once: returns the item of a reference that needs no loading, or None; called by `submit`. It counts as
            much as its reference.

    Attributes:
        wait_seconds: total seconds `take` has blocked.
        reads: items loaded.
        takes: items taken.
        depth_sum: items that were loaded at each take, summed; divided by `takes`, the mean queue depth.
        held_bytes: bytes of the budget in use now.
        peak_held_bytes: the most bytes of the budget in use so far.
    """

    def __init__(
        self,
        load: Callable[[RefT], T],
        budget_bytes: int,
        threads: int = 2,
        *,
        size_of: Callable[[T], int] | None = None,
        charge_of: Callable[[RefT], int] | None = None,
        at_once: Callable[[RefT], T | None] = lambda _: None,
    ) -> None:
        if budget_bytes < 1 or threads < 1:
            raise ValueError(f"budget_bytes is {budget_bytes} and threads {threads}, expected 1 or more of each")
        self._load = load
        self._size_of = size_of
        self._charge_of = charge_of
        self._at_once = at_once
        self._budget_bytes = budget_bytes
        self._unknown_bytes = max(1, budget_bytes // (2 * threads))
        self._changed = threading.Condition()
        self._items: deque[_Item] = deque()
        self._waiting: deque[_Item] = deque()
        self._failure: BaseException | None = None
        self._closed = False
        self._ready = 0
        self.held_bytes = 0
        self.peak_held_bytes = 0
        self.wait_seconds = 0.0
        self.reads = 0
        self.takes = 0
        self.depth_sum = 0
        self._thread_count = threads
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, ref: RefT) -> bool:
        """Request an item; block while the budget is used up. Return False, having done nothing, if it is closed."""
        charged_bytes = self._charge_of(ref) if self._charge_of else ref.nbytes
        item = _Item(ref, charged_bytes or self._unknown_bytes)
        item.value = self._at_once(ref)
        with self._changed:
            # While the queue is empty the next item must pass, or a reader that waits for it would never wake.
            self._changed.wait_for(
                lambda: self._closed or not self._items or self.held_bytes + item.charged_bytes <= self._budget_bytes
            )
            if self._closed:
                return False
            self._charge(item.charged_bytes)
            self._items.append(item)
            if item.value is not None:
                self._be_ready(item)
            else:
                if not self._threads:
                    self._start()
                self._waiting.append(item)
            self._changed.notify_all()
            return True

    def fail(self, error: BaseException) -> None:
        """End the queue with an error: `take` raises it after the items before it. The first error counts."""
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    def take(self) -> Held[T]:
        """Take the next item in the order of submission; block until it is loaded.

        Its bytes count until it is released.

        Raises:
            BaseException: `load` raised it for this item, or it was passed to `fail`.
            RuntimeError: the prefetcher was closed.
        """
        started = time.perf_counter()
        with self._changed:
            depth = self._ready
            self._changed.wait_for(
                lambda: self._closed or (self._items[0].ready if self._items else self._failure is not None)
            )
            self.wait_seconds += time.perf_counter() - started
            if self._closed:
                raise RuntimeError("the prefetcher was closed while, or before, an item was asked of it")
            if not self._items:
                raise self._failure  # type: ignore[misc]  # the wait above ended because it is there
            item = self._items.popleft()
            self._ready -= 1
            self.takes += 1
            self.depth_sum += depth
            # An empty queue lets one more item pass, whatever the budget.
            self._changed.notify_all()
        held: Held[T] = Held(item.value, item.charged_bytes, self._give_back)
        if item.error is not None:
            held.release()
            raise item.error
        return held

    def close(self) -> None:
        """Wake all waiting threads and drop untaken items. Wait for loads in progress, but not for one that hangs."""
        with self._changed:
            self._closed = True
            self._items.clear()
            self._waiting.clear()
            self._ready = 0
            self._changed.notify_all()
        deadline = time.monotonic() + _CLOSE_SECONDS
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _start(self) -> None:
        """Start the threads, with the first item to load: an unused prefetcher must leave nothing running."""
        for index in range(self._thread_count):
            self._threads.append(threading.Thread(target=self._work, name=f"prefetch-{index}", daemon=True))
            self._threads[-1].start()

    def _be_ready(self, item: _Item) -> None:
        item.ready = True
        self._ready += 1
        self.reads += item.error is None

    def _charge(self, nbytes: int) -> None:
        self.held_bytes += nbytes
        self.peak_held_bytes = max(self.peak_held_bytes, self.held_bytes)

    def _give_back(self, nbytes: int) -> None:
        with self._changed:
            self.held_bytes -= nbytes
            self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._waiting)
                if self._closed:
                    return
                item = self._waiting.popleft()
            value: T | None = None
            error: BaseException | None = None
            nbytes = 0
            try:
                value = self._load(item.ref)
                nbytes = self._size_of(value) if self._size_of else item.ref.nbytes
            except BaseException as raised:  # noqa: BLE001  (raised where the item is taken)
                error = raised
            with self._changed:
                if self._closed:
                    return
                item.value, item.error = value, error
                self._be_ready(item)
                if nbytes:
                    self._charge(nbytes - item.charged_bytes)
                    item.charged_bytes = nbytes
                self._changed.notify_all()
