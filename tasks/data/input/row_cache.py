"""Returns rows of stored shards by global id, and caches the most recently used shards within a budget of bytes."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import OrderedDict, deque
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from penstock.storage.errors import ConfigError, SpecMismatchError
from penstock.storage.shards.reader import HEAD_BYTES, open_shard
from penstock.tasks.data.input.run_selection import NEXT_OBSERVATION, stored_name

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from penstock.storage.refs import ShardRef
    from penstock.storage.shards.reader import ShardReader
    from penstock.storage.stores.protocol import Store


class HeldRows(Protocol):
    """Rows of one shard, which own their memory."""

    @property
    def nbytes(self) -> int:
        """Return the memory in bytes."""

    @property
    def read_bytes(self) -> int:
        """Return the bytes that were fetched for it."""

    def take(self, rows: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Return the values `[n, ...]` of rows `[n]` of the shard by name."""


@dataclass(frozen=True, slots=True)
class ShardRows:
    """The requested columns of one shard, which own their memory."""

    names: tuple[str, ...]
    """Columns that `take` returns."""
    columns: dict[str, NDArray[Any]]
    """`[rows, ...]` by name, as stored."""
    envs: int
    """Number of environments: an environment's next step is so many rows later."""
    bootstrap_rows: NDArray[np.int64]
    """Rows without a successor, `[K]`, ascending; empty if `next_observation` is not requested."""
    bootstrap_observation: NDArray[Any]
    """Observations after them, `[K, ...]`."""
    read_bytes: int
    """Bytes fetched for it."""

    @property
    def nbytes(self) -> int:
        """Return the memory in bytes."""
        arrays = (*self.columns.values(), self.bootstrap_rows, self.bootstrap_observation)
        return sum(array.nbytes for array in arrays)

    def take(self, rows: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Return values `[n, ...]` of rows `[n]` by name; next observations are looked up, not stored twice."""
        found = {name: self.columns[stored_name(name)] for name in self.names}
        return {
            name: self._after(rows, column) if name == NEXT_OBSERVATION else column[rows]
            for name, column in found.items()
        }

    def _after(self, rows: NDArray[np.int64], observation: NDArray[Any]) -> NDArray[Any]:
        # The last step of every environment is among the bootstrap rows, so no other row leads beyond the shard.
        after = observation[np.minimum(rows + self.envs, len(observation) - 1)]
        entries = np.minimum(np.searchsorted(self.bootstrap_rows, rows), len(self.bootstrap_rows) - 1)
        ends = self.bootstrap_rows[entries] == rows
        after[ends] = self.bootstrap_observation[entries[ends]]
        return after


class RowReader:
    """Reads the requested columns of shards, and nothing else of them. Thread-safe.

    Args:
        store: holds the runs.
        columns: stored ones, or `next_observation`; None: all stored columns.
    """

    def __init__(self, store: Store, columns: Sequence[str] | None) -> None:
        self._store = store
        self._columns = columns
        self._head_bytes = HEAD_BYTES
        self._types: dict[str, tuple[str, tuple[int, ...]]] | None = None

    def read(self, ref: ShardRef) -> ShardRows:
        """Read the requested columns of one shard; everything that is read is verified.

        Raises:
            ConfigError: it has no column of that name.
            SpecMismatchError: its columns have other types or shapes than those of an earlier shard.
            CorruptObjectError: it was altered or cut short.
        """
        reader = open_shard(self._store, ref, head_bytes=self._head_bytes)
        # Heads of one run have nearly one size: a little more than the longest needs no second request.
        self._head_bytes = max(self._head_bytes, reader.head_bytes + (1 << 12))
        names = tuple(reader.specs) if self._columns is None else tuple(self._columns)
        stored = list(dict.fromkeys(map(stored_name, names)))
        self._check(reader, stored)
        nothing = np.empty(0, np.int64)
        if NEXT_OBSERVATION in names:
            shard = reader.shard(stored)
            columns, ends, after = shard.columns, shard.bootstrap_rows, np.array(shard.bootstrap_observation)
        else:
            columns, ends, after = reader.columns(stored), nothing, nothing
        for name, column in columns.items():
            spec, flat = reader.readable[name], column.reshape(ref.rows, *column.shape[2:])
            # A plain column is a view into the whole fetched buffer, and would keep that alive.
            is_own = spec.compression or spec.stacked or spec.leaves or spec.dtype == "bool"
            columns[name] = flat if is_own else flat.copy()
        return ShardRows(names, columns, reader.info.envs, ends, after, reader.read_bytes)

    def _check(self, reader: ShardReader, stored: Sequence[str]) -> None:
        name, specs = reader.ref.name, reader.readable
        missing = sorted(set(stored) - set(specs))
        if missing:
            raise ConfigError(
                f"columns: '{name}' has no {', '.join(missing)}; it has {', '.join(specs)}, and "
                f"'{NEXT_OBSERVATION}' is available for every shard"
            )
        if reader.info.steps * reader.info.envs != reader.ref.rows:
            raise SpecMismatchError(
                f"'{name}' has {reader.info.steps} x {reader.info.envs} rows, expected {reader.ref.rows} as in its "
                f"commit: restore the commit or the shard from a copy"
            )
        types = {column: (specs[column].dtype, specs[column].shape) for column in stored}
        self._types = self._types or types
        if types != self._types:
            raise SpecMismatchError(
                f"'{name}' has the columns {types}, other shards {self._types}; name columns that all runs share"
            )


@dataclass(frozen=True, slots=True)
class _Piece:
    """The requested rows of one shard."""

    ref: ShardRef
    rows: NDArray[np.int64]
    """Rows within the shard."""
    places: NDArray[np.int64]
    """Rows of the batch to which they are copied."""


class StoredRows:
    """Gathers rows of many shards, and caches the most recently used ones within a budget.

    Fetched bytes count until the requested rows have their own memory. A shard's size in memory is known once it was
    read; until then it is estimated by the largest size per row so far, and nothing else is read concurrently with the
    first one.

    Args:
        read: returns the rows of a shard; called on several threads at once if `threads` is more than 1.
        budget_bytes: limit for bytes held and being read. A shard that alone takes more is read, used and dropped.
        threads: number of concurrent reads; 1: in the thread that gathers.

    Attributes:
        evicts: whether shards are evicted when the budget is exhausted; otherwise their memory is not theirs to free.
        held_bytes: current size of the cached shards.
        peak_bytes: peak size of shards held and being read.
        read_bytes: bytes fetched.
        reads: number of shards read.
        hits: number of lookups that found a shard in memory.
    """

    def __init__(self, read: Callable[[ShardRef], HeldRows], budget_bytes: int, threads: int = 1) -> None:
        if budget_bytes < 1:
            raise ValueError(f"budget_bytes is {budget_bytes}, expected 1 or more")
        self._read = read
        self._budget_bytes = budget_bytes
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._refs: list[ShardRef] = []
        self._starts = [0]
        self._held: OrderedDict[ShardRef, tuple[HeldRows, int]] = OrderedDict()
        self._reading_bytes = 0
        self._bytes_per_row = 0.0
        self.evicts = True
        self.held_bytes = 0
        self.peak_bytes = 0
        self.read_bytes = 0
        self.reads = 0
        self.hits = 0

    def number(self, refs: Sequence[ShardRef], first_id: int, row_steps: int = 1) -> None:
        """Number the rows of these shards from `first_id` on, so that they can be gathered; drops all other shards.

        A row is made of `row_steps` stored ones.
        """
        # By name, since hashing all references would take a twentieth of each round of DQN.
        by_name = {ref.name: ref for ref in refs}
        for ref in self._refs:
            now = by_name.get(ref.name)
            if now is not ref and now != ref:
                self.drop(ref)
        self._refs = list(refs)
        self._starts = list(accumulate((ref.rows // row_steps for ref in refs), initial=first_id))

    @property
    def whole(self) -> bool:
        """Return whether all numbered shards are held."""
        return len(self._held) == len(self._refs)

    def hold(self, ref: ShardRef, shard: HeldRows) -> None:
        """Cache rows of a numbered shard that are in memory already, so that it need not be read."""
        if shard.nbytes <= self._budget_bytes and ref not in self._held:
            self._evict(shard.nbytes)
            self._held[ref] = shard, shard.nbytes
            self.held_bytes += shard.nbytes
            self.peak_bytes = max(self.peak_bytes, self.held_bytes)

    def rename(self, before: ShardRef, ref: ShardRef) -> None:
        """Number a shard by its reference that was numbered by another one, before its own was known."""
        self._refs = [ref if one is before else one for one in self._refs]
        if (held := self._held.pop(before, None)) is not None:
            self._held[ref] = held

    def drop(self, ref: ShardRef) -> bool:
        """Drop a shard's rows from memory, since others take their place; return whether they were there."""
        held = self._held.pop(ref, None)
        if held is not None:
            self.held_bytes -= held[1]
        return held is not None

    def gather(self, ids: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Return columns `[n, ...]` of rows by global id `[n]`, in that order; each shard is used once.

        Raises:
            IndexError: there is no such row.
            PenstockError: a shard can't be read, or was altered; as `read`.
        """
        if not len(ids):
            raise IndexError("no rows were requested, expected at least one id")
        first, stop = self._starts[0], self._starts[-1]
        if ids.min() < first or ids.max() >= stop:
            raise IndexError(f"rows {ids.min()} to {ids.max()}, expected {first} to {stop - 1}")
        found: dict[str, NDArray[Any]] = {}
        with closing(self._shards(self._pieces(ids))) as shards:
            for piece, shard in shards:
                for name, values in shard.take(piece.rows).items():
                    if name not in found:
                        found[name] = np.empty((len(ids), *values.shape[1:]), values.dtype)
                    found[name][piece.places] = values
        return found

    def close(self) -> None:
        """Drop everything cached, and the threads; rows that are gathered later are read again."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        self._held.clear()
        self.held_bytes = 0

    def _pieces(self, ids: NDArray[np.int64]) -> Iterator[_Piece]:
        order = np.argsort(ids, kind="stable")
        ordered = ids[order]
        done = 0
        while done < len(ordered):
            index = bisect_right(self._starts, int(ordered[done])) - 1
            end = int(np.searchsorted(ordered, self._starts[index + 1]))
            yield _Piece(self._refs[index], ordered[done:end] - self._starts[index], order[done:end])
            done = end

    def _shards(self, pieces: Iterable[_Piece]) -> Generator[tuple[_Piece, HeldRows]]:
        """Yield cached shards first, since the others may evict them."""
        missing: deque[_Piece] = deque()
        for piece in pieces:
            held = self._held.get(piece.ref)
            if held is None:
                missing.append(piece)
            else:
                self._held.move_to_end(piece.ref)
                self.hits += 1
                yield piece, held[0]
        under_way: deque[tuple[_Piece, Future[HeldRows] | None, int]] = deque()
        try:
            while missing or under_way:
                while missing and len(under_way) < self._threads:
                    charged_bytes = self._expected_bytes(missing[0].ref)
                    if not self._has_room(charged_bytes, alone=not under_way):
                        break
                    self._reading_bytes += charged_bytes
                    piece = missing.popleft()
                    under_way.append((piece, self._start(piece.ref), charged_bytes))
                piece, future, charged_bytes = under_way[0]
                shard = self._read(piece.ref) if future is None else future.result()
                under_way.popleft()
                self._arrived(piece.ref, shard, charged_bytes)
                yield piece, shard
        finally:
            # Reads that can no longer be cancelled still take memory.
            wait([future for _, future, _ in under_way if future is not None and not future.cancel()])
            self._reading_bytes -= sum(charged_bytes for _, _, charged_bytes in under_way)

    def _start(self, ref: ShardRef) -> Future[HeldRows] | None:
        if self._threads == 1:
            return None
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, "stored-rows")
        return self._pool.submit(self._read, ref)

    def _expected_bytes(self, ref: ShardRef) -> int:
        return math.ceil(self._bytes_per_row * ref.rows) if self._bytes_per_row else 2 * ref.nbytes

    def _has_room(self, nbytes: int, *, alone: bool) -> bool:
        """Make room by evicting the least recently used shards; a shard that is read alone is always allowed."""
        # Concurrent reads must not evict the cached shards.
        if not alone and (not self._bytes_per_row or self._reading_bytes + nbytes > self._budget_bytes // 2):
            return False
        self._evict(nbytes)
        return True

    def _evict(self, nbytes: int) -> None:
        while self.evicts and self._held and self.held_bytes + self._reading_bytes + nbytes > self._budget_bytes:
            self.held_bytes -= self._held.popitem(last=False)[1][1]

    def _arrived(self, ref: ShardRef, shard: HeldRows, charged_bytes: int) -> None:
        nbytes = shard.nbytes
        self.reads += 1
        self.read_bytes += shard.read_bytes
        self._bytes_per_row = max(self._bytes_per_row, (nbytes + shard.read_bytes) / ref.rows)
        others_bytes = self._reading_bytes - charged_bytes
        self.peak_bytes = max(self.peak_bytes, self.held_bytes + others_bytes + nbytes + shard.read_bytes)
        self._reading_bytes = others_bytes
        if self._reading_bytes + nbytes <= self._budget_bytes:
            self._evict(nbytes)
            self._held[ref] = shard, nbytes
            self.held_bytes += nbytes
