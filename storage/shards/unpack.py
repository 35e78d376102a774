"""Converts the bytes of a shard's columns to arrays: plain columns are views, the others are unpacked."""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.storage.shards.blocks import BLOCK_BYTES, decompress_blocks
from penstock.storage.shards.columns import STACK_SUFFIX, byte_range, join_stacks, stored_spec
from penstock.storage.shards.specs import Spec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.storage.shards.header import Field, ShardHead


class Segments:
    """Holds the fetched parts of a file."""

    def __init__(self, *parts: tuple[int, memoryview]) -> None:
        self._starts: list[int] = []
        self._parts: list[memoryview] = []
        for start, content in parts:
            self.add(start, content)

    def add(self, start: int, content: memoryview) -> None:
        """Add bytes of the file from `start` on."""
        at = bisect_right(self._starts, start)
        self._starts.insert(at, start)
        self._parts.insert(at, content)

    def find(self, start: int, stop: int) -> memoryview | None:
        """Return a view of bytes `[start, stop)` if one part has them all."""
        for at in reversed(range(bisect_right(self._starts, start))):
            offset = start - self._starts[at]
            if offset + stop - start <= self._parts[at].nbytes:
                return self._parts[at][offset : offset + stop - start]
        return None

    def view(self, start: int, stop: int) -> memoryview:
        """Return a view of bytes `[start, stop)`, which must have been fetched; none are needed for an empty range."""
        if start == stop:
            return memoryview(bytearray())
        found = self.find(start, stop)
        if found is None:
            raise RuntimeError(f"bytes {start} to {stop} were not fetched")
        return found


def blocks_of(field: Field, start: int, stop: int) -> range:
    """Return the blocks with bytes `[start, stop)` of a column's values."""
    if field.sizes is not None:
        return field.blocks_of(start, stop)
    at, _ = field.values_at
    return field.blocks_of(at + start, at + stop)


def values(head: ShardHead, segments: Segments, name: str, rows: range) -> NDArray[Any]:
    """Return the stored values of consecutive rows, `[rows, ...]`: for stacks, the last frames."""
    spec = stored_spec(head.stored[name])
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
    """Finds the entries of a nullable list column. All have the same length."""

    def __init__(self, field: Field, segments: Segments, rows: int, spec: Spec) -> None:
        """Take the column's field, whose validity has been fetched, the number of all rows, and one entry's type."""
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
        """Return the range of consecutive entries in the file."""
        return self._at + entries.start * self._entry_bytes, self._at + entries.stop * self._entry_bytes

    def read(self, segments: Segments, entries: range) -> NDArray[Any]:
        """Return consecutive entries, `[entries, ...]`."""
        content = segments.view(*self.place(entries))
        return np.frombuffer(content, self._spec.dtype).reshape(len(entries), *self._spec.shape)


def earlier_frames(head: ShardHead, segments: Segments, name: str) -> Lists:
    """Return the earlier frames of a stacked column; the blocks in front of them must have been fetched."""
    spec = head.columns[name]
    entry = Spec(spec.dtype, (spec.shape[0] - 1, *spec.shape[1:]))
    return Lists(head.fields[name + STACK_SUFFIX], segments, head.info.steps * head.info.envs, entry)


def stacks(head: ShardHead, segments: Segments, name: str, steps: range, lists: Lists) -> NDArray[Any]:
    """Rebuild the stacks of consecutive steps, `[steps, B, k, ...]`, from as many earlier steps as they include."""
    envs = head.info.envs
    first = first_needed_step(head, name, steps)
    frames = values(head, segments, name, range(first * envs, steps.stop * envs))
    frames = frames.reshape(steps.stop - first, envs, *frames.shape[1:])
    entries = entries_of(lists, first, steps.stop, envs)
    rows = lists.rows[entries.start : entries.stop] - first * envs
    return join_stacks(frames, rows, lists.read(segments, entries))[steps.start - first :]


def first_needed_step(head: ShardHead, name: str, steps: range) -> int:
    """Return the first step whose frame a stack of `steps` may include."""
    return max(0, steps.start - head.columns[name].shape[0] + 1)


def entries_of(lists: Lists, first: int, stop: int, envs: int) -> range:
    """Return the entries in the rows of steps `[first, stop)`."""
    edges = np.searchsorted(lists.rows, (first * envs, stop * envs))
    return range(int(edges[0]), int(edges[1]))
