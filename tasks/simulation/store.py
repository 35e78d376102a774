"""A simulated store: a folder of a disk that forgets what was not synced, or an object store whose requests travel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.storage.errors import ObjectExistsError, ObjectNotFoundError, StoreError
from penstock.tasks.simulation.faults import LONGEST_DELAY_SECONDS, LONGEST_PAUSE_SECONDS

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path
    from typing import Literal

    from typing_extensions import Buffer

    from penstock.tasks.simulation.world import World

_TIMEOUT_SECONDS = 20.0
"""A request that gets no answer fails after this time, its retries included."""


@dataclass(slots=True)
class _Object:
    content: bytes
    durable: bytes | None
    """The content that survives a power cut; None if not even the name does."""


class Bucket:
    """The objects of a store, which outlive all processes.

    Args:
        world: of the schedule.
        url: of the store.
        kind: "folder"; or an object store that creates atomically ("fenced"), or by a look and a write ("unfenced").
        on_change: called with the name and the new content of an object that was created or replaced, or None if it
            was removed.
    """

    def __init__(
        self,
        world: World,
        url: str,
        kind: Literal["folder", "fenced", "unfenced"],
        on_change: Callable[[str, bytes | None], None],
    ) -> None:
        self.world = world
        self.url = url
        self.kind = kind
        self.objects: dict[str, _Object] = {}
        self.longest_seconds = 0.004 if kind == "folder" else 0.06
        """Upper bound for an operation's time."""
        self._removed: dict[str, bytes] = {}
        self._on_change = on_change

    def close(self) -> None:
        """Let go of the objects."""
        self.objects.clear()
        self._on_change = lambda *_: None

    def put(self, name: str, content: bytes, *, durable: bool) -> None:
        """Create or replace an object."""
        durable = durable or self.kind != "folder"
        before = self.objects.get(name)
        survives = content if durable else before.durable if before else None
        self.objects[name] = _Object(content, survives)
        self._removed.pop(name, None)
        self._on_change(name, content)

    def remove(self, name: str) -> None:
        """Remove an object if it exists. A folder's entry may come back with the power."""
        found = self.objects.pop(name, None)
        if found is not None:
            if self.kind == "folder" and found.durable is not None:
                self._removed[name] = found.durable
            self._on_change(name, None)

    def sync(self, names: Iterable[str]) -> None:
        """Make objects survive a power cut, and what was removed stay removed in their folders."""
        for name in names:
            found = self.objects.get(name)
            if found is None:
                raise ObjectNotFoundError(f"there is no object '{name}' in the store '{self.url}'")
            found.durable = found.content
            folder = name.rpartition("/")[0]
            for removed in [other for other in self._removed if other.rpartition("/")[0] == folder]:
                del self._removed[removed]

    def cut_power(self) -> None:
        """Forget what was not synced: names stay or vanish, contents are whole, cut or empty; the removed returns."""
        rng = self.world.rng
        for name, found in list(self.objects.items()):
            if found.durable == found.content:
                continue
            fate = rng.choice(("kept", "empty", "cut", "before"))
            if fate == "empty":
                self.put(name, b"", durable=True)
            elif fate == "cut":
                self.put(name, found.content[: rng.randrange(len(found.content) + 1)], durable=True)
            elif fate == "before" and found.durable is None:
                del self.objects[name]
                self._on_change(name, None)
            else:
                self.put(name, found.content if fate == "kept" else found.durable or b"", durable=True)
        for name, content in self._removed.items():
            if rng.random() < 0.5:
                self.objects[name] = _Object(content, content)
                self._on_change(name, content)
        self._removed.clear()


class SimulatedStore:
    """Implements `Store` on a bucket. Each operation is a step of the world: it takes time, and a fault may hit it."""

    def __init__(self, bucket: Bucket, prefix: str = "") -> None:
        self._bucket = bucket
        self._world = bucket.world
        self._prefix = prefix

    @property
    def url(self) -> str:
        """Return the bucket's url with the folder's name."""
        return f"{self._bucket.url}/{self._prefix}".rstrip("/")

    @property
    def is_fenced(self) -> bool:
        """Return whether of several writers that create an object only one succeeds."""
        return self._bucket.kind != "unfenced"

    def read(self, name: str) -> bytes:
        """Read a whole object."""
        self._step("read", name)
        found = self._bucket.objects.get(self._prefix + name)
        if found is None:
            raise ObjectNotFoundError(f"there is no object '{name}' in the store '{self.url}'")
        return found.content

    def view(self, name: str) -> memoryview:
        """Read a whole object into a private buffer."""
        return memoryview(bytearray(self.read(name)))

    def read_range(self, name: str, start: int, stop: int) -> memoryview:
        """Read bytes [start, stop)."""
        return memoryview(bytearray(self.read(name)[start:stop]))

    def write(self, name: str, parts: Sequence[Buffer], *, durable: bool = False) -> None:
        """Store the joined parts."""
        content = b"".join(bytes(part) for part in parts)
        self._change("write", name, lambda: self._bucket.put(self._prefix + name, content, durable=durable))

    def create(self, name: str, data: bytes) -> None:
        """Store `data` if there is no such object."""
        full = self._prefix + name

        def refused() -> bool:
            if full not in self._bucket.objects:
                return False
            raise ObjectExistsError(f"'{name}' exists already in the store '{self.url}'; read it to see its writer")

        if self._bucket.kind == "unfenced":
            # The service looks, and writes later: whoever writes last wins.
            self._step("look", name)
            refused()
            self._change("create", name, lambda: self._bucket.put(full, data, durable=True))
            return

        def create() -> None:
            refused()
            self._bucket.put(full, data, durable=True)

        self._change("create", name, create)

    def exists(self, name: str) -> bool:
        """Return whether the object exists."""
        self._step("exists", name)
        return self._prefix + name in self._bucket.objects

    def list(self, prefix: str = "") -> builtins.list[str]:
        """List names, sorted."""
        self._step("list", prefix)
        full, skip = self._prefix + prefix, len(self._prefix)
        return sorted([name[skip:] for name in self._bucket.objects if name.startswith(full)])

    def delete(self, names: Iterable[str]) -> None:
        """Remove objects, one after the other."""
        self._change_each("delete", list(names), self._bucket.remove)

    def sync(self, names: Iterable[str]) -> None:
        """Make objects survive a power cut."""
        names = list(names)
        if self._bucket.kind == "folder" and names:
            self._change_each("sync", names, lambda name: self._bucket.sync([name]))

    def path(self, name: str) -> Path | None:
        """Return a stand-in for the object's file if the store is a folder."""
        if self._bucket.kind != "folder":
            return None
        found: Any = _File(self._bucket, self._prefix + name)
        return found  # type: ignore[no-any-return]

    def at(self, prefix: str) -> SimulatedStore:
        """Return the same store below a folder."""
        return SimulatedStore(self._bucket, f"{self._prefix}{prefix.rstrip('/')}/")

    def _step(self, operation: str, name: str, *, writes: bool = False) -> str:
        """Let the operation's time pass; returns the fault that hits it, after those that end or delay it."""
        world = self._world
        world.steps += 1
        fault = world.faults.next_at(world.steps, writes=writes) if world.steps >= world.faults.next_step else ""
        seconds = world.rng.random() * self._bucket.longest_seconds
        if fault:
            world.coverage[fault, f"{world.thread.process.role} {operation} {name.partition('/')[0]}"] += 1
            world.faults.last_effect_at = max(world.faults.last_effect_at, world.now)
            if fault == "slow":
                seconds += world.rng.uniform(5.0, 40.0)
        world.sleep(seconds)
        if world.trace is not None:
            world.note(f"{operation} {name}{f'  <- {fault}' if fault else ''}")
        if not fault:
            return ""
        if fault in {"kill before", "kill host", "power cut"}:
            self._end(fault)
        elif fault == "clock jump":
            world.thread.process.host.clock_ahead_seconds += world.rng.uniform(1.0, 600.0)
        elif fault == "error":
            raise StoreError(f"cannot {operation} '{name}' in the store '{self.url}': an injected failure")
        elif not writes:
            self._afterwards(fault)
        return fault

    def _change(self, operation: str, name: str, change: Callable[[], None]) -> None:
        fault = self._step(operation, name, writes=True)
        world = self._world
        if fault == "late":
            self._later(change)
            world.sleep(_TIMEOUT_SECONDS)
            raise StoreError(f"cannot {operation} '{name}' in the store '{self.url}': no answer")
        if fault == "lost answer" and operation == "create" and world.rng.random() < 0.5:
            change()
            change()  # the retry finds the object of the first request, and is refused
        change()
        if fault == "lost answer":
            world.sleep(_TIMEOUT_SECONDS)
            raise StoreError(f"cannot {operation} '{name}' in the store '{self.url}': no answer")
        if fault == "echo":
            self._later(change)
        elif fault:
            self._afterwards(fault)

    def _change_each(self, operation: str, names: builtins.list[str], change: Callable[[str], None]) -> None:
        fault = self._step(operation, names[0] if names else "", writes=True)
        changed = self._world.rng.randrange(len(names) + 1) if fault in {"part", "lost answer", "late"} else len(names)

        def change_rest() -> None:
            for name in names[changed:] if fault == "late" else names:
                change(self._prefix + name)

        for name in names[:changed]:
            change(self._prefix + name)
        if fault in {"late", "echo"}:
            self._later(change_rest)
        if fault in {"lost answer", "late"}:
            self._world.sleep(_TIMEOUT_SECONDS)
            raise StoreError(f"cannot {operation} {names} in the store '{self.url}': no answer")
        if fault and fault != "echo":
            self._afterwards(fault)

    def _later(self, change: Callable[[], None]) -> None:
        """Let a request land again, or for the first time, when nobody waits for its answer."""

        def land() -> None:
            self._world.note("a request lands late")
            try:
                change()
            except StoreError:
                self._world.note("and is refused")

        seconds = self._world.rng.uniform(0.0, LONGEST_DELAY_SECONDS)
        self._world.faults.last_effect_at = max(self._world.faults.last_effect_at, self._world.now + seconds)
        self._world.after(seconds, land)

    def _afterwards(self, fault: str) -> None:
        if fault in {"kill after", "part"}:
            self._end(fault)
        elif fault == "pause":
            process = self._world.thread.process
            process.paused_until = self._world.now + self._world.rng.uniform(1.0, LONGEST_PAUSE_SECONDS)
            self._world.faults.last_effect_at = max(self._world.faults.last_effect_at, process.paused_until)
            self._world.sleep(0.0)

    def _end(self, fault: str) -> None:
        """End the running process, or all of its host."""
        process = self._world.thread.process
        if fault in {"kill host", "power cut"}:
            for other in list(process.host.processes):
                if other is not process:
                    other.end(None)
            if fault == "power cut":
                process.host.boot += 1
                process.host.cache.clear()
                if self._bucket.kind == "folder":
                    self._bucket.cut_power()
        self._world.die()


class _File:
    """The part of a path that protocol code uses of an object in a folder."""

    def __init__(self, bucket: Bucket, name: str) -> None:
        self._bucket = bucket
        self.name = name

    @property
    def parent(self) -> _File:
        return _File(self._bucket, self.name.rpartition("/")[0])

    @property
    def st_size(self) -> int:
        return len(self._bucket.objects[self.name].content)

    def stat(self) -> _File:
        return self

    def is_dir(self) -> bool:
        return any(name.startswith(self.name) for name in self._bucket.objects)

    def iterdir(self) -> Iterator[_File]:
        prefix = f"{self.name}/" if self.name else ""
        below = {name[len(prefix) :].partition("/")[0] for name in self._bucket.objects if name.startswith(prefix)}
        return (_File(self._bucket, name) for name in sorted(below))
