"""Reads parts of a stored shard by ranged reads: its index, some columns, some steps or an episode.

Every fetched block is verified, and the number of requests of a read does not depend on the shard's size.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from penstock.storage.errors import CorruptObjectError, SpecMismatchError
from penstock.storage.shards.arrow_frame import ALIGNMENT_BYTES, TruncatedError
from penstock.storage.shards.codec import (
    Shard,
    check_columns,
    corrupt_on_error,
    unpack_shard,
)
from penstock.storage.shards.columns import BOOTSTRAP_COLUMN, STACK_SUFFIX, byte_range
from penstock.storage.shards.header import ADVICE, ShardHead, ShardInfo, read_head
from penstock.storage.shards.leaves import joined_columns, parts_of, stored_names
from penstock.storage.shards.unpack import (
    Lists,
    Segments,
    blocks_of,
    earlier_frames,
    entries_of,
    first_needed_step,
    stacks,
    values,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from penstock.storage.refs import ShardRef
    from penstock.storage.shards.header import Field
    from penstock.storage.shards.specs import Spec
    from penstock.storage.stores.protocol import Store

T = TypeVar("T")

HEAD_BYTES = 1 << 16
"""The first read's size: longer than most heads, and cheaper than another request."""

_JOIN_GAP_BYTES = 1 << 15  # a gap of less than this is cheaper to read than a second request
_REQUESTS_AT_ONCE = 8
_HEAD_ATTEMPTS = 4  # a head has two messages, each preceded by its length


def open_shard(
    store: Store, ref: ShardRef, expected: Mapping[str, Spec] | None = None, *, head_bytes: int = HEAD_BYTES
) -> ShardReader:
    """Read a shard's head, by one request if it is at most `head_bytes` long; `ShardReader.head_bytes` is a guess.

    Args:
        store: the shard's store.
        ref: the shard's reference; its digest vouches for everything that is read.
        expected: columns that it must have, or None to accept any.
        head_bytes: a guess; a smaller shard is read whole, and needs no other request.

    Raises:
        ObjectNotFoundError: there is none.
        CorruptObjectError: altered, cut short, or no shard.
        SpecMismatchError: it has other columns.
    """
    head_bytes = max(head_bytes, ALIGNMENT_BYTES)
    content = store.read_range(ref.name, 0, head_bytes)
    with corrupt_on_error(ref.name, ref.nbytes, ref.digest):
        for _ in range(_HEAD_ATTEMPTS):
            try:
                head = read_head(content, ref.name, ref.digest)
                break
            except TruncatedError as error:
                if content.nbytes < head_bytes:
                    raise
                head_bytes = error.needed
                content = store.read_range(ref.name, 0, head_bytes)
        else:
            raise ValueError(f"its head is longer than {head_bytes} bytes")
        if expected is not None:
            check_columns(head, expected, ref.name)
    return ShardReader(store, ref, head, content)


def open_buffer(
    store: Store, ref: ShardRef, buffer: memoryview, expected: Mapping[str, Spec] | None = None
) -> ShardReader:
    """Open a shard from its whole file: the requested parts are verified, and nothing is fetched.

    Args:
        store: the shard's store.
        ref: the shard's reference; its digest vouches for everything that is read.
        buffer: its bytes; arrays are views of them, and as writable as they are.
        expected: columns that it must have, or None to accept any.

    Raises:
        CorruptObjectError: altered, cut short, or no shard.
        SpecMismatchError: it has other columns.
    """
    with corrupt_on_error(ref.name, buffer.nbytes, ref.digest):
        head = read_head(buffer, ref.name, ref.digest)
        if expected is not None:
            check_columns(head, expected, ref.name)
    return ShardReader(store, ref, head, buffer)


class ShardReader:
    """Reads parts of an open shard and keeps them, so that each is fetched once. Not safe for threads."""

    def __init__(self, store: Store, ref: ShardRef, head: ShardHead, content: memoryview) -> None:
        """Use `open_shard`."""
        self.ref = ref
        self._store = store
        self._head = head
        self._segments = Segments((0, content))
        self._checked: dict[str, set[int]] = {name: set() for name in head.fields}
        self._lists: dict[str, Lists] = {}
        self.requests = 1
        """The number of ranged reads so far."""
        self.read_bytes = content.nbytes

    @property
    def info(self) -> ShardInfo:
        """Return the shard's description of itself, including its episode index."""
        return self._head.info

    @property
    def specs(self) -> dict[str, Spec]:
        """Return its columns, in order."""
        return dict(self._head.columns)

    @property
    def readable(self) -> dict[str, Spec]:
        """Return everything that can be read by name: its columns, and the leaves of structured ones."""
        return self._head.columns | self._head.stored

    @property
    def head_bytes(self) -> int:
        """Return the size of its head: a good guess for the next shard of a run."""
        return self._head.nbytes

    def columns(self, names: Iterable[str]) -> dict[str, NDArray[Any]]:
        """Read whole columns `[T, B, ...]` by name; the others are not fetched."""
        return self.steps(0, self.info.steps, names)

    def shard(self, names: Iterable[str] | None = None) -> Shard:
        """Read some columns, or all, and the bootstrap observations together."""
        names = self._known(self._head.columns if names is None else names)
        stored = stored_names(self._head.columns, names)
        bootstrap = parts_of(BOOTSTRAP_COLUMN, self._head.columns["observation"])
        fields = [self._head.fields[name] for name in (*stored, *bootstrap)]
        fields += [self._head.fields[name + STACK_SUFFIX] for name in stored if self._head.stored[name].stacked]
        self._fetch([(field, range(len(field.edges) - 1)) for field in fields])
        return self._read(lambda: unpack_shard(self._head, self._segments, names))

    def steps(self, start: int, stop: int, names: Iterable[str]) -> dict[str, NDArray[Any]]:
        """Read steps `[start, stop)` of all environments, `[stop - start, B, ...]` by name.

        Raises:
            IndexError: the shard has fewer steps.
            SpecMismatchError: it has no such column.
            CorruptObjectError: the fetched bytes differ from those written.
        """
        if not 0 <= start <= stop <= self.info.steps:
            raise IndexError(f"steps {start} to {stop} of shard '{self.ref.name}', which has {self.info.steps}")
        names = self._known(names)
        stored = stored_names(self._head.columns, names)
        stacked = [name for name in stored if self._head.stored[name].stacked]
        if start == stop:
            specs = {name: self._head.stored[name] for name in stored}
            none = {name: np.empty((0, self.info.envs, *spec.shape), spec.dtype) for name, spec in specs.items()}
            return self._read(lambda: joined_columns(self._head.columns, names, none))
        self._fetch(
            [
                *(self._wanted(name, self._reach(name, start), stop) for name in stored),
                *(self._index_of(name) for name in stacked if name not in self._lists),
            ]
        )
        return self._read(
            lambda: joined_columns(self._head.columns, names, self._extract_steps(start, stop, stored, stacked))
        )

    def episode(self, index: int, names: Iterable[str]) -> dict[str, NDArray[Any]]:
        """Read the shard's part of an episode that ended in it, `[steps, ...]` by name.

        Args:
            index: in `info.episodes`. An episode that is longer than the result began in earlier shards.
            names: columns.
        """
        steps = self.info.episodes.steps(index, self.info.envs)
        env = int(self.info.episodes.row[index]) % self.info.envs
        found = self.steps(steps.start, steps.stop, names)
        return {name: array[:, env] for name, array in found.items()}

    def bootstrap(self) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """Read the ascending rows without a successor, `[K]`, and the observations after them, `[K, ...]`."""
        found = self.shard(())
        return found.bootstrap_rows, found.bootstrap_observation

    def _extract_steps(
        self, start: int, stop: int, names: Sequence[str], stacked: Sequence[str]
    ) -> dict[str, NDArray[Any]]:
        head, envs = self._head, self.info.envs
        for name in stacked:
            self._lists.setdefault(name, earlier_frames(head, self._segments, name))
        places = []
        for name in stacked:
            lists, field = self._lists[name], head.fields[name + STACK_SUFFIX]
            first, last = lists.place(entries_of(lists, self._reach(name, start), stop, envs))
            places.append((field, field.blocks_of(first, last)))
        self._fetch(places)
        found = {}
        for name in names:
            spec = head.stored[name]
            if spec.stacked:
                found[name] = stacks(head, self._segments, name, range(start, stop), self._lists[name])
            else:
                rows = values(head, self._segments, name, range(start * envs, stop * envs))
                found[name] = rows.reshape(stop - start, envs, *spec.shape)
        return found

    def _known(self, names: Iterable[str]) -> list[str]:
        names = list(names)
        missing = [name for name in names if name not in self.readable]
        if missing:
            raise SpecMismatchError(
                f"shard '{self.ref.name}' has no column {', '.join(map(repr, missing))}; it has "
                f"{', '.join(self.readable)}"
            )
        return names

    def _reach(self, name: str, start: int) -> int:
        """Return the first step that must be read for step `start`."""
        if not self._head.stored[name].stacked:
            return start
        return first_needed_step(self._head, name, range(start, start + 1))

    def _wanted(self, name: str, start: int, stop: int) -> tuple[Field, range]:
        spec, field, envs = self._head.stored[name], self._head.fields[name], self.info.envs
        return field, blocks_of(field, *byte_range(spec, range(start * envs, stop * envs)))

    def _index_of(self, name: str) -> tuple[Field, range]:
        """Return the blocks that say which rows of a list column have an entry."""
        field = self._head.fields[name + STACK_SUFFIX]
        start, _ = field.buffers[0]
        return field, field.blocks_of(start, start + math.ceil(self.info.steps * self.info.envs / 8))

    def _fetch(self, wanted: Sequence[tuple[Field, range]]) -> None:
        """Read and verify blocks that are not fetched yet; adjacent ones by one request."""
        spans = []
        missing = []
        for field, blocks in wanted:
            if not blocks:
                continue
            start, stop = field.edges[blocks.start], field.edges[blocks.stop]
            if self._segments.find(start, stop) is None:
                missing.append((start, stop))
            elif self._checked[field.name].issuperset(blocks):
                continue
            spans.append((field, blocks, start, stop))
        ranges = _joined(missing)
        for (start, stop), content in zip(ranges, self._read_ranges(ranges), strict=True):
            if content.nbytes < stop - start:
                raise CorruptObjectError(
                    f"shard '{self.ref.name}' ends at byte {start + content.nbytes}, expected at least {stop} bytes: "
                    f"{ADVICE}"
                )
            self.requests += 1
            self.read_bytes += content.nbytes
            self._segments.add(start, content)
        for field, blocks, start, stop in spans:
            field.check(self._segments.view(start, stop), blocks, self.ref.name)
            self._checked[field.name].update(blocks)

    def _read_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        def read(place: tuple[int, int]) -> memoryview:
            return self._store.read_range(self.ref.name, *place)

        if len(ranges) < 2 or self._store.path(self.ref.name) is not None:
            return [read(place) for place in ranges]
        with ThreadPoolExecutor(min(len(ranges), _REQUESTS_AT_ONCE), thread_name_prefix="shard-reader") as threads:
            return list(threads.map(read, ranges))

    def _read(self, what: Callable[[], T]) -> T:
        with corrupt_on_error(self.ref.name, self.ref.nbytes, self.ref.digest):
            return what()


def _joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if joined and start - joined[-1][1] <= _JOIN_GAP_BYTES:
            joined[-1] = joined[-1][0], max(stop, joined[-1][1])
        else:
            joined.append((start, stop))
    return joined
