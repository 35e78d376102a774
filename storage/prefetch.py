"""Reading ahead, in order and within a byte budget.

One thread submits what is wanted, a few load it, one takes it in the order in which it was submitted. What was
submitted and not yet taken never holds more than the budget, so a fast store can't fill the memory of a slow reader.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable


class Sized(Protocol):
    """What can be submitted: something that says its size."""

    @property
    def nbytes(self) -> int:
        """Bytes, 0 if not known."""
        ...


RefT = TypeVar("RefT", bound=Sized)
T = TypeVar("T")

_CLOSE_SECONDS = 5.0


class _Item:
    """One submitted reference on its way."""

    __slots__ = ("charged_bytes", "error", "ready", "ref", "value")

    def __init__(self, ref: Any, charged_bytes: int) -> None:
        self.ref = ref
        self.charged_bytes = charged_bytes
        self.ready = False
        self.value: Any = None
        self.error: BaseException | None = None


class Prefetcher(Generic[RefT, T]):
    """A queue whose items are loaded on the way through. A context manager.

    Args:
        load: gives what a reference stands for; called on several threads at once.
        budget_bytes: of what was submitted and not yet taken; a single item may be larger.
        threads: how many load.
        size_of: bytes of a loaded item, to account for references that don't know. Until it is loaded, and without
            this function for as long as it is held, such an item counts as an equal part of the budget, two a thread.

    Attributes:
        wait_seconds: time that `next` has waited.
        read_bytes: of all loaded items whose size is known.
        reads: items loaded.
    """

    def __init__(
        self,
        load: Callable[[RefT], T],
        budget_bytes: int,
        threads: int = 2,
        *,
        size_of: Callable[[T], int] | None = None,
    ) -> None:
        if budget_bytes < 1 or threads < 1:
            raise ValueError(f"budget_bytes is {budget_bytes} and threads {threads}, expected 1 or more of each")
        self._load = load
        self._size_of = size_of
        self._budget_bytes = budget_bytes
        self._unknown_bytes = max(1, budget_bytes // (2 * threads))
        self._changed = threading.Condition()
        self._items: deque[_Item] = deque()
        self._waiting: deque[_Item] = deque()
        self._held_bytes = 0
        self._failure: BaseException | None = None
        self._closed = False
        self.wait_seconds = 0.0
        self.read_bytes = 0
        self.reads = 0
        self._threads = [threading.Thread(target=self._work, name=f"prefetch-{i}", daemon=True) for i in range(threads)]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, ref: RefT) -> None:
        """Ask for an item; blocks while the budget is used up. Does nothing once closed."""
        item = _Item(ref, ref.nbytes or self._unknown_bytes)
        with self._changed:
            # Where nothing is held, an item larger than the whole budget must pass, or it never would.
            self._changed.wait_for(
                lambda: self._closed or not self._items or self._held_bytes + item.charged_bytes <= self._budget_bytes
            )
            if self._closed:
                return
            self._held_bytes += item.charged_bytes
            self._items.append(item)
            self._waiting.append(item)
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Nothing more will come, and why: `next` raises it once the items before it are taken. The first counts."""
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    def next(self) -> T:
        """The next item, in the order in which they were submitted; blocks until it is loaded.

        Raises:
            BaseException: whatever `load` raised for this item, or what was handed to `fail`.
            RuntimeError: the prefetcher was closed.
        """
        started = time.perf_counter()
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or (self._items[0].ready if self._items else self._failure is not None)
            )
            self.wait_seconds += time.perf_counter() - started
            if self._closed:
                raise RuntimeError("the prefetcher was closed while, or before, an item was asked of it")
            if not self._items:
                raise self._failure  # type: ignore[misc]  # the wait above ended because it is there
            item = self._items.popleft()
            self._held_bytes -= item.charged_bytes
            self._changed.notify_all()
        if item.error is not None:
            raise item.error
        value: T = item.value
        return value

    def close(self) -> None:
        """Wake everybody and drop what was not taken. Waits for loads under way, but not for one that hangs."""
        with self._changed:
            self._closed = True
            self._items.clear()
            self._waiting.clear()
            self._held_bytes = 0
            self._changed.notify_all()
        deadline = time.monotonic() + _CLOSE_SECONDS
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

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
                item.value, item.error, item.ready = value, error, True
                self.reads += error is None
                self.read_bytes += nbytes
                if nbytes:
                    self._held_bytes += nbytes - item.charged_bytes
                    item.charged_bytes = nbytes
                self._changed.notify_all()
