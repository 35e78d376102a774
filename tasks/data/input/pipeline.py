"""The input pipeline: brings stored shards to a device in a given order, ahead of the consumer.

One thread iterates over the references, several read and verify the shards within a byte budget, and a shard that is
taken is on the device or on its way to it. The time for which the consumer waited, and the number of ready shards, are
always measured: they give the share of time in which it could have worked.

Columns of a local store are views of the mapped file; `shard_source.py` describes how everything else is read. For a
GPU, they go through pinned staging buffers and are copied on a separate stream. A round that an actor of this process
hands over (`hand_over.py`) takes its place in the order without being read.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

import torch

from penstock.storage.errors import CorruptObjectError, StoreError
from penstock.storage.transfer.prefetch import Prefetcher
from penstock.storage.transfer.ranged_reads import PART_BYTES
from penstock.tasks.data.input.device_staging import DeviceCopies, StagingBuffers
from penstock.tasks.data.input.hand_over import HandedShard, ref_of
from penstock.tasks.data.input.memory_budget import BUDGET_BYTES, share_out
from penstock.tasks.data.input.shard_source import ShardSource
from penstock.tasks.specs import Trajectory

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from penstock.storage.cache.node_cache import CacheTally, NodeCache
    from penstock.storage.refs import ShardRef
    from penstock.storage.shards.codec import ShardInfo
    from penstock.storage.shards.specs import Spec
    from penstock.storage.stores.protocol import Store
    from penstock.storage.transfer.prefetch import Held
    from penstock.tasks.data.input.device_staging import Arrival, StagingBuffer
    from penstock.tasks.data.input.hand_over import ShardLater
    from penstock.tasks.data.input.shard_source import ReadShard

__all__ = ["BUDGET_BYTES", "LoadedShard", "PipelineTally", "ShardPipeline"]

_LOCAL_THREADS = 2
_REMOTE_THREADS = 8
"""Concurrent whole reads: enough to hide 50 ms a request behind shards of some megabytes."""

_NOTHING = Trajectory({}, torch.empty(0), torch.empty(0))


@dataclass(slots=True)
class LoadedShard:
    """A shard on the device, and its metadata on the host."""

    stored_as: ShardLater
    describe: Callable[[], ShardInfo]
    """Returns `info`. Of a handed round it may wait for the device."""
    trajectory: Trajectory
    _drop: Callable[[], None]
    _release: Callable[[], None]

    @property
    def ref(self) -> ShardRef:
        """Return the reference with its size and rows, even if the requested one did not know them; as `ref_of`."""
        return ref_of(self.stored_as)

    @property
    def info(self) -> ShardInfo:
        """Return the description of the shard."""
        return self.describe()

    def drop(self) -> None:
        """Release the trajectory's memory after it was copied; its bytes then count for the copy."""
        self.trajectory = _NOTHING
        self._drop()

    def release(self) -> None:
        """Release the trajectory's memory, which is reused for later shards.

        It is empty from then on. A second call does nothing.
        """
        self.trajectory = _NOTHING
        self._release()


@dataclass(frozen=True, slots=True)
class PipelineTally:
    """Counters of a pipeline; they depend on clocks, so they are not reproducible."""

    wait_seconds: float
    """Time for which `take` has waited."""
    queue_depth: float
    """Mean number of ready shards when one was taken."""
    shards: int
    read_bytes: int
    """Bytes of shards, or of their requested parts, from the store or from this node."""
    requests: int
    retries: int
    hedges: int
    """Hedged requests as the store counts them; 0 for a local folder."""
    peak_bytes: int
    """Peak charge to the budget."""
    staging_bytes: int
    staging_allocations: int
    staging_uses: int


@dataclass(slots=True)
class _Loaded:
    """A shard after its loading thread."""

    stored_as: ShardLater
    describe: Callable[[], ShardInfo]
    trajectory: Trajectory
    charged_bytes: int
    arrival: Arrival | None = None
    staging: list[StagingBuffer] = field(default_factory=list)


class ShardPipeline:
    """Yields shards in the order of their references. A context manager.

    Args:
        references: the shards to read, or handed ones, in order; iterated in a thread, so it may block.
        store: the run's.
        expected: the exact columns of every shard; None accepts any.
        columns: names of the columns to read; None: all. A mapping also gives their specs, which are checked.
        device: where the tensors are to be.
        budget_bytes: limit for everything that was read and not yet released, staging buffers included. One shard is
            always allowed.
        cache: searched before a remote store.
        unsized_bytes: charge for a reference of unknown size until it is read.
        staged: whether columns are copied through staging buffers; by default, if the device is not the CPU.
        part_bytes: size of one ranged read of a large object.
        remove_damaged: whether a shard that was altered is removed from the store. If so, every byte read is verified;
            otherwise, only the requested columns are.
    """

    def __init__(
        self,
        references: Iterable[ShardRef | HandedShard],
        store: Store,
        *,
        expected: Mapping[str, Spec] | None = None,
        columns: Collection[str] | None = None,
        device: torch.device | None = None,
        budget_bytes: int = BUDGET_BYTES,
        cache: NodeCache | None = None,
        staged: bool | None = None,
        part_bytes: int = PART_BYTES,
        unsized_bytes: int = 0,
        remove_damaged: bool = False,
    ) -> None:
        device = device or torch.device("cpu")
        self._device = device
        self._references = references
        self._store = store
        self._unsized_bytes = unsized_bytes
        self._remove_damaged = remove_damaged
        is_remote = store.path("any") is None
        is_staged = device.type != "cpu" if staged is None else staged
        shares = share_out(budget_bytes, part_bytes, is_remote=is_remote, is_staged=is_staged)
        self._staging = StagingBuffers(shares.held_bytes, pinned=device.type == "cuda")
        self._copies = DeviceCopies(device, self._staging) if is_staged else None
        self._source = ShardSource(
            store,
            shares,
            self._staging,
            expected=expected,
            columns=columns,
            cache=cache,
            verify_all=remove_damaged,
        )
        self._before = self._source.counts
        self._prefetcher: Prefetcher[ShardRef | HandedShard, _Loaded] = Prefetcher(
            self._load,
            shares.held_bytes,
            _REMOTE_THREADS if is_remote else _LOCAL_THREADS,
            size_of=lambda loaded: loaded.charged_bytes,
            charge_of=self._expected_bytes,
            at_once=self._passed_on,
        )
        self._submitter = threading.Thread(target=self._submit_all, name="shard-finder", daemon=True)

    def __enter__(self) -> Self:
        self._submitter.start()
        return self

    def __exit__(self, *_: object) -> None:
        # The source first: loads wait for it, and need not start reads that they have not started yet.
        self._source.close()
        self._prefetcher.close()
        self._staging.close()

    def take(self) -> LoadedShard:
        """Return the next shard; blocks until it is ready, and raises the pipeline's errors.

        The caller must `release` it, so that its memory is reused.

        Raises:
            LookupError: there are no more references.
        """
        held = self._prefetcher.take()
        loaded = held.value
        if loaded.arrival is not None:
            loaded.arrival.wait()
        return LoadedShard(
            loaded.stored_as,
            loaded.describe,
            loaded.trajectory,
            lambda: self._drop(loaded),
            lambda: self._release(held),
        )

    @property
    def cached(self) -> dict[ShardRef, memoryview]:
        """Return contents to use instead of reading shards that may not be stored yet.

        Set each one before its reference is yielded.
        """
        return self._source.cached

    @property
    def cache_tally(self) -> CacheTally:
        """Return hits and misses of the node's cache."""
        return self._source.cache_tally

    @property
    def wait_seconds(self) -> float:
        """Return the total seconds for which `take` has waited."""
        return self._prefetcher.wait_seconds

    def tally(self) -> PipelineTally:
        """Return the counters so far."""
        prefetcher, after, before = self._prefetcher, self._source.counts, self._before
        return PipelineTally(
            wait_seconds=prefetcher.wait_seconds,
            queue_depth=prefetcher.depth_sum / prefetcher.takes if prefetcher.takes else 0.0,
            shards=prefetcher.reads,
            read_bytes=self._source.read_bytes,
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
        loaded.trajectory, loaded.arrival = _NOTHING, None
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

    def _expected_bytes(self, ref: ShardRef | HandedShard) -> int:
        if isinstance(ref, HandedShard):
            return ref.nbytes
        return self._source.memory_bytes(ref) or self._unsized_bytes

    def _load(self, ref: ShardRef | HandedShard) -> _Loaded:
        if isinstance(ref, HandedShard):
            return self._send(ref)
        try:
            return self._deliver(ref, self._source.read(ref))
        except CorruptObjectError:
            if self._remove_damaged:
                # No learner has used it: with the damaged file gone, its round is acted again with the same content.
                # If it can't be removed, the next reader finds it again; the error to report is the damage.
                with contextlib.suppress(StoreError):
                    self._store.delete([ref.name])
            raise

    def _passed_on(self, ref: ShardRef | HandedShard) -> _Loaded | None:
        """Return a handed round as it is, unless it must be sent to the device; no thread is needed for that."""
        if not isinstance(ref, HandedShard) or self._is_elsewhere(ref):
            return None
        return _Loaded(ref.stored_as, ref.describe, ref.trajectory, ref.nbytes)

    def _is_elsewhere(self, handed: HandedShard) -> bool:
        """Return whether the rows of an actor on the host are wanted on the device."""
        return self._copies is not None and handed.trajectory.bootstrap_rows.device.type != self._device.type

    def _send(self, handed: HandedShard) -> _Loaded:
        """Send a handed round to the device."""
        assert self._copies is not None
        trajectory = handed.trajectory
        tensors = {
            **trajectory.columns,
            _BOOTSTRAP_ROWS: trajectory.bootstrap_rows,
            _BOOTSTRAP_OBSERVATION: trajectory.bootstrap_observation,
        }
        arrival = self._copies.send({name: tensor.numpy() for name, tensor in tensors.items()})
        sent = _trajectory(arrival.tensors, trajectory.first_env)
        return _Loaded(handed.stored_as, handed.describe, sent, handed.nbytes, arrival)

    def _deliver(self, ref: ShardRef, read: ReadShard) -> _Loaded:
        shard, staging = read.shard, read.staging
        info = shard.info
        whole = replace(ref, nbytes=read.nbytes, rows=info.steps * info.envs)
        arrays = {
            **{name: shard.columns[name] for name in self._source.names(shard.columns)},
            _BOOTSTRAP_ROWS: shard.bootstrap_rows,
            _BOOTSTRAP_OBSERVATION: shard.bootstrap_observation,
        }
        if self._copies is None:
            tensors = {
                # Unpacked columns may be in memory that torch must not write to.
                name: torch.from_numpy(array if array.flags.writeable else array.copy())
                for name, array in arrays.items()
            }
            kept = [staging] if staging else []
            trajectory = _trajectory(tensors, info.tile * info.envs)
            return _Loaded(whole, lambda: info, trajectory, read.held_bytes, staging=kept)
        try:
            arrival = self._copies.send(arrays)
        finally:
            if staging is not None:
                self._staging.release(staging)
        trajectory = _trajectory(arrival.tensors, info.tile * info.envs)
        return _Loaded(whole, lambda: info, trajectory, read.held_bytes, arrival)


# No column of a shard has such a name.
_BOOTSTRAP_ROWS, _BOOTSTRAP_OBSERVATION = "/bootstrap_rows", "/bootstrap_observation"


def _trajectory(tensors: dict[str, torch.Tensor], first_env: int) -> Trajectory:
    return Trajectory(
        columns={name: tensor for name, tensor in tensors.items() if not name.startswith("/")},
        bootstrap_rows=tensors[_BOOTSTRAP_ROWS],
        bootstrap_observation=tensors[_BOOTSTRAP_OBSERVATION],
        first_env=first_env,
    )
