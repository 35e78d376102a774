"""Counts the calls of a store by operation: how many, how long they took, their bytes and their errors."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from penstock.storage.errors import ObjectExistsError, ObjectNotFoundError
from penstock.storage.stores.remote import RequestCounts, request_counts

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from typing_extensions import Buffer

    from penstock.storage.stores.protocol import Store

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class StoreCalls:
    """Counts the calls of one operation."""

    calls: int = 0
    seconds: float = 0.0
    """Sum over calls; concurrent ones count each."""
    bytes: int = 0
    """Bytes that were read or written."""
    errors: int = 0
    """Failed calls. A missing object, and one that exists already, are answers."""

    def __add__(self, other: StoreCalls) -> StoreCalls:
        return StoreCalls(
            self.calls + other.calls,
            self.seconds + other.seconds,
            self.bytes + other.bytes,
            self.errors + other.errors,
        )

    def __sub__(self, other: StoreCalls) -> StoreCalls:
        return StoreCalls(
            self.calls - other.calls,
            self.seconds - other.seconds,
            self.bytes - other.bytes,
            self.errors - other.errors,
        )


def calls_since(earlier: Mapping[str, StoreCalls], now: Mapping[str, StoreCalls]) -> dict[str, StoreCalls]:
    """Return the calls by operation between two counts of one tally; operations without a call are left out."""
    differences = {name: calls - earlier.get(name, StoreCalls()) for name, calls in now.items()}
    return {name: calls for name, calls in differences.items() if calls.calls}


class StoreTally:
    """Counts calls by operation. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, StoreCalls] = {}

    def add(self, operation: str, calls: StoreCalls) -> None:
        """Add calls of an operation."""
        with self._lock:
            self._counts[operation] = self._counts.get(operation, StoreCalls()) + calls

    def counts(self) -> dict[str, StoreCalls]:
        """Return the counts so far."""
        with self._lock:
            return dict(self._counts)


class CountedStore:
    """Wraps another store and counts its calls; answers and errors pass unchanged. A copy by pickle counts nothing.

    Args:
        store: the store below.
        tally: takes the counts, also those of folders below (`at`).
    """

    def __init__(self, store: Store, tally: StoreTally) -> None:
        self._store, self._tally = store, tally

    def __reduce__(self) -> tuple[Callable[[Store], Store], tuple[Store]]:
        return _itself, (self._store,)

    def __repr__(self) -> str:
        return f"CountedStore({self._store!r})"

    @property
    def url(self) -> str:
        """Return the address of the store below."""
        return self._store.url

    @property
    def counts(self) -> RequestCounts:
        """Return the request counts of the store below."""
        return request_counts(self._store)

    def read(self, name: str) -> bytes:
        """Read a whole object."""
        return self._counted("read", lambda: self._store.read(name), len)

    def view(self, name: str) -> memoryview:
        """Read a whole object into a private writable buffer."""
        return self._counted("read", lambda: self._store.view(name), _nbytes)

    def read_range(self, name: str, start: int, stop: int) -> memoryview:
        """Read a range of an object into a private writable buffer."""
        return self._counted("read_range", lambda: self._store.read_range(name, start, stop), _nbytes)

    def write(self, name: str, parts: Sequence[Buffer], *, durable: bool = False) -> None:
        """Store the concatenated parts."""
        nbytes = sum(memoryview(part).nbytes for part in parts)
        self._counted("write", lambda: self._store.write(name, parts, durable=durable), lambda _: nbytes)

    def create(self, name: str, data: bytes) -> None:
        """Store `data` if there is no such object."""
        self._counted("create", lambda: self._store.create(name, data), lambda _: len(data))

    def exists(self, name: str) -> bool:
        """Return whether the object exists."""
        return self._counted("exists", lambda: self._store.exists(name))

    def list(self, prefix: str = "") -> builtins.list[str]:
        """List names that start with `prefix`."""
        return self._counted("list", lambda: self._store.list(prefix))

    def delete(self, names: Iterable[str]) -> None:
        """Remove objects."""
        self._counted("delete", lambda: self._store.delete(names))

    def sync(self, names: Iterable[str]) -> None:
        """Make previously written objects durable."""
        self._counted("sync", lambda: self._store.sync(names))

    def path(self, name: str) -> Path | None:
        """Return the local file of an object, or None; not a call."""
        return self._store.path(name)

    def at(self, prefix: str) -> Store:
        """Return the same store below a folder, with the same tally."""
        return CountedStore(self._store.at(prefix), self._tally)

    def _counted(
        self, operation: str, call: Callable[[], Result], nbytes: Callable[[Result], int] = lambda _: 0
    ) -> Result:
        started, read_bytes, errors = time.perf_counter(), 0, 1
        try:
            result = call()
            read_bytes, errors = nbytes(result), 0
        except (ObjectNotFoundError, ObjectExistsError):
            errors = 0
            raise
        finally:
            self._tally.add(operation, StoreCalls(1, time.perf_counter() - started, read_bytes, errors))
        return result


def _nbytes(view: memoryview) -> int:
    return view.nbytes


def _itself(store: Store) -> Store:
    return store
