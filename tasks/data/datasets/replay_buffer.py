"""A replay buffer over the shards that runs have committed: uniform and prioritised sampling, in bounded memory.

It serves off-policy algorithms. Rows are in storage only. Of a window of the newest ones, the most recently used shards
stay in memory, as many as the budget allows; a saved state holds priorities and a few numbers. Samples are a function
of seed, draws, priorities and committed rows, whatever is in memory. `docs/reading.md` has examples.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor

from penstock.storage.digest import digest
from penstock.storage.errors import ConfigError
from penstock.storage.refs import parse_shard_name
from penstock.storage.runs.rollups.content import refs_of
from penstock.storage.runs.run import RunFolder
from penstock.storage.stores.hedged import hedged
from penstock.storage.stores.open import open_store
from penstock.storage.stores.remote import request_counts
from penstock.tasks.data.input.row_cache import RowReader, StoredRows
from penstock.tasks.data.input.run_selection import (
    StageClaims,
    from_root,
    newest_stages,
    requested_columns,
    requested_runs,
    requested_stages,
    require_exponent,
    require_state,
    shardless_message,
    whole_number,
)
from penstock.tasks.data.input.sampling import ReplayWindow

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from penstock.storage.refs import ShardRef

FORMAT = "penstock-replay-buffer/1"
BUDGET_BYTES = 256 << 20

_REMOTE_THREADS = 8
"""Shards that are read at once: enough to hide 50 ms a request behind shards of some megabytes."""


@dataclass(frozen=True, slots=True)
class ReplayBatch:
    """A batch of sampled rows."""

    columns: dict[str, Tensor]
    """Columns `[n, ...]` by name; they own their memory."""
    ids: Tensor
    """Row ids, int64 `[n]`, ascending: the argument of `update`."""
    weights: Tensor
    """Importance weights, float32 `[n]`, which correct the bias of sampling; the batch's largest is 1. All are 1 if
    sampling is uniform."""


@dataclass(frozen=True, slots=True)
class ReplayTally:
    """Counters of a buffer since its creation; they depend on the budget, so they are not reproducible."""

    reads: int
    """Shards read."""
    hits: int
    """Times that a batch found a shard in memory."""
    held_bytes: int
    """Current memory of shards."""
    peak_bytes: int
    """Peak memory of shards, held and being read."""
    priority_bytes: int
    """Memory of the tree of priorities, which the budget does not cover: 16 bytes per row of capacity, rounded up to
    a power of two; 0 if sampling is uniform."""
    read_bytes: int
    """Bytes fetched from shards."""
    requests: int
    retries: int
    hedges: int
    """Hedged requests as the store counts them; 0 for a local folder."""

    def to_json(self) -> dict[str, int]:
        """Return a JSON-able form for a log."""
        return asdict(self)


class StoredReplayBuffer:
    """Samples the newest rows that runs have committed. A context manager, for one thread.

    While it is open, the shards of its window are kept from garbage collection. A row is one step of one environment;
    `next_observation` is the observation after it. It does not compute n-step returns.
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
        """Find the committed shards; reads none of them yet.

        Args:
            store: folder or s3:// address that holds runs.
            runs: name of a run, or of several. Rows are added run by run, and the newest count: for several runs, give
                a capacity that all of them fit into.
            capacity_rows: the window holds the newest whole shards with at most this many rows together.
            columns: names of the columns to read, stored ones or `next_observation`; None: all stored columns.
            stages: numbers of the stages to read; None: all.
            seed: seed of all draws.
            exponent: exponent of the priorities, alpha of prioritised replay (Schaul et al. 2016, arXiv 1511.05952); 0
                samples uniformly.
            correction: exponent of the importance weights, beta of the same paper; 1 corrects the bias fully.
            budget_bytes: limit for shards in memory, including those being read. One shard is always allowed.

        Raises:
            RunNotFoundError: there is no run of that name.
            ConfigError: a setting is wrong.
        """
        self._store = open_store(store)
        self._runs = requested_runs(runs)
        self._stages = requested_stages(stages)
        capacity_rows, budget_bytes = (
            whole_number("capacity_rows", capacity_rows, 1),
            whole_number("budget_bytes", budget_bytes, 1),
        )
        seed = whole_number("seed", seed)
        exponent, correction = require_exponent("exponent", exponent), require_exponent("correction", correction)
        self._settings = {"capacity_rows": capacity_rows, "exponent": exponent}
        self._correction = correction
        self._seed = seed
        self._reads = hedged(self._store)
        reader = RowReader(self._reads, requested_columns(columns))
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
        """Return the number of rows in the window."""
        return len(self._window)

    @property
    def tally(self) -> ReplayTally:
        """Return the counters so far."""
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
        """Release shards, and the claim on those in the window."""
        self._is_open = False
        self._rows.close()
        self._claims.move({})

    def refresh(self) -> int:
        """Add shards that were committed since; the oldest shards leave if they exceed the capacity.

        Returns:
            The number of new rows, including those that are too old for the window.

        Raises:
            ConfigError: one shard has more rows than the window holds, or shards of the window were deleted.
            CorruptObjectError: a commit was altered, or replaced.
        """
        before = self._window.next_id
        for run, newest in newest_stages(self._store, self._runs).items():
            last = min(newest, self._stages.stop - 1)
            if last > self._taken[run]:
                self._add_stages(run, self._taken[run] + 1, last)
                self._taken[run] = last
        self._claim()
        return self._window.next_id - before

    def sample(self, rows: int, *, correction: float | None = None) -> ReplayBatch:
        """Draw rows with replacement, one from each of `rows` equal shares of the sum of priorities.

        A new row has the largest priority so far until `update` sets another.

        Args:
            rows: number of rows to draw.
            correction: replaces the buffer's own `correction`, for instance by one that grows over training.

        Raises:
            ConfigError: nothing is committed yet, or the shards have no column of that name.
            ConfigError: `correction` is negative.
            ValueError: no row can be drawn: all priorities are 0, or `rows` is less than 1.
            CorruptObjectError: a shard was altered or cut short. The next call then draws the same rows.
        """
        if not self._is_open:
            raise RuntimeError("the replay buffer is not open; use it in `with StoredReplayBuffer(...) as buffer:`")
        if not len(self):
            if committed := [run for run, newest in self._taken.items() if newest >= self._stages.start]:
                raise ConfigError(shardless_message(RunFolder(self._store, committed[0])))
            raise ConfigError(
                f"the runs {', '.join(self._runs)} in {self._store.url} have committed no rows of the requested "
                f"stages; wait until a stage is committed, and refresh()"
            )
        if correction is not None:
            correction = require_exponent("correction", correction)
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
        """Set priorities of rows, such as the absolute temporal-difference error; a row with 0 is never drawn again.

        Rows that have left the window are skipped. If sampling is uniform, nothing changes.

        Args:
            ids: int64 `[n]`, from a batch; of equal ids the last counts.
            priorities: `[n]`, not yet raised to the exponent.

        Raises:
            ValueError: a priority is negative or not finite, or these are no tensors, or their lengths differ; nothing
                was changed.
        """
        for name, given in (("ids", ids), ("priorities", priorities)):
            if not isinstance(given, Tensor):
                raise ValueError(f"{name} is {given!r}, expected a tensor [n]")  # noqa: TRY004  (as of a wrong shape)
        if ids.shape != priorities.shape or ids.dim() != 1:
            raise ValueError(
                f"ids {list(ids.shape)} and priorities {list(priorities.shape)}, expected two vectors of one length"
            )
        self._window.update(ids.cpu().numpy(), priorities.detach().to("cpu", torch.float64).numpy())

    def state_dict(self) -> dict[str, Any]:
        """Return a state that resumes with the same samples; rows are read again from the shards that it names.

        It is JSON-able except for `priorities`, a float64 tensor of the window's rows, which it has if sampling is
        prioritised.
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
        """Resume from a state, with its window; `refresh` then adds what was committed since.

        Columns, correction and budget may differ from the state's; the seed becomes the state's.

        Raises:
            ConfigError: the state has another format, or comes from other runs, stages or settings, or its rows differ
                from the committed ones.
        """
        require_state(state, FORMAT)
        here = {
            "runs": list(self._runs),
            "stages": [self._stages.start, self._stages.stop],
            "settings": dict(self._settings),
        }
        needed = {*here, "seed", "taken", "spans", "shards", "counters"}
        if lacking := sorted(needed - state.keys()):
            raise ConfigError(f"the state has no {', '.join(lacking)}: it was altered; start without a state")
        for name, value in here.items():
            if state[name] != value:
                raise ConfigError(
                    f"the state was made with {name} {state[name]}, this buffer has {value}: its row ids and "
                    f"priorities are not valid here. Create the buffer with the same {name}, or start without a state"
                )
        taken, seed = state["taken"], state["seed"]
        if not isinstance(taken, dict) or taken.keys() != set(self._runs) or type(seed) is not int or seed < 0:
            raise ConfigError(
                f"the state has the seed {seed!r} and the stages {taken!r}, expected a whole number of 0 or more and a "
                f"stage of each run: it was altered; start without a state"
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
            raise ConfigError(f"the state's rows differ from those in {self._store.url}: {error}") from error
        kept = _last_rows(refs, len(window))
        if _digest_of(kept) != state["shards"]:
            raise ConfigError(
                f"the state's shards differ from those in {self._store.url}: a run of the same name was created "
                f"again. Start without a state, or open the store that the state was made with"
            )
        self._window, self._seed, self._taken = window, state["seed"], dict(state["taken"])
        self._set_refs(kept)
        self._claim()

    def _new_window(self, seed: int) -> ReplayWindow:
        capacity_rows, exponent = int(self._settings["capacity_rows"]), self._settings["exponent"]
        return ReplayWindow(capacity_rows, seed, exponent=exponent, correction=self._correction)

    def _add_stages(self, run: str, first: int, last: int) -> None:
        table = RunFolder(self._store, run).log.shard_table(first, last)
        if not table.num_rows:
            return
        rows: NDArray[np.int64] = table["rows"].to_numpy()
        capacity_rows = self._window.capacity_rows
        if rows.max() > capacity_rows:
            raise ConfigError(
                f"capacity_rows is {capacity_rows}, and '{run}/{table['name'][int(rows.argmax())]}' alone has "
                f"{rows.max()} rows; raise it to at least that"
            )
        # A long log may have more than the window holds: older rows are only counted.
        kept = int(np.searchsorted(np.cumsum(rows[::-1]), capacity_rows, side="right"))
        if kept < len(rows):
            self._window.skip(int(rows[:-kept].sum()))
        refs = [from_root(run, ref) for ref in refs_of(table.slice(len(rows) - kept))]
        self._window.extend(refs)
        self._set_refs(_last_rows(self._refs + refs, len(self._window)))

    def _set_refs(self, refs: list[ShardRef]) -> None:
        self._refs = refs
        self._rows.number(refs, self._window.first_id)

    def _spans(self) -> Iterator[tuple[str, int, int]]:
        """Yield the runs whose shards are in the window, in its order, each with its first and last stage.

        A stage is added as a whole, so only the first one may begin before the window.
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
    """Return the last shards that have this many rows together."""
    start = len(refs)
    while rows > 0:
        start -= 1
        rows -= refs[start].rows
    return refs[start:]


def _digest_of(refs: Sequence[ShardRef]) -> str:
    return digest("\n".join(f"{ref.name} {ref.digest}" for ref in refs).encode())
