"""The input pipeline: stored shards to a device, in a given order and ahead of whoever takes them.

One thread goes through the references, several read and verify what they stand for within a byte budget, and what is
taken lies on the device or is on its way there. How long the taker waited, and how much lay ready for it, is always
measured: it is the share of time in which it could have worked.

Columns of a local store are views of the mapped file; `tasks/shard_source.py` says what else is read how. For a GPU,
they go through pinned staging buffers and are copied on a stream of their own.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import torch

from storage.errors import CorruptObjectError, StoreError
from storage.prefetch import Prefetcher
from storage.ranges import PART_BYTES
from tasks.read_budget import BUDGET_BYTES, share_out
from tasks.shard_source import ShardSource
from tasks.specs import Trajectory
from tasks.staging import DeviceCopies, StagingBuffers

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from storage.cache import CacheTally, NodeCache
    from storage.prefetch import Held
    from storage.refs import ShardRef
    from storage.shards import ShardInfo
    from storage.specs import Spec
    from storage.store import Store
    from tasks.shard_source import ReadShard
    from tasks.staging import Arrival, StagingBuffer

__all__ = ["BUDGET_BYTES", "LoadedShard", "PipelineTally", "ShardPipeline"]

_LOCAL_THREADS = 2
_REMOTE_THREADS = 8
"""Whole reads under way: enough to hide 50 ms a request behind shards of some megabytes."""

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
        """Say that the trajectory is not needed any more: its memory is used for shards to come.

        It is empty from then on. Doing it again does nothing.
        """
        self.trajectory = _NOTHING
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
    """Of shards, or of what was wanted of them; from the store or on this node."""
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
        expected: the columns that every shard must have, and no others; None takes them as they are.
        columns: names of those that are wanted; None wants all. A mapping also says what they must be.
        device: where they shall be.
        budget_bytes: of all that is read and not yet released, staging buffers included. One shard always passes.
        cache: looked into before a remote store is asked.
        unsized_bytes: what a reference that does not know its size counts for until it is read.
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
        unsized_bytes: int = 0,
        remove_damaged: bool = False,
    ) -> None:
        device = device or torch.device("cpu")
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
        self._prefetcher: Prefetcher[ShardRef, _Loaded] = Prefetcher(
            self._load,
            shares.held_bytes,
            _REMOTE_THREADS if is_remote else _LOCAL_THREADS,
            size_of=lambda loaded: loaded.charged_bytes,
            charge_of=lambda ref: self._source.memory_bytes(ref) or self._unsized_bytes,
        )
        self._submitter = threading.Thread(target=self._submit_all, name="shard-finder", daemon=True)

    def __enter__(self) -> Self:
        self._submitter.start()
        return self

    def __exit__(self, *_: object) -> None:
        # First what loads wait for: what they have not asked for yet, they need not ask for.
        self._source.close()
        self._prefetcher.close()
        self._staging.close()

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
    def near(self) -> dict[ShardRef, memoryview]:
        """Contents to take instead of reading, of shards that may not be stored yet; there before their reference."""
        return self._source.near

    @property
    def cache_tally(self) -> CacheTally:
        """What became of looking for shards in the node's cache."""
        return self._source.cache_tally

    @property
    def wait_seconds(self) -> float:
        """That `take` has waited."""
        return self._prefetcher.wait_seconds

    def tally(self) -> PipelineTally:
        """What was done so far."""
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

    def _load(self, ref: ShardRef) -> _Loaded:
        try:
            return self._deliver(ref, self._source.read(ref))
        except CorruptObjectError:
            if self._remove_damaged:
                # Nobody has used it: with the damaged file gone, its round is acted again with the same content. Where
                # it can't be removed, who comes next finds it again, and the damage is what has to be said.
                with contextlib.suppress(StoreError):
                    self._store.delete([ref.name])
            raise

    def _deliver(self, ref: ShardRef, read: ReadShard) -> _Loaded:
        shard, staging = read.shard, read.staging
        whole = replace(ref, nbytes=read.nbytes, rows=shard.info.steps * shard.info.envs)
        arrays = {
            **{name: shard.columns[name] for name in self._source.names(shard.columns)},
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
            return _Loaded(whole, shard.info, _trajectory(tensors), read.held_bytes, staging=kept)
        try:
            arrival = self._copies.send(arrays)
        finally:
            if staging is not None:
                self._staging.release(staging)
        return _Loaded(whole, shard.info, _trajectory(arrival.tensors), read.held_bytes, arrival)


# No column of a shard has such a name.
_BOOTSTRAP_ROWS, _BOOTSTRAP_OBSERVATION = "/bootstrap_rows", "/bootstrap_observation"


def _trajectory(tensors: dict[str, torch.Tensor]) -> Trajectory:
    return Trajectory(
        columns={name: tensor for name, tensor in tensors.items() if not name.startswith("/")},
        bootstrap_rows=tensors[_BOOTSTRAP_ROWS],
        bootstrap_observation=tensors[_BOOTSTRAP_OBSERVATION],
    )
