"""A store that injects faults: a wrapper of any other store, with rules for the calls that fail and how.

It is for tests in one process. Runs with separate workers meet the same faults at a server: see `s3_proxy.py`.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from penstock.storage.errors import ObjectExistsError, StoreError

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable, Iterable, Sequence

    from typing_extensions import Buffer

    from penstock.storage.stores.protocol import Store

Kind = Literal["delay", "drop", "forget", "late", "lose", "refuse", "repeat", "truncate"]
Result = TypeVar("Result")

READS = ("read", "read_range", "view")
WRITES = ("write", "create", "delete")
REQUESTS = (*READS, *WRITES, "exists", "list")


class Call(NamedTuple):
    """One call as it came in, before any fault."""

    operation: str
    name: str  # of the first object, below the outermost store


@dataclass(frozen=True)
class Fault:
    """A rule for calls of these operations on names that match.

    `delay`: they take `seconds` more. `drop`: StoreError, and nothing was done. `lose`: StoreError, after it was done.
    `late`: StoreError, and done when the test calls `land`. `forget`: a create ignores its condition, and replaces.
    `refuse`: ObjectExistsError for a create, StoreError otherwise, and nothing was done. `repeat`: done twice, as by a
    retry whose first answer was lost. `truncate`: only `share` of the bytes are given back, or stored.

    With a `chance` it happens to that share of calls, drawn from `seed`, the operation, the name and how often that
    name was called so: the same whichever thread comes first. The call after one that was hit is spared, so that no
    bad luck exhausts a client's attempts.
    """

    kind: Kind
    operations: tuple[str, ...] = REQUESTS
    names: str = "*"  # as in a shell; `*` crosses slashes
    first: int = 1  # the first matching call that is hit, counted from 1
    calls: int | None = 1  # how many are hit; None: all from then on
    seconds: float = 0.0
    share: float = 0.5
    chance: float | None = None
    seed: int = 0

    def hits(self, call: Call, matching: int, same: int) -> bool:
        """Return whether it hits the `matching`-th call that matches, the `same`-th with this operation and name."""
        if matching < self.first or (self.calls is not None and matching >= self.first + self.calls):
            return False
        if self.chance is None:
            return True
        return same % 2 == 1 and random.Random(f"{self.seed} {call} {same}").random() < 2 * self.chance

    def matches(self, call: Call) -> bool:
        return call.operation in self.operations and fnmatchcase(call.name, self.names)


def now_and_then(
    seed: int, chance: float, *kinds: Kind, operations: tuple[str, ...] = REQUESTS, seconds: float = 0.0
) -> list[Fault]:
    """A store that fails now and then: every kind of fault, with this chance each, for the whole time."""
    return [
        Fault(kind, operations, calls=None, chance=chance, seconds=seconds, seed=1000 * seed + index)
        for index, kind in enumerate(kinds)
    ]


class FaultyStore:
    """`inner`, with faults. Picklable; a copy begins to count anew. Never local, so caches take it for a remote store.

    Attributes:
        calls: all that came in, in order.
        met: the faults that happened, in order.
    """

    def __init__(self, inner: Store, faults: Iterable[Fault] = (), _prefix: str = "", _state: Any = None) -> None:
        self._inner = inner
        self._prefix = _prefix
        self._state = _state or _State(list(faults))

    def __reduce__(self) -> tuple[Any, ...]:
        return FaultyStore, (self._inner, self._state.faults, self._prefix)

    @property
    def url(self) -> str:
        return self._inner.url

    @property
    def calls(self) -> builtins.list[Call]:
        return self._state.calls

    @property
    def met(self) -> builtins.list[tuple[Kind, Call]]:
        return self._state.met

    def add(self, *faults: Fault) -> None:
        """From now on; a fault counts calls from when it was added."""
        self._state.add(faults)

    def heal(self) -> None:
        """No more faults."""
        self._state.heal()

    def land(self) -> None:
        """Do what came late, in order; nobody learns of a refusal."""
        while self._state.late:
            with suppress(ObjectExistsError):
                self._state.late.pop(0)()

    def read(self, name: str) -> bytes:
        return self._call("read", name, lambda: self._inner.read(name), _shortened)

    def view(self, name: str) -> memoryview:
        return self._call("view", name, lambda: self._inner.view(name), _shortened)

    def read_range(self, name: str, start: int, stop: int) -> memoryview:
        return self._call("read_range", name, lambda: self._inner.read_range(name, start, stop), _shortened)

    def write(self, name: str, parts: Sequence[Buffer], *, durable: bool = False) -> None:
        self._store("write", name, parts, lambda parts, _: self._inner.write(name, parts, durable=durable))

    def create(self, name: str, data: bytes) -> None:
        def create(parts: Any, kinds: set[Kind]) -> None:
            self._inner.write(name, parts) if "forget" in kinds else self._inner.create(name, b"".join(parts))

        self._store("create", name, [data], create)

    def exists(self, name: str) -> bool:
        return self._call("exists", name, lambda: self._inner.exists(name))

    def list(self, prefix: str = "") -> builtins.list[str]:
        return self._call("list", prefix, lambda: self._inner.list(prefix))

    def delete(self, names: Iterable[str]) -> None:
        names = [*names]
        self._call("delete", names[0] if names else "", lambda: self._inner.delete(names))

    def sync(self, names: Iterable[str]) -> None:
        self._inner.sync(names)

    def path(self, name: str) -> None:
        self._inner.path(name)

    def at(self, prefix: str) -> FaultyStore:
        below = f"{self._prefix}{prefix.rstrip('/')}/"
        return FaultyStore(self._inner.at(prefix), _prefix=below, _state=self._state)

    def _store(self, operation: str, name: str, parts: Sequence[Buffer], write: Callable[[Any, Any], None]) -> None:
        faults = self._meet(operation, name)
        kinds = {fault.kind for fault in faults}
        cut = next((fault for fault in faults if fault.kind == "truncate"), None)
        stored = parts if cut is None else [_shortened(b"".join(parts), cut.share)]
        self._do(faults, operation, name, lambda: write(stored, kinds))

    def _call(
        self,
        operation: str,
        name: str,
        work: Callable[[], Result],
        shorten: Callable[[Result, float], Result] | None = None,
    ) -> Result:
        faults = self._meet(operation, name)
        result = self._do(faults, operation, name, work)
        for fault in faults:
            if fault.kind == "truncate" and shorten:
                result = shorten(result, fault.share)
        return result

    def _do(self, faults: builtins.list[Fault], operation: str, name: str, work: Callable[[], Result]) -> Result:
        kinds = {fault.kind for fault in faults}
        time.sleep(sum(fault.seconds for fault in faults if fault.kind == "delay"))
        if "refuse" in kinds and operation == "create":
            raise ObjectExistsError(f"'{name}' exists already in the store '{self.url}': refused by a test")
        if kinds & {"drop", "refuse"}:
            raise StoreError(f"cannot {operation} '{name}' in the store '{self.url}': failed by a test, nothing done")
        if "late" in kinds:
            self._state.late.append(work)
            raise StoreError(f"cannot {operation} '{name}' in the store '{self.url}': failed by a test, and done later")
        if "repeat" in kinds:
            work()
        result = work()
        if "lose" in kinds:
            raise StoreError(f"cannot {operation} '{name}' in the store '{self.url}': failed by a test, but done")
        return result

    def _meet(self, operation: str, name: str) -> builtins.list[Fault]:
        return self._state.meet(Call(operation, self._prefix + name))


class _State:
    """Shared by a store and those below it."""

    def __init__(self, faults: list[Fault]) -> None:
        self.faults = faults
        self.calls: list[Call] = []
        self.met: list[tuple[Kind, Call]] = []
        self.late: list[Callable[[], Any]] = []
        self._matched = [0] * len(faults)
        self._same: Counter[Call] = Counter()
        self._mutex = threading.Lock()

    def add(self, faults: Iterable[Fault]) -> None:
        with self._mutex:
            for fault in faults:
                self.faults.append(fault)
                self._matched.append(0)

    def drop(self, fault: Fault) -> None:
        with self._mutex:
            index = self.faults.index(fault)
            del self.faults[index], self._matched[index]

    def heal(self) -> None:
        with self._mutex:
            self.faults.clear()
            self._matched.clear()

    def meet(self, call: Call) -> list[Fault]:
        with self._mutex:
            self.calls.append(call)
            self._same[call] += 1
            hit = []
            for index, fault in enumerate(self.faults):
                if fault.matches(call):
                    self._matched[index] += 1
                    if fault.hits(call, self._matched[index], self._same[call]):
                        hit.append(fault)
                        self.met.append((fault.kind, call))
            return hit


def _shortened(content: Any, share: float) -> Any:
    return content[: int(len(content) * share)]
