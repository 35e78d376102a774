"""A fuzzing target is a decoder with its contract: any input gives a value that can be encoded again, or a refusal."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.storage.errors import ObjectNotFoundError

from .mutators import mutate_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

GOLDEN = Path(__file__).parents[1] / "golden"
FOUND = Path(__file__).parent / "found"


@dataclass(frozen=True)
class Target:
    """One decoder of stored or foreign bytes."""

    name: str
    decode: Callable[[bytes], Any]
    """Returns the decoded value, or raises one of `refusals`."""
    seeds: Sequence[bytes]
    """Inputs that the decoder accepts."""
    refusals: tuple[type[Exception], ...]
    """The errors that the decoder documents."""
    check: Callable[[Any, bytes], None] = field(default=lambda value, data: None)
    """Asserts that the value, encoded and decoded again, has the same meaning."""
    mutate: Callable[[bytes, Random], bytes] = mutate_bytes
    """Returns a changed input that is more likely to get past the first checks than one with changed bytes."""

    def run(self, data: bytes) -> bool:
        """Decode an input; return whether it was accepted. Any error but a refusal is a fault."""
        try:
            value = self.decode(data)
        except self.refusals:
            return False
        self.check(value, data)
        return True

    def found(self) -> list[Path]:
        """Return the files with inputs that once showed a fault."""
        folder = FOUND / self.name
        return sorted(folder.iterdir()) if folder.is_dir() else []


class MemoryStore:
    """Holds objects in memory, as much of a store as decoders use."""

    url = "memory://"

    def __init__(self, objects: dict[str, bytes] | None = None, prefix: str = "") -> None:
        self._objects = {} if objects is None else objects
        self._prefix = prefix

    def read(self, name: str) -> bytes:
        try:
            return self._objects[self._prefix + name]
        except KeyError:
            raise ObjectNotFoundError(f"no object '{name}' in {self.url}") from None

    def view(self, name: str) -> memoryview:
        return memoryview(bytearray(self.read(name)))

    def read_range(self, name: str, start: int, stop: int) -> memoryview:
        return self.view(name)[start:stop]

    def write(self, name: str, parts: Sequence[bytes | memoryview], *, durable: bool = False) -> None:
        self._objects[self._prefix + name] = b"".join(parts)

    def list(self, prefix: str = "") -> list[str]:
        return sorted(name.removeprefix(self._prefix) for name in self._objects if name.startswith(self._prefix))

    def path(self, name: str) -> None:
        return None

    def at(self, prefix: str) -> MemoryStore:
        return MemoryStore(self._objects, f"{self._prefix}{prefix}/")


def golden(*names: str) -> tuple[bytes, ...]:
    """Return the content of golden files."""
    return tuple((GOLDEN / name).read_bytes() for name in names)
