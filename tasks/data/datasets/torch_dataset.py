"""Stored trajectories for custom training code: batches of rows as a torch `IterableDataset`.

The order of an epoch depends on the committed shards, the settings and the seed, never on the readers: any number of
ranks and of DataLoader workers share the same batches, and a state that was saved in the middle of an epoch resumes
with any number of readers, without skipping a row or reading one twice. `docs/reading.md` has examples.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from penstock.storage.errors import ConfigError, SpecMismatchError
from penstock.storage.runs.reader_claims import reading
from penstock.storage.runs.run import RunFolder
from penstock.storage.shards.epoch_order import EpochOrder, Shuffle
from penstock.storage.stores.open import open_store
from penstock.tasks.data.input.pipeline import BUDGET_BYTES, ShardPipeline
from penstock.tasks.data.input.run_selection import (
    NEXT_OBSERVATION,
    from_root,
    newest_stages,
    requested_stages,
    stored_name,
)
from penstock.tasks.model.nn.returns import set_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from penstock.storage.refs import ShardRef
    from penstock.storage.shards.epoch_order import BatchPlan
    from penstock.tasks.data.input.pipeline import LoadedShard, PipelineTally

FORMAT = "penstock-dataset-reader/1"

_COPIED_AT_ONCE_BYTES = 256 << 10  # a kept batch keeps at most this much memory, or its own size


class TrajectoryDataset(IterableDataset[dict[str, Tensor]]):
    """Yields batches of committed rows: tensors `[batch_rows, ...]` by column name, which own their memory.

    Rows are time-major within a shard: the environments of a tile one after another, then the next step. An epoch
    covers the shards committed when it began; `set_epoch` begins the next one, with those committed by then.

    Pass it to a DataLoader with `batch_size=None`, since it yields whole batches. Every worker reads its own part.
    """

    def __init__(
        self,
        store: str,
        runs: str | Sequence[str],
        *,
        batch_rows: int = 256,
        columns: Sequence[str] | None = None,
        stages: range | None = None,
        shuffle: Shuffle = "none",
        window_shards: int = 16,
        lanes: int = 1,
        drop_last: bool = False,
        seed: int = 0,
        rank: int | None = None,
        ranks: int | None = None,
        budget_bytes: int = BUDGET_BYTES,
    ) -> None:
        """Find the newest commits; reads nothing else yet.

        Args:
            store: folder or s3:// address that holds runs.
            runs: name of a run, or of several, which are read one after another if nothing is shuffled.
            batch_rows: rows of a batch; a lane's last one may have fewer.
            columns: names of the columns to read, stored ones or `next_observation`; None: all stored columns.
            stages: numbers of the stages to read; None: all.
            shuffle: "none", "shards" (shards in another order every epoch) or "rows" (that, and the rows within each
                window of shards).
            window_shards: shards among which rows are shuffled; each lane holds this many in memory at once.
            lanes: streams of shards from which batches come in turn. If ranks times workers divides it, no shard is
                read by two of them.
            drop_last: leave out batches with fewer rows, and the last turn if it has no batch for every rank.
            seed: seed of the order.
            rank: index of this process among `ranks`; by default from torch.distributed, if it is initialised by now.
            ranks: number of processes that share an epoch.
            budget_bytes: limit for prefetched and held bytes, in each worker. One window is always allowed.

        Raises:
            RunNotFoundError: there is no run of that name.
            ConfigError: a setting is wrong.
        """
        self._store = open_store(store)
        self._runs = (runs,) if isinstance(runs, str) else tuple(runs)
        self._columns = None if columns is None else tuple(columns)
        if isinstance(columns, str) or self._columns == ():
            raise ConfigError(
                f"columns is {columns!r}, expected names of columns, such as ['reward'], or None for all of them"
            )
        self._stages = requested_stages(stages)
        self._settings: dict[str, Any] = {
            "batch_rows": batch_rows,
            "shuffle": shuffle,
            "window_shards": window_shards,
            "lanes": lanes,
            "drop_last": drop_last,
        }
        EpochOrder((), **self._settings)
        self._rank, self._ranks = _place_among_ranks(rank, ranks)
        self._budget_bytes = budget_bytes
        self._seed = seed
        self._epoch = 0
        self._commits = self._newest()
        self._cursor = 0
        self._taken = 0
        # Shared with DataLoader's workers, which read ahead of the loop: only the loop knows its position.
        self._has_workers = torch.zeros(1, dtype=torch.uint8).share_memory_()
        self._refs: list[ShardRef] | None = None
        self._tally: Callable[[], PipelineTally] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_refs": None, "_tally": None}

    @property
    def epoch(self) -> int:
        """Return the current epoch."""
        return self._epoch

    @property
    def tally(self) -> PipelineTally | None:
        """Return the counters of the latest iteration in this process; None before the first."""
        return None if self._tally is None else self._tally()

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch over the shards committed by now; the current epoch's number changes nothing.

        With a DataLoader, call it before iterating over the loader, and leave `persistent_workers` off.
        """
        if epoch != self._epoch:
            self._epoch, self._cursor, self._taken = epoch, 0, 0
            self._commits, self._refs = self._newest(), None

    def __len__(self) -> int:
        """Return the number of batches of this rank's next iteration."""
        order = self._order()
        return len(range(self._cursor + self._rank, self._stop(order), self._ranks))

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        """Yield the batches of this rank, or of this worker of it, from the current position.

        Raises:
            CorruptObjectError: a shard was altered or cut short.
            ConfigError: the shards have no column of that name, or nothing of what was requested is committed.
        """
        if len(self._stages) and not self._shards():
            committed = ", ".join(
                f"run '{name}' has committed {'nothing' if newest < 0 else f'stages 0 to {newest}'}"
                for name, newest in self._commits.items()
            )
            raise ConfigError(
                f"there are no rows of the requested stages in {self._store.url}: {committed}; choose others, or wait "
                f"until they are committed, and make the dataset again or set_epoch()"
            )
        worker = get_worker_info()
        self._has_workers.fill_(worker is not None)
        # The DataLoader takes batches from its workers in turn, so a rank's batches come in order.
        number, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        reader, readers = number * self._ranks + self._rank, workers * self._ranks
        self._taken = 0
        return self._read(reader, readers)

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """Return the position as JSON-able values; equal on all ranks that have taken equally many batches.

        Args:
            batches: number of batches that this rank's loop has taken from this epoch since it began or a state was
                loaded. Required if a DataLoader has workers, which read ahead; by default, the number yielded in this
                process.

        Raises:
            ConfigError: a DataLoader's workers read, and `batches` is not given.
        """
        if batches is None and self._has_workers.item():
            raise ConfigError(
                "a DataLoader's workers read ahead of the loop, so the dataset can't know the loop's position; give "
                "state_dict(batches=...) the number of batches that this loop has taken"
            )
        taken = self._taken if batches is None else batches
        return {
            "format": FORMAT,
            "commits": dict(self._commits),
            "stages": [self._stages.start, self._stages.stop],
            "epoch": self._epoch,
            "seed": self._seed,
            "cursor": min(self._cursor + taken * self._ranks, len(self._order())),
            "settings": dict(self._settings),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state; the number of ranks and of workers may differ.

        Raises:
            ConfigError: the state has another format, or comes from other runs, stages or settings, so that rows would
                be skipped or read twice.
        """
        if state.get("format") != FORMAT:
            raise ConfigError(f"the state's format is {state.get('format')!r}, expected '{FORMAT}'")
        here = {**self.state_dict(0), "seed": state["seed"]}
        for name in ("settings", "stages"):
            if state[name] != here[name]:
                raise ConfigError(
                    f"the state was made with {name} {state[name]}, this dataset has {here[name]}: its cursor is not "
                    f"valid here. Create the dataset with the same {name}, or restart the epoch"
                )
        if list(state["commits"]) != list(self._runs):
            raise ConfigError(f"the state belongs to runs {list(state['commits'])}, this dataset to {list(self._runs)}")
        self._commits = dict(state["commits"])
        self._epoch, self._seed, self._cursor = state["epoch"], state["seed"], state["cursor"]
        self._taken, self._refs = 0, None

    def _newest(self) -> dict[str, int]:
        """Return the newest committed stage by run; ranks that see different ones agree on the oldest of them."""
        commits = newest_stages(self._store, self._runs)
        return dict(zip(commits, _least_of_all(list(commits.values()), self._ranks), strict=True))

    def _shards(self) -> list[ShardRef]:
        if self._refs is None:
            self._refs = []
            for name, first, last in self._spans():
                refs = RunFolder(self._store, name).log.shard_refs(first, last)
                self._refs += (from_root(name, ref) for ref in refs)
        return self._refs

    def _spans(self) -> Iterator[tuple[str, int, int]]:
        """Yield the runs to read, each with its first and last stage."""
        for name, commit in self._commits.items():
            first, last = self._stages.start, min(commit, self._stages.stop - 1)
            if first <= last:
                yield name, first, last

    def _order(self) -> EpochOrder:
        return EpochOrder([ref.rows for ref in self._shards()], seed=self._seed, epoch=self._epoch, **self._settings)

    def _stop(self, order: EpochOrder) -> int:
        left = len(order) - self._cursor
        return len(order) - (left % self._ranks if self._settings["drop_last"] else 0)

    def _read(self, reader: int, readers: int) -> Iterator[dict[str, Tensor]]:
        order, shards = self._order(), self._shards()
        stop = self._stop(order)

        def plans() -> Iterator[BatchPlan]:
            return order.read(self._cursor, reader, readers, stop)

        references = (shards[index] for plan in plans() for window in plan.opens for index in window.shards)
        stored = None if self._columns is None else {stored_name(name) for name in self._columns}
        pipeline = ShardPipeline(references, self._store, columns=stored, budget_bytes=self._budget_bytes)
        windows: dict[tuple[int, int], _Window] = {}
        with ExitStack() as stack:
            for name, first, last in self._spans():
                stack.enter_context(reading(self._store.at(name), "dataset", first, last, optional=True))
            stack.enter_context(pipeline)
            self._tally = pipeline.tally
            stack.callback(self._keep_tally, pipeline)
            for plan in plans():
                for window in plan.opens:
                    loaded = [pipeline.take() for _ in window.shards]
                    windows[window.lane, window.index] = _Window(loaded, self._columns)
                parts = [windows[piece.window].rows(order.rows(piece)) for piece in plan.pieces]
                for key in plan.closes:
                    windows.pop(key).release()
                self._taken += 1
                yield parts[0] if len(parts) == 1 else _joined(parts)

    def _keep_tally(self, pipeline: ShardPipeline) -> None:
        """Keep a pipeline's counters after its end, without its memory."""
        tally = pipeline.tally()
        self._tally = lambda: tally


class _Window:
    """The rows of a few shards, held together."""

    def __init__(self, loaded: list[LoadedShard], columns: Sequence[str] | None) -> None:
        self._loaded = loaded
        shards = [_rows_of(item, columns) for item in loaded]
        self._columns = shards[0]
        if len(shards) > 1:
            self._columns = _joined(shards)
            for item in loaded:
                item.drop()
        row_bytes = sum(column.stride(0) * column.element_size() for column in self._columns.values())
        self._rows_at_once = _COPIED_AT_ONCE_BYTES // max(1, row_bytes)
        self._copied: dict[int, dict[str, Tensor]] = {}
        self._next_row = 0

    def rows(self, chosen: Any) -> dict[str, Tensor]:
        """Return copies of a slice of rows, or of rows by number."""
        if not isinstance(chosen, slice):
            index = torch.from_numpy(chosen)
            return {name: column.index_select(0, index) for name, column in self._columns.items()}
        start, rows = chosen.start, chosen.stop - chosen.start
        copied = self._copied.pop(start, None)
        if copied is None or len(next(iter(copied.values()))) != rows:
            # A sequential reader needs the next rows too: one copy serves several small batches.
            several = max(1, self._rows_at_once // rows) if start == self._next_row else 1
            copies = [column[start : start + several * rows].clone().split(rows) for column in self._columns.values()]
            self._copied = {
                start + index * rows: dict(zip(self._columns, batch, strict=True))
                for index, batch in enumerate(zip(*copies, strict=True))
            }
            copied = self._copied.pop(start)
        self._next_row = chosen.stop
        return copied

    def release(self) -> None:
        for item in self._loaded:
            item.release()


def _rows_of(loaded: LoadedShard, columns: Sequence[str] | None) -> dict[str, Tensor]:
    """Return columns `[T * B, ...]` of a shard."""
    trajectory = loaded.trajectory
    found = {name: column.flatten(0, 1) for name, column in trajectory.columns.items()}
    if columns is None:
        return found
    missing = sorted({stored_name(name) for name in columns} - found.keys())
    if missing:
        raise ConfigError(
            f"columns: '{loaded.ref.name}' has no {', '.join(missing)}; leave columns out to get all stored columns"
        )
    if NEXT_OBSERVATION in columns:
        observation = found["observation"]
        successor = torch.empty_like(observation)
        successor[: -loaded.info.envs] = observation[loaded.info.envs :]
        set_rows(successor, trajectory.bootstrap_rows, trajectory.bootstrap_observation)
        found[NEXT_OBSERVATION] = successor
    return {name: found[name] for name in columns}


def _joined(parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    if any(part.keys() != parts[0].keys() for part in parts):
        raise SpecMismatchError(
            f"shards of these runs have different columns: {[sorted(part) for part in parts]}; name the columns that "
            f"all of them have"
        )
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _place_among_ranks(rank: int | None, ranks: int | None) -> tuple[int, int]:
    if (rank is None) != (ranks is None):
        raise ConfigError(f"rank is {rank} and ranks {ranks}; give both, or neither")
    if rank is None or ranks is None:
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return 0, 1
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    if not 0 <= rank < ranks:
        raise ConfigError(f"rank is {rank} of {ranks}, expected 0 to {ranks - 1}")
    return rank, ranks


def _least_of_all(values: list[int], ranks: int) -> list[int]:
    """Return the minimum over ranks, so that all read the same part of a log that grows meanwhile."""
    if ranks == 1 or not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return values
    device = "cuda" if torch.distributed.get_backend() == "nccl" else "cpu"
    tensor = torch.tensor(values, dtype=torch.int64, device=device)
    torch.distributed.all_reduce(tensor, torch.distributed.ReduceOp.MIN)
    return [int(value) for value in tensor.tolist()]
