"""One learner's training rows of a window: those of its own tiles, made from committed shards.

`post` makes a shard's rows when its round arrives. Rows that fit into the budget stay in memory; others are made again
from their shard when they are drawn, as are those of the rounds before a stage. So they are stored nowhere else, and
memory is bounded however large the window is.

An algorithm may want steps of the next round for the rows of a round (`WindowSpec.steps_after`). Then the rows of the
round before the newest are made again when that arrives. So the rows of a round depend on whether it is the newest, and
on nothing else.

If the whole window fits into the budget, its rounds are in a ring, one array a column, so that any rows are gathered at
once: a gather per shard would cost more than learning from them.

A process that learns a run's next stage finds the rows of the stage before in its memory (`open_window`): they are
named by their shards' digests, so a stage whose window is made of other shards makes these again.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch

from penstock.storage.refs import ShardRef
from penstock.storage.runs.reader_claims import reading
from penstock.storage.shards.codec import decode_shard
from penstock.storage.stores.hedged import hedged
from penstock.tasks.data.input.hand_over import ref_of
from penstock.tasks.data.input.row_cache import StoredRows
from penstock.tasks.model.algorithms.contract import window_spec
from penstock.tasks.roles.learning.shard_feed import learned_columns
from penstock.tasks.setup.distribution.dataflow import tiles_of
from penstock.tasks.specs import Trajectory

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from penstock.tasks.data.input.hand_over import ShardLater
    from penstock.tasks.runtime.assignment import Assignment
    from penstock.tasks.runtime.run_context import RunContext
    from penstock.tasks.specs import Batch

_REMOTE_THREADS = 8
KEPT_SECONDS = 30.0
"""Time that rows stay in memory between two stages of a run: a worker may serve other runs afterwards."""
_EPISODE = "episode_id"


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
    """A learner's rows in a window, numbered from its oldest round on. A context manager, for one thread at a time.

    While it is entered, the committed shards that it may need are kept from garbage collection.
    """

    def __init__(self, assignment: Assignment, context: RunContext, device: torch.device) -> None:
        """Hold no rows; `begin` comes next.

        Args:
            assignment: of the learner.
            context: of the run.
            device: on which rows are wanted.
        """
        self._context = context
        self._device = device
        self._stage = assignment.stage
        self._rounds = range(0)
        self._store = hedged(context.run.store)
        self._is_remote = self._store.path("any") is None
        self._wanted = learned_columns(context)
        self._rows = StoredRows(self._read, assignment.window_budget_bytes, _REMOTE_THREADS if self._is_remote else 1)
        self._refs: list[ShardRef] = []
        self._at: dict[tuple[int, int], ShardRef] = {}
        self._stand_ins: dict[ShardRef, ShardLater] = {}
        """References that stand for shards of the newest round which were not stored when it was added."""
        self._newest = -1
        self._nothing: Batch = {}
        self._claim = ExitStack()
        environment, steps = context.config.environment, context.config.schedule.round_steps
        spec = window_spec(context.algorithm)
        self._steps_after = min(spec.steps_after, steps) if spec else 0
        self._row_steps = spec.row_steps if spec else 1
        self._tiles = tiles_of(assignment.replica, assignment.replicas, environment.tiles)
        self._round_rows = len(self._tiles) * environment.envs_per_tile * steps // self._row_steps
        rounds_at_most = spec.capacity_rows * self._row_steps // (environment.num_envs * steps) if spec else 0
        self._ring: dict[str, NDArray[Any]] | None = None
        self._ring_rows = rounds_at_most * self._round_rows
        self._budget_bytes = assignment.window_budget_bytes
        self._oldest = 0

    def begin(self, stage: int, rounds: range) -> None:
        """List the shards of the window before a stage; reads none of them.

        Rows that are held stay if their shard is among these.

        Args:
            stage: that begins.
            rounds: in the window before it, all of them committed.
        """
        self._stage, self._rounds = stage, rounds
        self._replace_stand_ins()
        if self._steps_after and self._newest != rounds.stop - 1:
            # Another process has learned a stage between: what was the newest round has one behind it.
            for tile in self._tiles:
                if (before := self._at.get((self._newest, tile))) is not None:
                    self._rows.drop(before)
        self._newest = rounds.stop - 1
        self._list([])
        if rounds:
            committed = self._context.run.log.shard_refs(self._first_stage, stage - 1)
            self._list([ref for ref in committed if ref.round in rounds and ref.tile in self._tiles])
        self._rows.number(self._refs, 0, self._row_steps)

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
        self._claim.close()

    def close(self) -> None:
        """Drop all rows; those that are taken later are read again."""
        self._rows.close()
        self._stand_ins.clear()
        self._ring, self._rows.evicts = None, True

    def add(self, rounds: range, shards: Sequence[ShardLater], batches: Sequence[Batch]) -> None:
        """Add a round.

        Waits until the round before is stored; and until this one is, if one of its shards may have to be read.

        Args:
            rounds: in the window with it.
            shards: its shards, by tile.
            batches: the rows that `post` made of them.
        """
        self._replace_stand_ins()
        self._newest = rounds.stop - 1
        refs = [self._ref_or_stand_in(index, shard) for index, shard in enumerate(shards)]
        self._list([ref for ref in self._refs if ref.round >= rounds.start] + list(refs))
        self._rows.number(self._refs, 0, self._row_steps)
        self._nothing = {name: column[:0].clone() for name, column in batches[0].items()}
        self._oldest = rounds.start * self._round_rows
        if self._ring is None:
            self._ring = self._new_ring(batches[0])
            # The ring has memory for all rows: dropping a shard's, to read another, would only have them read again.
            self._rows.evicts = not self._ring
        for ref, batch in zip(refs, batches, strict=True):
            self._rows.hold(ref, self._kept(ref, batch))
        if self._steps_after:
            for tile in self._tiles:
                before = self._at.get((rounds.stop - 2, tile))
                if before is not None and self._rows.drop(before):
                    self._rows.hold(before, self._read(before))

    def _ref_or_stand_in(self, index: int, shard: ShardLater) -> ShardRef:
        """Return a shard's reference, or a stand-in: rows in the ring stay there, and are not read."""
        if not self._ring or self._steps_after or not isinstance(shard, Future) or shard.done():
            return ref_of(shard)
        # Of handed rounds none is left out, so that the index is the tile's.
        tile, rows = self._tiles[index], self._context.tile_rows
        stand_in = ShardRef(f"round {self._newest}, tile {tile}", "", 0, self._newest, tile, rows)
        self._stand_ins[stand_in] = shard
        return stand_in

    def _replace_stand_ins(self) -> None:
        """Replace stand-ins by the references of their shards; waits until these are stored."""
        if not self._stand_ins:
            return
        refs = {stand_in.name: ref_of(shard) for stand_in, shard in self._stand_ins.items()}
        for stand_in in self._stand_ins:
            self._rows.rename(stand_in, refs[stand_in.name])
        self._list([refs.get(ref.name, ref) for ref in self._refs])
        self._stand_ins.clear()

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

    def _list(self, refs: list[ShardRef]) -> None:
        self._refs, self._at = refs, {(ref.round, ref.tile): ref for ref in refs}

    def _read(self, ref: ShardRef) -> TrainingRows:
        trajectory, read_bytes = self._decoded(ref)
        following = self._at.get((ref.round + 1, ref.tile)) if self._steps_after else None
        if following is not None:
            after, more_bytes = self._decoded(following)
            trajectory, read_bytes = continued(trajectory, after, self._steps_after), read_bytes + more_bytes
        columns = {name: column for name, column in trajectory.columns.items() if name in self._wanted}
        # On the same device as when the round arrived: another might round differently.
        with torch.no_grad():
            batch = self._context.algorithm.post({}, replace(trajectory, columns=columns))
        return self._kept(ref, {name: column[: self._rows_of(ref)] for name, column in batch.items()}, read_bytes)

    def _decoded(self, ref: ShardRef) -> tuple[Trajectory, int]:
        """Return a shard's round, with the columns that tell its episodes, and the bytes that were fetched for it."""
        near = self._context.cache.find(ref) if self._is_remote else None
        buffer = self._store.view(ref.name) if near is None else near
        shard = decode_shard(buffer, self._context.columns, ref.name, ref.digest)
        names = {*self._wanted, _EPISODE} if self._steps_after else {*self._wanted}
        columns = {name: self._on_device(array) for name, array in shard.columns.items() if name in names}
        ends = self._on_device(shard.bootstrap_rows), self._on_device(shard.bootstrap_observation)
        return Trajectory(columns, *ends, shard.info.tile * shard.info.envs), buffer.nbytes

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
        rows = self._rows_of(ref)
        start = (ref.round * self._round_rows + (ref.tile - self._tiles.start) * rows) % self._ring_rows
        columns = {name: column[start : start + rows] for name, column in self._ring.items()}
        for name, column in batch.items():
            columns[name][:] = column.cpu().numpy()
        return TrainingRows(columns, read_bytes)

    def _rows_of(self, ref: ShardRef) -> int:
        """Return the number of training rows of a shard."""
        return ref.rows // self._row_steps

    def _on_device(self, array: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(array if array.flags.writeable else array.copy()).to(self._device)


def continued(trajectory: Trajectory, following: Trajectory, steps: int) -> Trajectory:
    """Return a tile's round with the first steps of its next round behind it, `[T + steps, B, ...]`.

    An environment continues where its episode does: one that could not save its state has begun another, and the last
    row of its round still has no successor.

    Args:
        trajectory: of the round, with the column `episode_id`.
        following: of the next round, likewise.
        steps: of the next round; it has so many at least.
    """
    own, then = trajectory.columns[_EPISODE], following.columns[_EPISODE]
    count, envs = own.shape
    ended = torch.ones(count * envs, dtype=torch.bool, device=own.device)
    ended[-envs:] = own[-1] != then[0]
    for flag in ("terminated", "truncated"):
        ended[-envs:] |= trajectory.columns[flag][-1] != 0
    kept = ended[trajectory.bootstrap_rows]
    within = following.bootstrap_rows < steps * envs
    rows = [trajectory.bootstrap_rows[kept], following.bootstrap_rows[within] + count * envs]
    after = [trajectory.bootstrap_observation[kept], following.bootstrap_observation[within]]
    # Rows of the last step that neither an episode nor the next round ends.
    cut = torch.arange((steps - 1) * envs, steps * envs, device=own.device)
    cut = cut[~torch.isin(cut, following.bootstrap_rows)]
    if len(cut):
        rows.append(cut + count * envs)
        after.append(following.columns["observation"].flatten(0, 1)[cut + envs])
    order = torch.cat(rows).argsort()
    columns = {name: torch.cat([each, following.columns[name][:steps]]) for name, each in trajectory.columns.items()}
    return Trajectory(columns, torch.cat(rows)[order], torch.cat(after)[order], trajectory.first_env)


class _Between:
    """The windows of the last run that this process learned, between its stages."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._run: RunContext | None = None
        self._kept: dict[tuple[object, ...], tuple[WindowRows, threading.Timer]] = {}

    def take(self, run: RunContext, key: tuple[object, ...]) -> WindowRows | None:
        """Remove and return a window of this run; drops those of another one."""
        with self._lock:
            if self._run is not run:
                for rows, timer in self._kept.values():
                    timer.cancel()
                    rows.close()
                self._run, self._kept = run, {}
            found = self._kept.pop(key, None)
            if found is None:
                return None
            found[1].cancel()
            return found[0]

    def put(self, run: RunContext, key: tuple[object, ...], rows: WindowRows) -> None:
        """Keep a window for the next stage, unless this process has begun to learn another run."""
        with self._lock:
            if self._run is run and key not in self._kept:
                timer = threading.Timer(KEPT_SECONDS, self._expire, (key, rows))
                timer.daemon = True
                timer.start()
                self._kept[key] = rows, timer
                return
        rows.close()

    def _expire(self, key: tuple[object, ...], rows: WindowRows) -> None:
        with self._lock:
            found = self._kept.get(key)
            if found is not None and found[0] is rows:
                del self._kept[key]
                rows.close()


_between = _Between()


@contextmanager
def open_window(
    assignment: Assignment, context: RunContext, device: torch.device, rounds: range
) -> Iterator[WindowRows]:
    """Yield the rows of a window for a stage, with those that this process still holds of the stage before.

    After a stage that failed nothing is held.

    Args:
        assignment: of the learner.
        context: of the run.
        device: on which rows are wanted.
        rounds: in the window before the stage, all of them committed.
    """
    key = (assignment.replica, assignment.replicas, assignment.window_budget_bytes, str(device))
    rows = _between.take(context, key) or WindowRows(assignment, context, device)
    try:
        rows.begin(assignment.stage, rounds)
        with rows:
            yield rows
    except BaseException:
        rows.close()
        raise
    _between.put(context, key, rows)
