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

from penstock.storage.errors import ConfigError
from penstock.storage.runs.reader_claims import reading
from penstock.storage.runs.run import RunFolder
from penstock.storage.shards.epoch_order import EpochOrder, Shuffle
from penstock.storage.stores.open import open_store
from penstock.tasks.data.datasets.shard_windows import ShardWindow, concatenated, refuse_differences
from penstock.tasks.data.input.pipeline import BUDGET_BYTES, ShardPipeline
from penstock.tasks.data.input.run_selection import (
    from_root,
    newest_stages,
    requested_columns,
    requested_runs,
    requested_stages,
    require_state,
    shardless_message,
    stored_name,
    whole_number,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from penstock.storage.refs import ShardRef
    from penstock.storage.shards.epoch_order import BatchPlan
    from penstock.tasks.data.input.pipeline import PipelineTally

FORMAT = "penstock-dataset-reader/1"


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
        self._runs = requested_runs(runs)
        self._columns = requested_columns(columns)
        self._stages = requested_stages(stages)
        self._settings: dict[str, Any] = {
            "batch_rows": whole_number("batch_rows", batch_rows, 1),
            "shuffle": shuffle,
            "window_shards": whole_number("window_shards", window_shards, 1),
            "lanes": whole_number("lanes", lanes, 1),
            "drop_last": drop_last,
        }
        EpochOrder((), **self._settings)
        self._rank, self._ranks = _place_among_ranks(rank, ranks)
        self._budget_bytes = budget_bytes
        self._seed = whole_number("seed", seed)
        self._epoch = 0
        self._commits = self._newest()
        self._digested: tuple[dict[str, int], dict[str, str]] = {}, {}
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

        With a DataLoader, call it before iterating over the loader, and leave `persistent_workers` off. ConfigError if
        it is no whole number of 0 or more.
        """
        epoch = whole_number("epoch", epoch)
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
            if spans := list(self._spans()):
                raise ConfigError(shardless_message(RunFolder(self._store, spans[0][0])))
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
        taken = self._taken if batches is None else whole_number("batches", batches)
        return {
            "format": FORMAT,
            "commits": dict(self._commits),
            "digests": self._digests(),
            "stages": [self._stages.start, self._stages.stop],
            "epoch": self._epoch,
            "seed": self._seed,
            "cursor": min(self._cursor + taken * self._ranks, len(self._order())),
            "settings": dict(self._settings),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state; the number of ranks and of workers may differ.

        Raises:
            ConfigError: the state has another format, or comes from other runs, stages, commits or settings, so that
                rows would be skipped or read twice.
        """
        require_state(state, FORMAT)
        here = self.state_dict(0)
        # Earlier versions stored no digests.
        if lacking := sorted(here.keys() - {"digests"} - state.keys()):
            raise ConfigError(f"the state has no {', '.join(lacking)}: it was altered; restart the epoch")
        for name in ("epoch", "seed", "cursor"):
            if type(state[name]) is not int or state[name] < 0:
                raise ConfigError(f"the state's {name} is {state[name]!r}, expected 0 or more; restart the epoch")
        if not isinstance(state["commits"], dict):
            raise ConfigError(
                f"the state's commits are {state['commits']!r}, expected a stage of each run; restart the epoch"
            )
        for name in ("settings", "stages"):
            if state[name] != here[name]:
                raise ConfigError(
                    f"the state was made with {name} {state[name]}, this dataset has {here[name]}: its cursor is not "
                    f"valid here. Create the dataset with the same {name}, or restart the epoch"
                )
        if list(state["commits"]) != list(self._runs):
            raise ConfigError(f"the state belongs to runs {list(state['commits'])}, this dataset to {list(self._runs)}")
        self._refuse_other_commits(state["commits"], state.get("digests", {}))
        self._commits = dict(state["commits"])
        self._epoch, self._seed, self._cursor = state["epoch"], state["seed"], state["cursor"]
        self._taken, self._refs = 0, None

    def _digests(self) -> dict[str, str]:
        """Return the digest of each run's newest commit that this epoch covers, which says what is read."""
        if self._commits != self._digested[0]:
            logs = {name: RunFolder(self._store, name).log for name in self._runs}
            found = {name: logs[name].digest_of(stage) for name, stage in self._commits.items() if stage >= 0}
            self._digested = dict(self._commits), found
        return dict(self._digested[1])

    def _refuse_other_commits(self, commits: Mapping[str, int], digests: Mapping[str, str]) -> None:
        for name, stage in commits.items():
            log = RunFolder(self._store, name).log
            newest = log.newest_stage()
            if stage > (-1 if newest is None else newest):
                raise ConfigError(
                    f"the state was made when run '{name}' had committed stage {stage}, and in {self._store.url} it "
                    f"has committed {'nothing' if newest is None else f'stages 0 to {newest}'}: wait until it has it "
                    f"again, or restart the epoch"
                )
            if name in digests and log.digest_of(stage) != digests[name]:
                raise ConfigError(
                    f"the state was made with another commit of stage {stage} of run '{name}' than {self._store.url} "
                    f"has, so its cursor is not valid here; restart the epoch"
                )

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
        windows: dict[tuple[int, int], ShardWindow] = {}
        types: dict[str, str] | None = None
        with ExitStack() as stack:
            # It reads ahead while the claims are written: what it finds, also that nothing is there, is taken after.
            stack.enter_context(pipeline)
            for name, first, last in self._spans():
                stack.enter_context(reading(self._store.at(name), "dataset", first, last, optional=True))
            self._tally = pipeline.tally
            stack.callback(self._keep_tally, pipeline)
            for plan in plans():
                for window in plan.opens:
                    loaded = [pipeline.take() for _ in window.shards]
                    opened = windows[window.lane, window.index] = ShardWindow(loaded, self._columns)
                    types = types or opened.types
                    refuse_differences([types, opened.types])
                parts = [(windows[piece.window], order.rows(piece)) for piece in plan.pieces]
                if len(parts) == 1:
                    batch = parts[0][0].rows(parts[0][1])
                else:
                    batch = concatenated([held.part(rows) for held, rows in parts])
                for key in plan.closes:
                    windows.pop(key).release()
                self._taken += 1
                yield batch

    def _keep_tally(self, pipeline: ShardPipeline) -> None:
        """Keep a pipeline's counters after its end, without its memory."""
        tally = pipeline.tally()
        self._tally = lambda: tally


def _place_among_ranks(rank: int | None, ranks: int | None) -> tuple[int, int]:
    if (rank is None) != (ranks is None):
        raise ConfigError(f"rank is {rank} and ranks {ranks}; give both, or neither")
    if rank is None or ranks is None:
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return 0, 1
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    if not 0 <= rank < ranks:
        raise ConfigError(f"rank is {rank} of {ranks}, expected 0 to {ranks - 1}")
    return int(rank), int(ranks)


def _least_of_all(values: list[int], ranks: int) -> list[int]:
    """Return the minimum over ranks, so that all read the same part of a log that grows meanwhile."""
    if ranks == 1 or not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return values
    device = "cuda" if torch.distributed.get_backend() == "nccl" else "cpu"
    tensor = torch.tensor(values, dtype=torch.int64, device=device)
    torch.distributed.all_reduce(tensor, torch.distributed.ReduceOp.MIN)
    return [int(value) for value in tensor.tolist()]
