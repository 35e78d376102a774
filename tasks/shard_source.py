"""Where the input pipeline's shards come from: this node or the store, whole or in parts, all columns or a few.

An object of a local store is mapped. One of a remote store may lie in the node's cache. Otherwise, where few of its
columns are wanted, only those are fetched; what is large is read in ranges, several at once, into a staging buffer; and
what is small is one read.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from storage.cache import CacheTally
from storage.counts import request_counts
from storage.errors import SpecMismatchError
from storage.hedged import hedged
from storage.ranges import RangeReader
from storage.shard_reader import HEAD_BYTES, open_buffer, open_shard
from storage.shards import decode_shard
from storage.specs import Spec

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from storage.cache import NodeCache
    from storage.counts import RequestCounts
    from storage.refs import ShardRef
    from storage.shards import Shard
    from storage.store import Store
    from tasks.read_budget import BudgetShares
    from tasks.staging import StagingBuffer, StagingBuffers

_WORTH_A_REQUEST_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class ReadShard:
    """A shard in memory."""

    shard: Shard
    """Its wanted columns, and maybe others."""
    nbytes: int
    """Of the whole object."""
    held_bytes: int
    """Of the memory that the columns lie in."""
    staging: StagingBuffer | None
    """That memory, where it has to be given back."""


class ShardSource:
    """Reads shards of one store. Safe for threads.

    Args:
        store: where they lie; slow reads are hedged.
        shares: how large parts are, and how many are under way.
        staging: gives memory for large objects.
        expected: the columns that every shard must have, and no others; None takes them as they are.
        columns: names of those that are wanted; None wants all. A mapping also says what they must be.
        cache: looked into before a remote store is asked.
        verify_all: whether every byte that was read is verified, or what is wanted.

    Attributes:
        near: contents to take instead of reading, of shards that may not be stored yet.
        cache_tally: what became of looking for shards in the node's cache.
        read_bytes: of all that was read, from the store or on this node.
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
        # Where only a shard can say how much of it is wanted, the first ones are asked for their heads.
        self._wanted_share = 1.0 if columns is None else _share(expected or {}, columns)
        self._head_bytes = HEAD_BYTES
        self._counting = threading.Lock()
        self.near: dict[ShardRef, memoryview] = {}
        self.cache_tally = CacheTally()
        self.read_bytes = 0

    @property
    def counts(self) -> RequestCounts:
        """Of the store, so far."""
        return request_counts(self._reads)

    def close(self) -> None:
        """Begin no more reads in parts."""
        self._ranges.close()

    def memory_bytes(self, ref: ShardRef) -> int:
        """What a shard may take while it is read; 0 if its size is not known."""
        if self._ranges.in_parts(ref) and not self._saves(ref):
            return self._staging.capacity_bytes(ref.nbytes)
        return ref.nbytes

    def names(self, stored: Iterable[str]) -> list[str]:
        """The wanted columns of those that are stored, in the order of the file."""
        return [name for name in stored if self._columns is None or name in self._columns]

    def read(self, ref: ShardRef) -> ReadShard:
        """Read and verify a shard.

        Raises:
            CorruptObjectError: it was altered or cut short.
            SpecMismatchError: it has other columns than it must have.
            StoreError: it can't be read.
        """
        buffer, staging = self._at_hand(ref), None
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
        return ReadShard(shard, buffer.nbytes, staging.capacity_bytes if staging else buffer.nbytes, staging)

    def _at_hand(self, ref: ShardRef) -> memoryview | None:
        """The whole object, if it is on this node."""
        near = self.near.pop(ref, None)
        if near is None and self._is_local:
            return self._reads.view(ref.name)
        if near is None and self._cache is not None:
            # This node may have written it; but a shard that is read once is not worth a file of its own.
            near = self._cache.find(ref)
        self.cache_tally.count(hits=int(near is not None), misses=int(near is None))
        return near

    def _saves(self, ref: ShardRef) -> bool:
        """Whether leaving columns out saves more than the second request costs, which the head needs."""
        return ref.nbytes * (1.0 - self._wanted_share) > _WORTH_A_REQUEST_BYTES

    def _read_columns(self, ref: ShardRef) -> ReadShard:
        reader = open_shard(self._reads, ref, self._expected, head_bytes=self._head_bytes)
        self._wanted_share = _share(reader.specs, self._columns)
        self._check(ref, reader.specs)
        shard = reader.shard(self.names(reader.specs))
        # Heads of one run are of nearly one size: a little more than the longest is right at once.
        self._head_bytes = max(self._head_bytes, reader.head_bytes + (1 << 12))
        self._count(reader.read_bytes, is_fetched=True)
        return ReadShard(shard, ref.nbytes, reader.read_bytes, None)

    def _fetch(self, ref: ShardRef) -> tuple[memoryview, StagingBuffer | None]:
        """The whole object, from a remote store."""
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
        self._wanted_share = _share(reader.specs, self._columns)
        self._check(ref, reader.specs)
        return reader.shard(self.names(reader.specs))

    def _check(self, ref: ShardRef, stored: Mapping[str, Spec]) -> None:
        """SpecMismatchError if a wanted column is not what it must be, however it is stored."""
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


def _share(stored: Mapping[str, Spec], wanted: Collection[str] | None) -> float:
    """Of a row's bytes, those of wanted columns."""
    sizes = {name: math.prod(spec.shape) * np.dtype(spec.dtype).itemsize for name, spec in stored.items()}
    return sum(size for name, size in sizes.items() if wanted is None or name in wanted) / max(1, sum(sizes.values()))
