"""The training rows of a window that one learner has: those of its own tiles, made from committed shards.

`post` makes a shard's rows when its round arrives. What the budget has room for stays in memory; other rows are made
again from their shard when they are drawn, and so are all those of the rounds before a stage. So nothing of them has
to be kept anywhere else, and memory is bounded however large the window is.

Where the budget has room for the whole window, its rounds lie in a ring, one array a column, so that any rows are taken
at once: looking at each shard for its own would cost more than learning from them.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch

from storage.hedged import hedged
from storage.readers import reading
from storage.shards import decode_shard
from tasks.algorithm import window_spec
from tasks.feed import learned_columns
from tasks.placement import tiles_of
from tasks.specs import Trajectory
from tasks.stored_rows import StoredRows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from storage.refs import ShardRef
    from tasks.assignment import Assignment
    from tasks.context import RunContext
    from tasks.pipeline import LoadedShard
    from tasks.specs import Batch

_REMOTE_THREADS = 8


@dataclass(frozen=True, slots=True)
class TrainingRows:
    """What `post` made of one shard, on the host."""

    columns: dict[str, NDArray[Any]]
    """`[rows, ...]` by name."""
    read_bytes: int = 0
    """That were fetched for it."""

    @property
    def nbytes(self) -> int:
        """Of memory."""
        return sum(column.nbytes for column in self.columns.values())

    def take(self, rows: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Values `[n, ...]` of rows `[n]` by name."""
        return {name: column[rows] for name, column in self.columns.items()}


class WindowRows:
    """Rows of one's own tiles in a window, numbered from its oldest round on. A context manager, for one thread.

    While it is open, the committed shards that it may need are kept from garbage collection.
    """

    def __init__(self, assignment: Assignment, context: RunContext, device: torch.device, rounds: range) -> None:
        """Reads which shards there are, and no shard.

        Args:
            assignment: whose rows.
            context: of the run.
            device: where rows are wanted.
            rounds: in the window before the stage, all of them committed.
        """
        self._context = context
        self._device = device
        self._stage = assignment.stage
        self._rounds = rounds
        self._store = hedged(context.run.store)
        self._is_remote = self._store.path("any") is None
        self._wanted = learned_columns(context)
        self._rows = StoredRows(self._read, assignment.window_budget_bytes, _REMOTE_THREADS if self._is_remote else 1)
        self._refs: list[ShardRef] = []
        self._nothing: Batch = {}
        self._claim = ExitStack()
        environment, steps = context.config.environment, context.config.schedule.round_steps
        spec = window_spec(context.algorithm)
        self._tiles = tiles_of(assignment.replica, assignment.replicas, environment.tiles)
        self._round_rows = len(self._tiles) * environment.envs_per_tile * steps
        rounds_at_most = spec.capacity_rows // (environment.num_envs * steps) if spec else 0
        self._ring: dict[str, NDArray[Any]] | None = None
        self._ring_rows = rounds_at_most * self._round_rows
        self._budget_bytes = assignment.window_budget_bytes
        self._oldest = 0
        if rounds:
            committed = context.run.log.shard_refs(self._first_stage, assignment.stage - 1)
            self._refs = [ref for ref in committed if ref.round in rounds and ref.tile in self._tiles]

    @property
    def _first_stage(self) -> int:
        return self._rounds.start // self._context.config.schedule.rounds_per_stage

    def __enter__(self) -> Self:
        if self._rounds:
            self._claim.enter_context(
                reading(self._context.run.store, "window", self._first_stage, self._stage - 1, optional=True)
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._rows.close()
        self._claim.close()

    def add(self, rounds: range, loaded: Sequence[LoadedShard], batches: Sequence[Batch]) -> None:
        """Take in a round.

        Args:
            rounds: in the window with it.
            loaded: its shards, by tile.
            batches: what `post` made of them.
        """
        self._refs = [ref for ref in self._refs if ref.round >= rounds.start] + [item.ref for item in loaded]
        self._rows.number(self._refs, 0)
        self._nothing = {name: column[:0].clone() for name, column in batches[0].items()}
        self._oldest = rounds.start * self._round_rows
        if self._ring is None:
            self._ring = self._new_ring(batches[0])
        for item, batch in zip(loaded, batches, strict=True):
            self._rows.hold(item.ref, self._kept(item.ref, batch))

    def take(self, rows: torch.Tensor) -> Batch:
        """Columns `[n, ...]` of rows by number `[n]`, on the device.

        Raises:
            CorruptObjectError: a shard was altered or cut short.
        """
        if not len(rows):
            return self._nothing
        if self._ring and self._rows.whole:
            places = (rows.numpy() + self._oldest) % self._ring_rows
            found = {name: column[places] for name, column in self._ring.items()}
        else:
            found = self._rows.gather(rows.numpy())
        return {name: torch.from_numpy(column).to(self._device) for name, column in found.items()}

    def _read(self, ref: ShardRef) -> TrainingRows:
        near = self._context.cache.find(ref) if self._is_remote else None
        buffer = self._store.view(ref.name) if near is None else near
        shard = decode_shard(buffer, self._context.columns, ref.name, ref.digest)
        columns = {name: self._on_device(array) for name, array in shard.columns.items() if name in self._wanted}
        trajectory = Trajectory(
            columns, self._on_device(shard.bootstrap_rows), self._on_device(shard.bootstrap_observation)
        )
        # On the device as when the round arrived: elsewhere, numbers might be rounded otherwise.
        with torch.no_grad():
            batch = self._context.algorithm.post({}, trajectory)
        return self._kept(ref, batch, buffer.nbytes)

    def _new_ring(self, batch: Batch) -> dict[str, NDArray[Any]]:
        """Room for the whole window; nothing where that is more than the budget."""
        rows = {name: column[:1].cpu().numpy() for name, column in batch.items()}
        if self._ring_rows * sum(row.nbytes for row in rows.values()) > self._budget_bytes:
            return {}
        return {name: np.empty((self._ring_rows, *row.shape[1:]), row.dtype) for name, row in rows.items()}

    def _kept(self, ref: ShardRef, batch: Batch, read_bytes: int = 0) -> TrainingRows:
        """Copies, in the ring if there is one: what the pipeline gave is used again for shards to come.

        A round's place in the ring is that of the one which leaves the window as it comes.
        """
        if not self._ring:
            return TrainingRows({name: np.array(column.cpu().numpy()) for name, column in batch.items()}, read_bytes)
        start = (ref.round * self._round_rows + (ref.tile - self._tiles.start) * ref.rows) % self._ring_rows
        columns = {name: column[start : start + ref.rows] for name, column in self._ring.items()}
        for name, column in batch.items():
            columns[name][:] = column.cpu().numpy()
        return TrainingRows(columns, read_bytes)

    def _on_device(self, array: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(array if array.flags.writeable else array.copy()).to(self._device)
