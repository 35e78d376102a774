"""The input pipeline: shards to the learner's device, in order and ahead of it.

One thread finds out which shard comes next (by hints, or by looking into storage), the prefetcher reads and verifies
them within a byte budget, and the learner takes whole rounds. Its wait is measured: it is the share of time in which
the learner could have worked.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import torch

from storage.errors import CorruptObjectError
from storage.prefetch import Prefetcher
from storage.refs import ShardRef
from storage.shards import Shard, decode_shard
from tasks.specs import Trajectory
from tasks.stored import stored_shards

if TYPE_CHECKING:
    from tasks.assignment import Assignment
    from tasks.context import RunContext
    from tasks.membership import Membership

BUDGET_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class LoadedShard:
    """A shard on the device, beside what stays on the host."""

    ref: ShardRef
    shard: Shard
    trajectory: Trajectory


class ShardFeed:
    """Rounds of a stage in order, all tiles of a round together. For one learn task; a context manager."""

    def __init__(
        self, assignment: Assignment, context: RunContext, membership: Membership, device: torch.device
    ) -> None:
        self._assignment = assignment
        self._context = context
        self._membership = membership
        self._device = device
        self._known = stored_shards(context.run.store, assignment.stage, assignment.attempt)
        self._prefetcher: Prefetcher[ShardRef, LoadedShard] = Prefetcher(
            self._load, BUDGET_BYTES, size_of=lambda loaded: loaded.ref.nbytes
        )
        self._finder = threading.Thread(target=self._find_all, name="shard-finder", daemon=True)
        self.wait_seconds = 0.0

    def __enter__(self) -> Self:
        self._finder.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._prefetcher.close()

    def next_round(self) -> list[LoadedShard]:
        """The next round's shards by tile; blocks, and raises what the pipeline met."""
        started = time.perf_counter()
        loaded = [self._prefetcher.next() for _ in range(self._context.config.environment.tiles)]
        self.wait_seconds += time.perf_counter() - started
        return loaded

    def _find_all(self) -> None:
        try:
            for round_ in self._context.rounds_of(self._assignment.stage):
                for tile in range(self._context.config.environment.tiles):
                    self._prefetcher.submit(self._find(round_, tile))
        except BaseException as error:  # noqa: BLE001  (handed to the learner, which raises it)
            self._prefetcher.fail(error)

    def _find(self, round_: int, tile: int) -> ShardRef:
        key = f"shard/{round_}/{tile}"
        if (round_, tile) not in self._known:
            self._membership.wait(lambda hints: key in hints, lambda: self._look(round_, tile))
            hinted = self._membership.hinted(key)
            if hinted:
                self._known[round_, tile] = ShardRef.from_json(hinted)
        return self._known[round_, tile]

    def _look(self, round_: int, tile: int) -> bool:
        self._known |= stored_shards(self._context.run.store, self._assignment.stage, self._assignment.attempt, round_)
        return (round_, tile) in self._known

    def _load(self, ref: ShardRef) -> LoadedShard:
        context = self._context
        try:
            buffer = context.cache.get_buffer(context.run.store, ref)
            shard = decode_shard(buffer, context.columns, ref.name, ref.digest)
        except CorruptObjectError:
            # Nobody has learned from it: with the damaged file gone, its round is acted again with the same content.
            context.run.store.delete([ref.name])
            raise
        whole = ShardRef(
            name=ref.name,
            digest=ref.digest,
            nbytes=buffer.nbytes,
            round=ref.round,
            tile=ref.tile,
            rows=shard.info.steps * shard.info.envs,
        )
        return LoadedShard(whole, shard, self._to_device(shard))

    def _to_device(self, shard: Shard) -> Trajectory:
        return Trajectory(
            columns={name: self._move(torch.from_numpy(array)) for name, array in shard.columns.items()},
            bootstrap_rows=self._move(torch.from_numpy(shard.bootstrap_rows)),
            bootstrap_observation=self._move(torch.from_numpy(shard.bootstrap_observation)),
        )

    def _move(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._device.type == "cpu":
            return tensor
        return tensor.pin_memory().to(self._device, non_blocking=True)
