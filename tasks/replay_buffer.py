"""A replay buffer over the shards that runs have committed: uniform and prioritised sampling, in bounded memory.

For off-policy algorithms. The rows lie in storage alone. Of a window of the newest ones, the shards that samples needed
last are in memory, as many as the budget allows, and a state holds priorities and a few numbers. What is drawn is a
function of seed, draws, priorities and committed rows, whatever is in memory. `docs/reading.md` shows it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor

from storage.counts import request_counts
from storage.digest import digest
from storage.errors import ConfigError
from storage.hedged import hedged
from storage.refs import parse_shard_name
from storage.rollups import refs_of
from storage.run import RunFolder
from storage.store import open_store
from tasks.committed import StageClaims, from_root, newest_stages, stages_wanted
from tasks.sampling import ReplayWindow
from tasks.stored_rows import RowReader, StoredRows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from storage.refs import ShardRef

FORMAT = "penstock-replay-buffer/1"
BUDGET_BYTES = 256 << 20

_REMOTE_THREADS = 8
"""Shards that are read at once: enough to hide 50 ms a request behind shards of some megabytes."""


@dataclass(frozen=True, slots=True)
class ReplayBatch:
    """Rows that were drawn."""

    columns: dict[str, Tensor]
    """`[n, ...]` by name, of their own memory."""
    ids: Tensor
    """int64 `[n]`, ascending: what `update` takes."""
    weights: Tensor
    """float32 `[n]`: what each row counts so that sampling makes no bias; the batch's largest is 1, and all are where
    sampling is uniform."""


@dataclass(frozen=True, slots=True)
class ReplayTally:
    """What a buffer did since it was made; depends on the budget, so it is no part of what is reproducible."""

    reads: int
    """Shards read."""
    hits: int
    """Times that a batch found a shard in memory."""
    held_bytes: int
    """Of shards, now."""
    peak_bytes: int
    """Of shards, held and being read, at most."""
    priority_bytes: int
    """Of the tree of priorities, which the budget does not cover: 16 a row of the capacity, rounded up to a power of
    two; 0 where sampling is uniform."""
    read_bytes: int
    """Fetched from shards."""
    requests: int
    retries: int
    hedges: int
    """Of the store, as it counts them; 0 for a local folder."""

    def to_json(self) -> dict[str, Any]:
        """For a log."""
        return asdict(self)


class StoredReplayBuffer:
    """Samples of the newest rows that runs have committed. A context manager, for one thread.

    While it is open, what its window needs is kept from garbage collection. A row is one step of one environment;
    `next_observation` is what followed it. Returns over n steps are not made.
    """

    def __init__(
        self,
        store: str,
        runs: str | Sequence[str],
        *,
        capacity_rows: int,
        columns: Sequence[str] | None = None,
        stages: range | None = None,
        seed: int = 0,
        exponent: float = 0.0,
        correction: float = 1.0,
        budget_bytes: int = BUDGET_BYTES,
    ) -> None:
        """Finds out what is committed; no shard is read yet.

        Args:
            store: folder or s3:// address that holds runs.
            runs: name of a run, or of several. Rows are taken in run by run, and the newest count: of several, give
                a capacity that all of them fit into.
            capacity_rows: the window holds the newest whole shards that have at most so many rows together.
            columns: names of the columns that are wanted, stored ones or `next_observation`; the others are not read.
                None: all that are stored.
            stages: stages that are wanted, by their numbers; None: all.
            seed: of all draws.
            exponent: how strongly priorities count, alpha of prioritised replay (Schaul et al. 2016, arXiv 1511.05952);
                0 samples uniformly.
            correction: how strongly weights undo it, beta of the same; 1 undoes it fully.
            budget_bytes: of shards in memory, those that are being read included. One shard always passes.

        Raises:
            RunNotFoundError: there is no run of that name.
            ConfigError: a setting is wrong.
        """
        self._store = open_store(store)
        self._runs = (runs,) if isinstance(runs, str) else tuple(runs)
        self._stages = stages_wanted(stages)
        for name, value, least in (
            ("capacity_rows", capacity_rows, 1),
            ("budget_bytes", budget_bytes, 1),
            ("exponent", exponent, 0),
            ("correction", correction, 0),
            ("seed", seed, 0),
        ):
            if not value >= least:
                raise ConfigError(f"{name} is {value}, expected {least} or more")
        if not self._runs or len(set(self._runs)) < len(self._runs):
            raise ConfigError(f"runs is {list(self._runs)}, expected the names of one or several different runs")
        if columns is not None and not columns:
            raise ConfigError("columns is empty, expected names of columns; leave it out for all that are stored")
        self._settings = {"capacity_rows": capacity_rows, "exponent": exponent}
        self._correction = correction
        self._seed = seed
        self._reads = hedged(self._store)
        reader = RowReader(self._reads, None if columns is None else tuple(columns))
        is_remote = self._store.path("any") is None
        self._rows = StoredRows(reader.read, budget_bytes, _REMOTE_THREADS if is_remote else 1)
        self._window = self._new_window(seed)
        self._refs: list[ShardRef] = []
        self._taken = dict.fromkeys(self._runs, self._stages.start - 1)
        self._claims = StageClaims(self._store, "replay-buffer")
        self._is_open = False
        self.refresh()

    def __enter__(self) -> Self:
        self._is_open = True
        try:
            self._claim()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        """Rows in the window."""
        return len(self._window)

    @property
    def tally(self) -> ReplayTally:
        """What was read and held so far."""
        rows, counts = self._rows, request_counts(self._reads)
        return ReplayTally(
            reads=rows.reads,
            hits=rows.hits,
            held_bytes=rows.held_bytes,
            peak_bytes=rows.peak_bytes,
            priority_bytes=self._window.nbytes,
            read_bytes=rows.read_bytes,
            requests=counts.requests,
            retries=counts.retries,
            hedges=counts.hedges,
        )

    def close(self) -> None:
        """Let go of shards and of the claim on what the window needs."""
        self._is_open = False
        self._rows.close()
        self._claims.move({})

    def refresh(self) -> int:
        """Take in what was committed since; the oldest shards leave where the capacity asks for it.

        Returns:
            How many rows came, those that are too old for the window included.

        Raises:
            ConfigError: a shard alone has more rows than the window holds; or shards of the window were dropped.
            CorruptObjectError: a commit was altered, or replaced.
        """
        before = self._window.next_id
        for run, newest in newest_stages(self._store, self._runs).items():
            last = min(newest, self._stages.stop - 1)
            if last > self._taken[run]:
                self._take_in(run, self._taken[run] + 1, last)
                self._taken[run] = last
        self._claim()
        return self._window.next_id - before

    def sample(self, rows: int, *, correction: float | None = None) -> ReplayBatch:
        """Draw rows with replacement, one from each of so many equal shares of the sum of priorities.

        A row that came in has the largest priority so far until `update` says another.

        Args:
            rows: how many.
            correction: in place of the buffer's own, such as one that grows over training.

        Raises:
            ConfigError: nothing is committed yet, or the shards have no column of that name.
            ValueError: no row can be drawn: all priorities are 0, or `rows` is less than 1.
            CorruptObjectError: a shard was altered or cut short. The next sample is then drawn as this one was.
        """
        if not self._is_open:
            raise RuntimeError("the replay buffer is not open; use it in `with StoredReplayBuffer(...) as buffer:`")
        if not len(self):
            raise ConfigError(
                f"the runs {', '.join(self._runs)} in {self._store.url} have committed no rows of the stages that are "
                f"wanted; wait until a stage is committed, and refresh()"
            )
        draws = self._window.draws
        sample = self._window.sample(rows, correction)
        try:
            columns = self._rows.gather(sample.ids)
        except BaseException:
            self._window.draws = draws
            raise
        return ReplayBatch(
            {name: torch.from_numpy(values) for name, values in columns.items()},
            torch.from_numpy(sample.ids),
            torch.from_numpy(sample.weights),
        )

    def update(self, ids: Tensor, priorities: Tensor) -> None:
        """Say what rows are worth, such as the size of their temporal-difference error; 0 is never drawn again.

        Rows that have left the window are skipped. Where sampling is uniform nothing changes.

        Args:
            ids: int64 `[n]`, of a batch; of equal ones the last counts.
            priorities: `[n]`, not yet raised to the exponent.

        Raises:
            ValueError: a priority is negative or not finite, or there are not as many as ids; nothing was changed.
        """
        if ids.shape != priorities.shape or ids.dim() != 1:
            raise ValueError(
                f"ids {list(ids.shape)} and priorities {list(priorities.shape)}, expected two vectors of one length"
            )
        self._window.update(ids.cpu().numpy(), priorities.detach().to("cpu", torch.float64).numpy())

    def state_dict(self) -> dict[str, Any]:
        """What has to be kept to go on with the very same samples; rows are rebuilt from the shards that it names.

        JSON-able, but for `priorities`, a float64 tensor of the window's rows, where sampling is prioritised.
        """
        exported = self._window.export()
        state = {
            "format": FORMAT,
            "runs": list(self._runs),
            "stages": [self._stages.start, self._stages.stop],
            "settings": dict(self._settings),
            "seed": self._seed,
            "taken": dict(self._taken),
            "spans": [list(span) for span in self._spans()],
            "shards": _digest_of(self._refs),
            "counters": exported["counters"].tolist(),
        }
        if self._settings["exponent"]:
            state["priorities"] = torch.from_numpy(exported["priorities"])
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state: with the same window, whatever was committed since; `refresh` takes that in.

        Columns, correction and budget may be others; the seed is the state's.

        Raises:
            ConfigError: it is no state of this kind, or of other runs, stages or settings; or the rows that it is of
                are not those that are committed.
        """
        if state.get("format") != FORMAT:
            raise ConfigError(f"the state's format is {state.get('format')!r}, expected '{FORMAT}'")
        here = {
            "runs": list(self._runs),
            "stages": [self._stages.start, self._stages.stop],
            "settings": dict(self._settings),
        }
        for name, value in here.items():
            if state[name] != value:
                raise ConfigError(
                    f"the state was made with {name} {state[name]}, this buffer has {value}: its row ids and "
                    f"priorities mean nothing here. Make the buffer with the same {name}, or begin anew"
                )
        exported = {"counters": np.array(state["counters"], np.float64), "priorities": np.empty(0)}
        if "priorities" in state:
            exported["priorities"] = state["priorities"].cpu().numpy()
        refs: list[ShardRef] = []
        for run, first, last in state["spans"]:
            found = RunFolder(self._store, run).log.shard_refs(first, last)
            refs += (from_root(run, ref) for ref in found)
        window = self._new_window(state["seed"])
        try:
            window.restore(exported, [ref.rows for ref in refs])
        except ValueError as error:
            raise ConfigError(f"the state is of other rows than {self._store.url} has: {error}") from error
        kept = _last_rows(refs, len(window))
        if _digest_of(kept) != state["shards"]:
            raise ConfigError(
                f"the shards that the state is of are not those that {self._store.url} has: a run of the same name "
                f"was made anew. Begin anew, or open the store that the state was made with"
            )
        self._window, self._seed, self._taken = window, state["seed"], dict(state["taken"])
        self._show(kept)
        self._claim()

    def _new_window(self, seed: int) -> ReplayWindow:
        capacity_rows, exponent = int(self._settings["capacity_rows"]), self._settings["exponent"]
        return ReplayWindow(capacity_rows, seed, exponent=exponent, correction=self._correction)

    def _take_in(self, run: str, first: int, last: int) -> None:
        table = RunFolder(self._store, run).log.shard_table(first, last)
        if not table.num_rows:
            return
        rows: NDArray[np.int64] = table["rows"].to_numpy()
        capacity_rows = self._window.capacity_rows
        if rows.max() > capacity_rows:
            raise ConfigError(
                f"capacity_rows is {capacity_rows}, and '{run}/{table['name'][int(rows.argmax())]}' alone has "
                f"{rows.max()} rows; give at least so many"
            )
        # Of a long log, what the window can't hold is counted and not looked at.
        kept = int(np.searchsorted(np.cumsum(rows[::-1]), capacity_rows, side="right"))
        if kept < len(rows):
            self._window.skip(int(rows[:-kept].sum()))
        refs = [from_root(run, ref) for ref in refs_of(table.slice(len(rows) - kept))]
        self._window.extend(refs)
        self._show(_last_rows(self._refs + refs, len(self._window)))

    def _show(self, refs: list[ShardRef]) -> None:
        self._refs = refs
        self._rows.number(refs, self._window.first_id)

    def _spans(self) -> Iterator[tuple[str, int, int]]:
        """Runs with first and last stage, in which the window's shards lie, in its order.

        A stage is taken in as a whole, so only the first may reach back beyond the window.
        """
        places = [ref.name.partition("/")[::2] for ref in self._refs]
        for run, names in groupby(places, key=lambda place: place[0]):
            stages = [parse_shard_name(name).stage for _, name in names]
            yield run, stages[0], stages[-1]

    def _claim(self) -> None:
        if not self._is_open:
            return
        first: dict[str, int] = {}
        for run, stage, _ in self._spans():
            first[run] = min(stage, first.get(run, stage))
        self._claims.move({run: (stage, self._taken[run]) for run, stage in first.items()})


def _last_rows(refs: list[ShardRef], rows: int) -> list[ShardRef]:
    """The last shards that have so many rows."""
    start = len(refs)
    while rows > 0:
        start -= 1
        rows -= refs[start].rows
    return refs[start:]


def _digest_of(refs: Sequence[ShardRef]) -> str:
    return digest("\n".join(f"{ref.name} {ref.digest}" for ref in refs).encode())
