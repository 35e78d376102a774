"""Reads the input pipeline's shards from this node or the store, whole or in parts, all columns or a few.

An object of a local store is mapped. An object of a remote store may be in the node's cache. Otherwise, if few of its
columns are requested, only those are fetched; a large object is read in concurrent ranges into a staging buffer, and a
small one is read by one request.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from penstock.storage.cache.node_cache import CacheTally
from penstock.storage.errors import SpecMismatchError
from penstock.storage.shards.codec import decode_shard
from penstock.storage.shards.leaves import parts_of
from penstock.storage.shards.reader import HEAD_BYTES, open_buffer, open_shard
from penstock.storage.shards.specs import Spec
from penstock.storage.stores.hedged import hedged
from penstock.storage.stores.remote import request_counts
from penstock.storage.transfer.ranged_reads import RangeReader

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from penstock.storage.cache.node_cache import NodeCache
    from penstock.storage.refs import ShardRef
    from penstock.storage.shards.codec import Shard
    from penstock.storage.shards.reader import ShardReader
    from penstock.storage.stores.protocol import Store
    from penstock.storage.stores.remote import RequestCounts
    from penstock.tasks.data.input.device_staging import StagingBuffer, StagingBuffers
    from penstock.tasks.data.input.memory_budget import BudgetShares

_WORTH_A_REQUEST_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class ReadShard:
    """A shard in memory."""

    shard: Shard
    """The requested columns, and possibly others."""
    nbytes: int
    """Size of the whole object."""
    held_bytes: int
    """Memory of the columns."""
    staging: StagingBuffer | None
    """The buffer of the columns, if it must be released."""


class ShardSource:
    """Reads shards of one store. Thread-safe.

    Args:
        store: the run's; slow reads are hedged.
        shares: size of parts, and number of concurrent ones.
        staging: gives memory for large objects.
        expected: the exact columns of every shard; None accepts any.
        columns: names of the columns to read; None: all. A mapping also gives their specs, which are checked.
        cache: searched before a remote store.
        verify_all: whether every byte read is verified, or only the requested columns.

    Attributes:
        cached: contents to use instead of reading, for shards that may not be stored yet.
        cache_tally: hits and misses of the node's cache.
        read_bytes: all bytes read, from the store or on this node.
    """

    def __init__(
        self,
        store: Store,
        shares: BudgetShares,
        staging: StagingBuffers,
        *,
        expected: Mapping[str, Spec] | None,
        columns: Collection[str] | None,
        cache: NodeCache | None,
        verify_all: bool,
    ) -> None:
        self._reads = hedged(store)
        self._is_local = store.path("any") is not None
        self._ranges = RangeReader(self._reads, part_bytes=shares.part_bytes, in_flight=shares.in_flight)
        self._staging = staging
        self._expected = expected
        self._columns = columns
        self._cache = cache
        self._verify_all = verify_all
        # Without expected columns, only a shard's head shows the share of the requested ones: heads are read at first.
        self._wanted_share = 1.0 if columns is None else _share(expected or {}, columns)
        self._joined_bytes = _joined_row_bytes(expected or {}, columns)
        self._head_bytes = HEAD_BYTES
        self._counting = threading.Lock()
        self.cached: dict[ShardRef, memoryview] = {}
        self.cache_tally = CacheTally()
        self.read_bytes = 0

    @property
    def counts(self) -> RequestCounts:
        """Return the request counts of the store so far."""
        return request_counts(self._reads)

    def close(self) -> None:
        """Stop reading in parts."""
        self._ranges.close()

    def memory_bytes(self, ref: ShardRef) -> int:
        """Return the memory that reading a shard may take; 0 if its size is unknown."""
        if self._ranges.in_parts(ref) and not self._saves(ref):
            return self._staging.capacity_bytes(ref.nbytes) + self._joined_bytes * ref.rows
        return ref.nbytes + self._joined_bytes * ref.rows if ref.nbytes else 0

    def names(self, stored: Iterable[str]) -> list[str]:
        """Return the requested columns among the stored ones, in the order of the file."""
        return [name for name in stored if self._columns is None or name in self._columns]

    def read(self, ref: ShardRef) -> ReadShard:
        """Read and verify a shard.

        Raises:
            CorruptObjectError: it was altered or cut short.
            SpecMismatchError: its columns differ from the expected ones.
            StoreError: it can't be read.
        """
        buffer, staging = self._find_on_node(ref), None
        if buffer is None and self._saves(ref):
            return self._read_columns(ref)
        is_fetched = buffer is None
        if buffer is None:
            buffer, staging = self._fetch(ref)
        try:
            self._count(buffer.nbytes, is_fetched=is_fetched)
            shard = self._decode(ref, buffer)
        except BaseException:
            if staging is not None:
                self._staging.release(staging)
            raise
        held = (staging.capacity_bytes if staging else buffer.nbytes) + self._joined_bytes * ref.rows
        return ReadShard(shard, buffer.nbytes, held, staging)

    def _find_on_node(self, ref: ShardRef) -> memoryview | None:
        """Return the whole object, if it is on this node."""
        cached = self.cached.pop(ref, None)
        if cached is None and self._is_local:
            return self._reads.view(ref.name)
        if cached is None and self._cache is not None:
            # This node may have written it; but a shard that is read once is not worth caching here.
            cached = self._cache.find(ref)
        self.cache_tally.count(hits=int(cached is not None), misses=int(cached is None))
        return cached

    def _saves(self, ref: ShardRef) -> bool:
        """Return whether leaving columns out saves more than the second request for the head costs."""
        return ref.nbytes * (1.0 - self._wanted_share) > _WORTH_A_REQUEST_BYTES

    def _read_columns(self, ref: ShardRef) -> ReadShard:
        reader = open_shard(self._reads, ref, self._expected, head_bytes=self._head_bytes)
        shard = self._wanted_of(ref, reader)
        # Heads of one run have nearly one size: a little more than the longest needs no second request.
        self._head_bytes = max(self._head_bytes, reader.head_bytes + (1 << 12))
        self._count(reader.read_bytes, is_fetched=True)
        return ReadShard(shard, ref.nbytes, reader.read_bytes + self._joined_bytes * ref.rows, None)

    def _fetch(self, ref: ShardRef) -> tuple[memoryview, StagingBuffer | None]:
        """Return the whole object from a remote store."""
        if not self._ranges.in_parts(ref):
            return self._reads.view(ref.name), None
        staging = self._staging.acquire(ref.nbytes)
        buffer = staging.view[: ref.nbytes]
        try:
            self._ranges.read_into(ref, buffer)
        except BaseException:
            self._staging.release(staging)
            raise
        return buffer, staging

    def _decode(self, ref: ShardRef, buffer: memoryview) -> Shard:
        if self._verify_all:
            shard = decode_shard(buffer, self._expected, ref.name, ref.digest)
            self._check(ref, {name: Spec(str(array.dtype), array.shape[2:]) for name, array in shard.columns.items()})
            return shard
        reader = open_buffer(self._reads, ref, buffer, self._expected)
        return self._wanted_of(ref, reader)

    def _wanted_of(self, ref: ShardRef, reader: ShardReader) -> Shard:
        """Read the requested columns, among which may be leaves of structured ones."""
        self._wanted_share = _share(reader.specs, self._columns)
        self._joined_bytes = _joined_row_bytes(reader.specs, self._columns)
        self._check(ref, reader.readable)
        return reader.shard(self.names(reader.specs if self._columns is None else reader.readable))

    def _check(self, ref: ShardRef, stored: Mapping[str, Spec]) -> None:
        """Raise SpecMismatchError if a requested column has another type or shape; its encoding does not matter."""
        if not isinstance(self._columns, Mapping):
            return
        found = {name: Spec(spec.dtype, spec.shape) for name, spec in stored.items()}
        lacking = [
            f"{name}: {Spec(spec.dtype, spec.shape)} (found {found.get(name, 'no such column')})"
            for name, spec in self._columns.items()
            if found.get(name) != Spec(spec.dtype, spec.shape)
        ]
        if lacking:
            raise SpecMismatchError(f"shard '{ref.name}' lacks {', '.join(lacking)}; it has {', '.join(found)}")

    def _count(self, nbytes: int, *, is_fetched: bool) -> None:
        with self._counting:
            self.read_bytes += nbytes
        if is_fetched:
            self.cache_tally.count(downloads=1, origin_bytes=nbytes)


def _share(columns: Mapping[str, Spec], wanted: Collection[str] | None) -> float:
    """Return the fraction of a row's stored bytes that belongs to wanted columns, or leaves by name."""
    total = found = 0
    for name, spec in columns.items():
        for stored, part in parts_of(name, spec).items():
            nbytes = math.prod(part.shape) * np.dtype(part.dtype).itemsize
            total += nbytes
            found += nbytes if wanted is None or name in wanted or stored in wanted else 0
    return found / max(1, total)


def _joined_row_bytes(columns: Mapping[str, Spec], wanted: Collection[str] | None) -> int:
    """Return a row's bytes of wanted columns that are joined from leaves, and so are no views of the file."""
    return sum(
        math.prod(spec.shape) * np.dtype(spec.dtype).itemsize
        for name, spec in columns.items()
        if spec.leaves and (wanted is None or name in wanted)
    )
