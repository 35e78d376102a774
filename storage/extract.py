"""From the bytes of a shard's columns to arrays: plain columns are views, the others are unpacked."""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import TYPE_CHECKING, Any

import numpy as np

from storage.checksums import BLOCK_BYTES
from storage.columns import STACK_SUFFIX, byte_range, stored_spec
from storage.compression import decompress_blocks
from storage.frames import join_stacks
from storage.specs import Spec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from storage.shard_head import Field, ShardHead


class Segments:
    """The parts of a file that are here."""

    def __init__(self, *parts: tuple[int, memoryview]) -> None:
        self._starts: list[int] = []
        self._parts: list[memoryview] = []
        for start, content in parts:
            self.add(start, content)

    def add(self, start: int, content: memoryview) -> None:
        """Bytes of the file from `start` on."""
        at = bisect_right(self._starts, start)
        self._starts.insert(at, start)
        self._parts.insert(at, content)

    def find(self, start: int, stop: int) -> memoryview | None:
        """Bytes `[start, stop)`, if one part has them all; a view of it."""
        for at in reversed(range(bisect_right(self._starts, start))):
            offset = start - self._starts[at]
            if offset + stop - start <= self._parts[at].nbytes:
                return self._parts[at][offset : offset + stop - start]
        return None

    def view(self, start: int, stop: int) -> memoryview:
        """Bytes `[start, stop)`, which must be here."""
        found = self.find(start, stop)
        if found is None:
            raise RuntimeError(f"bytes {start} to {stop} were not fetched")
        return found


def blocks_of(field: Field, start: int, stop: int) -> range:
    """The blocks in which bytes `[start, stop)` of a column's values lie."""
    if field.sizes is not None:
        return field.blocks_of(start, stop)
    at, _ = field.values_at
    return field.blocks_of(at + start, at + stop)


def values(head: ShardHead, segments: Segments, name: str, rows: range) -> NDArray[Any]:
    """What is stored of consecutive rows, `[rows, ...]`: of stacks, the last frame."""
    spec = stored_spec(head.columns[name])
    start, stop = byte_range(spec, rows)
    content = _content(head.fields[name], segments, start, stop)
    if spec.dtype != "bool":
        return np.frombuffer(content, spec.dtype).reshape(len(rows), *spec.shape)
    width = math.prod(spec.shape)
    skip = rows.start * width - start * 8
    bits = np.unpackbits(np.frombuffer(content, np.uint8), bitorder="little", count=skip + len(rows) * width)
    return bits[skip:].view(np.bool_).reshape(len(rows), *spec.shape)


def _content(field: Field, segments: Segments, start: int, stop: int) -> memoryview:
    if field.sizes is None:
        at, _ = field.values_at
        return segments.view(at + start, at + stop)
    blocks = field.blocks_of(start, stop)
    chunks = [segments.view(*field.chunk(block)) for block in blocks]
    nbytes = min(blocks.stop * BLOCK_BYTES, field.raw_bytes) - blocks.start * BLOCK_BYTES
    skip = start - blocks.start * BLOCK_BYTES
    return decompress_blocks(chunks, field.codec or "", nbytes)[skip : skip + stop - start]


class Lists:
    """A nullable list column: which rows have an entry, and where it lies. Entries have one length."""

    def __init__(self, field: Field, segments: Segments, rows: int, spec: Spec) -> None:
        """Args: the column's field, whose validity is among the segments, all rows, and one entry's type."""
        (validity_at, _), _, _, (self._at, self._nbytes) = field.buffers
        validity = np.frombuffer(segments.view(validity_at, validity_at + -(-rows // 8)), np.uint8)
        self.rows = np.flatnonzero(np.unpackbits(validity, bitorder="little", count=rows))
        self._spec = spec
        self._entry_bytes = math.prod(spec.shape) * np.dtype(spec.dtype).itemsize
        if self._nbytes != len(self.rows) * self._entry_bytes:
            raise ValueError(
                f"column '{field.name}' has {self._nbytes} bytes in {len(self.rows)} rows, expected "
                f"{self._entry_bytes} a row"
            )

    def place(self, entries: range) -> tuple[int, int]:
        """Where consecutive entries lie in the file."""
        return self._at + entries.start * self._entry_bytes, self._at + entries.stop * self._entry_bytes

    def read(self, segments: Segments, entries: range) -> NDArray[Any]:
        """Consecutive entries, `[entries, ...]`."""
        content = segments.view(*self.place(entries))
        return np.frombuffer(content, self._spec.dtype).reshape(len(entries), *self._spec.shape)


def earlier_frames(head: ShardHead, segments: Segments, name: str) -> Lists:
    """The earlier frames of a stacked column; what lies in front of them must be among the segments."""
    spec = head.columns[name]
    entry = Spec(spec.dtype, (spec.shape[0] - 1, *spec.shape[1:]))
    return Lists(head.fields[name + STACK_SUFFIX], segments, head.info.steps * head.info.envs, entry)


def stacks(head: ShardHead, segments: Segments, name: str, steps: range, lists: Lists) -> NDArray[Any]:
    """Stacks of consecutive steps, `[steps, B, k, ...]`, rebuilt from the steps before as far as they reach back."""
    envs = head.info.envs
    first = first_needed_step(head, name, steps)
    frames = values(head, segments, name, range(first * envs, steps.stop * envs))
    frames = frames.reshape(steps.stop - first, envs, *frames.shape[1:])
    entries = entries_of(lists, first, steps.stop, envs)
    rows = lists.rows[entries.start : entries.stop] - first * envs
    return join_stacks(frames, rows, lists.read(segments, entries))[steps.start - first :]


def first_needed_step(head: ShardHead, name: str, steps: range) -> int:
    """The first step whose frame a stack of `steps` may have."""
    return max(0, steps.start - head.columns[name].shape[0] + 1)


def entries_of(lists: Lists, first: int, stop: int, envs: int) -> range:
    """The entries in the rows of steps `[first, stop)`."""
    edges = np.searchsorted(lists.rows, (first * envs, stop * envs))
    return range(int(edges[0]), int(edges[1]))
