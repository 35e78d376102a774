"""The input pipeline: stored shards to a device, in a given order and ahead of whoever takes them.

One thread goes through the references, several read and verify what they stand for within a byte budget, and what is
taken lies on the device or is on its way there. How long the taker waited, and how much lay ready for it, is always
measured: it is the share of time in which it could have worked.

What is read where: an object of a local store is mapped, so its columns are views of the file. A large object of a
remote store is read in ranges, several at once, into a staging buffer that is used again; where few of its columns are
wanted, only those are fetched. For a GPU, the columns go through pinned staging buffers and are copied on a stream of
their own.
"""

from __future__ import annotations

import math
import threading
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch

from storage.counts import request_counts
from storage.errors import CorruptObjectError
from storage.hedged import hedged
from storage.prefetch import Prefetcher
from storage.ranges import IN_FLIGHT, PART_BYTES, RangeReader
from storage.shard_reader import HEAD_BYTES, open_buffer, open_shard
from storage.shards import decode_shard
from tasks.specs import Trajectory
from tasks.staging import DeviceCopies, StagingBuffers

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from storage.cache import NodeCache
    from storage.prefetch import Held
    from storage.refs import ShardRef
    from storage.shards import Shard, ShardInfo
    from storage.specs import Spec
    from storage.store import Store
    from tasks.staging import Arrival, StagingBuffer

BUDGET_BYTES = 256 << 20

_LOCAL_THREADS = 2
_REMOTE_THREADS = 8
"""Whole reads under way: enough to hide 50 ms a request behind shards of some megabytes."""
_WORTH_A_REQUEST_BYTES = 256 << 10

_NOTHING = Trajectory({}, torch.empty(0), torch.empty(0))


@dataclass(slots=True)
class LoadedShard:
    """A shard on the device, beside what stays on the host."""

    ref: ShardRef
    """With its size and rows, also where the reference that was asked for did not know them."""
    info: ShardInfo
    trajectory: Trajectory
    _drop: Callable[[], None]
    _give_back: Callable[[], None]

    def drop(self) -> None:
        """Say that the trajectory was copied: its memory is used again, and its bytes count for the copy."""
        self.trajectory = _NOTHING
        self._drop()

    def release(self) -> None:
        """Say that the trajectory is not needed any more: its memory is used for shards to come."""
        self._give_back()


@dataclass(frozen=True, slots=True)
class PipelineTally:
    """What a pipeline did; depends on clocks, so it is no part of what is reproducible."""

    wait_seconds: float
    """That the taker waited."""
    queue_depth: float
    """Mean number of shards that lay ready when one was taken."""
    shards: int
    read_bytes: int
    """Of shards, whole."""
    requests: int
    retries: int
    hedges: int
    """Of the store, as it counts them; 0 for a local folder."""
    peak_bytes: int
    """The most that the budget was charged with."""
    staging_bytes: int
    staging_allocations: int
    staging_uses: int

    def to_json(self) -> dict[str, Any]:
        """For `timings/`."""
        return asdict(self)


@dataclass(slots=True)
class _Loaded:
    """What a loading thread has made."""

    ref: ShardRef
    info: ShardInfo
    trajectory: Trajectory
    charged_bytes: int
    arrival: Arrival | None = None
    staging: list[StagingBuffer] = field(default_factory=list)


class ShardPipeline:
    """Shards in the order of their references. A context manager.

    Args:
        references: which shards, in order; gone through in a thread, so it may block.
        store: of the run.
        expected: columns that every shard must have; None takes them as they are.
        columns: names of those that are wanted; None wants all.
        device: where they shall be.
        budget_bytes: of all that is read and not yet released, staging buffers included. One shard always passes.
        cache: looked into before a remote store is asked.
        staged: whether columns are copied through staging buffers; by default where the device is not the CPU.
        part_bytes: of one ranged read of a large object.
        remove_damaged: whether a shard that was altered is removed from the store. Then every byte that was read is
            verified; otherwise, what is wanted.
    """

    def __init__(
        self,
        references: Iterable[ShardRef],
        store: Store,
        *,
        expected: Mapping[str, Spec] | None = None,
        columns: Collection[str] | None = None,
        device: torch.device | None = None,
        budget_bytes: int = BUDGET_BYTES,
        cache: NodeCache | None = None,
        staged: bool | None = None,
        part_bytes: int = PART_BYTES,
        remove_damaged: bool = False,
    ) -> None:
        device = device or torch.device("cpu")
        self._references = references
        self._store = store
        self._reads = hedged(store)
        self._expected = expected
        self._columns = columns
        self._cache = cache
        self._remove_damaged = remove_damaged
        self._wanted_share = 1.0 if expected is None else _share(expected, columns)
        self._head_bytes = HEAD_BYTES
        self.near: dict[ShardRef, memoryview] = {}
        """Contents to take instead of reading, of shards that may not be stored yet."""
        self._before = request_counts(self._reads)
        is_staged = device.type != "cpu" if staged is None else staged
        self._is_remote = store.path("any") is None
        # Parts on their way are memory as well, before they lie in a shard's buffer.
        in_flight = max(1, min(IN_FLIGHT, budget_bytes // 4 // part_bytes))
        share_bytes = max(1, budget_bytes - in_flight * part_bytes) if self._is_remote else budget_bytes
        # Staged columns are in two places for a while: half is for each.
        share_bytes = max(1, share_bytes // 2) if is_staged else share_bytes
        self._staging = StagingBuffers(share_bytes, pinned=device.type == "cuda")
        self._copies = DeviceCopies(device, self._staging) if is_staged else None
        self._ranges = RangeReader(self._reads, part_bytes=part_bytes, in_flight=in_flight)
        self._prefetcher: Prefetcher[ShardRef, _Loaded] = Prefetcher(
            self._load,
            share_bytes,
            _REMOTE_THREADS if self._is_remote else _LOCAL_THREADS,
            size_of=lambda loaded: loaded.charged_bytes,
        )
        self._submitter = threading.Thread(target=self._submit_all, name="shard-finder", daemon=True)

    def __enter__(self) -> Self:
        self._submitter.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._prefetcher.close()
        self._ranges.close()

    def take(self) -> LoadedShard:
        """The next shard; blocks until it is there, and raises what the pipeline met.

        Its memory is used again after `release`, which who takes a shard must call.

        Raises:
            LookupError: there are no more references.
        """
        held = self._prefetcher.take()
        loaded = held.value
        if loaded.arrival is not None:
            loaded.arrival.wait()
        return LoadedShard(
            loaded.ref, loaded.info, loaded.trajectory, lambda: self._drop(loaded), lambda: self._release(held)
        )

    @property
    def wait_seconds(self) -> float:
        """That `take` has waited."""
        return self._prefetcher.wait_seconds

    def tally(self) -> PipelineTally:
        """What was done so far."""
        prefetcher, after, before = self._prefetcher, request_counts(self._reads), self._before
        return PipelineTally(
            wait_seconds=prefetcher.wait_seconds,
            queue_depth=prefetcher.depth_sum / prefetcher.takes if prefetcher.takes else 0.0,
            shards=prefetcher.reads,
            read_bytes=prefetcher.read_bytes,
            requests=after.requests - before.requests,
            retries=after.retries - before.retries,
            hedges=after.hedges - before.hedges,
            peak_bytes=prefetcher.peak_held_bytes,
            staging_bytes=self._staging.allocated_bytes,
            staging_allocations=self._staging.allocations,
            staging_uses=self._staging.uses,
        )

    def _release(self, held: Held[_Loaded]) -> None:
        self._drop(held.value)
        held.release()

    def _drop(self, loaded: _Loaded) -> None:
        loaded.trajectory = _NOTHING
        staging, loaded.staging = loaded.staging, []
        for buffer in staging:
            self._staging.release(buffer)

    def _submit_all(self) -> None:
        try:
            for ref in self._references:
                if not self._prefetcher.submit(ref):
                    return
            raise LookupError("all shards were taken; ask for no more than there are references")  # noqa: TRY301
        except BaseException as error:  # noqa: BLE001  (handed to the taker, which raises it)
            self._prefetcher.fail(error)

    def _load(self, ref: ShardRef) -> _Loaded:
        staging: StagingBuffer | None = None
        try:
            buffer = self._at_hand(ref)
            if buffer is None and self._saves(ref):
                reader = open_shard(self._reads, ref, self._expected, head_bytes=self._head_bytes)
                shard = reader.shard(self._names(reader.specs))
                # Heads of one run are of nearly one size: a little more than the longest is right at once.
                self._head_bytes = max(self._head_bytes, reader.head_bytes + (1 << 12))
                return self._deliver(ref, shard, ref.nbytes, reader.read_bytes, None)
            if buffer is None:
                buffer, staging = self._fetch(ref)
            return self._deliver(ref, self._decode(ref, buffer), buffer.nbytes, buffer.nbytes, staging)
        except BaseException as error:
            if staging is not None:
                self._staging.release(staging)
            if self._remove_damaged and isinstance(error, CorruptObjectError):
                # Nobody has used it: with the damaged file gone, its round is acted again with the same content.
                self._store.delete([ref.name])
            raise

    def _at_hand(self, ref: ShardRef) -> memoryview | None:
        """The whole object, if it is on this node."""
        near = self.near.pop(ref, None)
        if near is not None:
            return near
        if not self._is_remote:
            return self._reads.view(ref.name)
        # This node may have written it; but a shard that is read once is not worth a file of its own.
        return self._cache.find(ref) if self._cache is not None else None

    def _saves(self, ref: ShardRef) -> bool:
        """Whether leaving columns out saves more than the second request costs, which the head needs."""
        return ref.nbytes * (1.0 - self._wanted_share) > _WORTH_A_REQUEST_BYTES

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
        if self._remove_damaged:
            # Whoever takes it will vouch for all of it.
            return decode_shard(buffer, self._expected, ref.name, ref.digest)
        reader = open_buffer(self._reads, ref, buffer, self._expected)
        self._wanted_share = _share(reader.specs, self._columns)
        return reader.shard(self._names(reader.specs))

    def _deliver(
        self, ref: ShardRef, shard: Shard, nbytes: int, held_bytes: int, staging: StagingBuffer | None
    ) -> _Loaded:
        whole = replace(ref, nbytes=nbytes, rows=shard.info.steps * shard.info.envs)
        charged_bytes = staging.capacity_bytes if staging else held_bytes
        arrays = {
            **{name: shard.columns[name] for name in self._names(shard.columns)},
            _BOOTSTRAP_ROWS: shard.bootstrap_rows,
            _BOOTSTRAP_OBSERVATION: shard.bootstrap_observation,
        }
        if self._copies is None:
            tensors = {
                # What was unpacked may lie in memory that torch must not write to.
                name: torch.from_numpy(array if array.flags.writeable else array.copy())
                for name, array in arrays.items()
            }
            kept = [staging] if staging else []
            return _Loaded(whole, shard.info, _trajectory(tensors), charged_bytes, staging=kept)
        arrival = self._copies.send(arrays)
        if staging is not None:
            self._staging.release(staging)
        return _Loaded(whole, shard.info, _trajectory(arrival.tensors), charged_bytes, arrival)

    def _names(self, stored: Iterable[str]) -> list[str]:
        """The wanted columns of those that are stored, in the order of the file."""
        return [name for name in stored if self._columns is None or name in self._columns]


# No column of a shard has such a name.
_BOOTSTRAP_ROWS, _BOOTSTRAP_OBSERVATION = "/bootstrap_rows", "/bootstrap_observation"


def _share(stored: Mapping[str, Spec], wanted: Collection[str] | None) -> float:
    """Of a row's bytes, those of wanted columns."""
    sizes = {name: math.prod(spec.shape) * np.dtype(spec.dtype).itemsize for name, spec in stored.items()}
    return sum(size for name, size in sizes.items() if wanted is None or name in wanted) / max(1, sum(sizes.values()))


def _trajectory(tensors: dict[str, torch.Tensor]) -> Trajectory:
    return Trajectory(
        columns={name: tensor for name, tensor in tensors.items() if not name.startswith("/")},
        bootstrap_rows=tensors[_BOOTSTRAP_ROWS],
        bootstrap_observation=tensors[_BOOTSTRAP_OBSERVATION],
    )
