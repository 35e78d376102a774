"""One learner's training rows of a window: those of its own tiles, made from committed shards.

`post` makes a shard's rows when its round arrives. Rows that fit into the budget stay in memory; others are made again
from their shard when they are drawn, as are those of the rounds before a stage. So they are stored nowhere else, and
memory is bounded however large the window is.

If the whole window fits into the budget, its rounds are in a ring, one array a column, so that any rows are gathered at
once: a gather per shard would cost more than learning from them.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch

from penstock.storage.runs.reader_claims import reading
from penstock.storage.shards.codec import decode_shard
from penstock.storage.stores.hedged import hedged
from penstock.tasks.data.input.row_cache import StoredRows
from penstock.tasks.model.algorithms.contract import window_spec
from penstock.tasks.roles.learning.shard_feed import learned_columns
from penstock.tasks.setup.distribution.dataflow import tiles_of
from penstock.tasks.specs import Trajectory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from penstock.storage.refs import ShardRef
    from penstock.tasks.runtime.assignment import Assignment
    from penstock.tasks.runtime.run_context import RunContext
    from penstock.tasks.specs import Batch

_REMOTE_THREADS = 8


@dataclass(frozen=True, slots=True)
class TrainingRows:
    """The rows that `post` made of one shard, on the host."""

    columns: dict[str, NDArray[Any]]
    """`[rows, ...]` by name."""
    read_bytes: int = 0
    """Bytes that were fetched for it."""

    @property
    def nbytes(self) -> int:
        """Return the memory in bytes."""
        return sum(column.nbytes for column in self.columns.values())

    def take(self, rows: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Return the values `[n, ...]` of rows `[n]` by name."""
        return {name: column[rows] for name, column in self.columns.items()}


class WindowRows:
    """A learner's rows in a window, numbered from its oldest round on. A context manager, for one thread.

    While it is open, the committed shards that it may need are kept from garbage collection.
    """

    def __init__(self, assignment: Assignment, context: RunContext, device: torch.device, rounds: range) -> None:
        """List the window's shards; reads none of them.

        Args:
            assignment: of the learner.
            context: of the run.
            device: on which rows are wanted.
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

    def add(self, rounds: range, refs: Sequence[ShardRef], batches: Sequence[Batch]) -> None:
        """Add a round.

        Args:
            rounds: in the window with it.
            refs: its shards, by tile.
            batches: the rows that `post` made of them.
        """
        self._refs = [ref for ref in self._refs if ref.round >= rounds.start] + list(refs)
        self._rows.number(self._refs, 0)
        self._nothing = {name: column[:0].clone() for name, column in batches[0].items()}
        self._oldest = rounds.start * self._round_rows
        if self._ring is None:
            self._ring = self._new_ring(batches[0])
        for ref, batch in zip(refs, batches, strict=True):
            self._rows.hold(ref, self._kept(ref, batch))

    def take(self, rows: torch.Tensor) -> Batch:
        """Return columns `[n, ...]` of rows by number `[n]`, on the device.

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
            columns,
            self._on_device(shard.bootstrap_rows),
            self._on_device(shard.bootstrap_observation),
            shard.info.tile * shard.info.envs,
        )
        # On the same device as when the round arrived: another might round differently.
        with torch.no_grad():
            batch = self._context.algorithm.post({}, trajectory)
        return self._kept(ref, batch, buffer.nbytes)

    def _new_ring(self, batch: Batch) -> dict[str, NDArray[Any]]:
        """Allocate the whole window; returns nothing if that is more than the budget."""
        rows = {name: column[:1].cpu().numpy() for name, column in batch.items()}
        if self._ring_rows * sum(row.nbytes for row in rows.values()) > self._budget_bytes:
            return {}
        return {name: np.empty((self._ring_rows, *row.shape[1:]), row.dtype) for name, row in rows.items()}

    def _kept(self, ref: ShardRef, batch: Batch, read_bytes: int = 0) -> TrainingRows:
        """Copy a batch, into the ring if there is one: the pipeline reuses its memory.

        A round takes the place in the ring of the round that leaves the window.
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
