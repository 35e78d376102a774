"""The order in which stored rows are read: a pure function of what is committed, a seed, an epoch and a cursor.

Nobody keeps a list of what was read. A reader's whole memory is a `ReaderState` of four numbers, so it fits into a
checkpoint, and any number of readers that share one state read the same epoch: each takes its part by a fixed rule, and
the parts together are what one reader alone would read.

An epoch covers what was committed when it began. A log only grows, so the same state means the same rows for ever.

An epoch's rows are dealt to lanes: shard k of the epoch's order to lane k % lanes. Batch after batch comes from lane
after lane, as long as each has rows, and reader i of n takes batches i, i + n, ... So where the number of readers
divides the number of lanes, each reads shards of its own and no shard is read twice; where it does not, the order is
the same and a shard may have several readers.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import numpy as np

from storage.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

Shuffle = Literal["none", "shards", "rows"]

_SHARDS, _ROWS = 0, 1  # what a permutation is for, part of its key


@dataclass(frozen=True, slots=True)
class ReaderState:
    """Where reading stands."""

    commit: int
    """The newest commit that the epoch covers; -1 before the first."""
    epoch: int
    seed: int
    cursor: int
    """What all readers together have taken of the epoch: shards where shards are read, batches where batches are."""

    def to_json(self) -> dict[str, Any]:
        """A JSON-able form; `from_json` reads it."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read what `to_json` gave.

        Raises:
            ValueError: fields are missing, unknown, or no whole numbers.
        """
        names = [field.name for field in fields(cls)]
        if set(value) != set(names) or not all(type(value[name]) is int for name in names):
            raise ValueError(f"{value!r} is no state of a reader: expected whole numbers for {', '.join(names)}")
        return cls(**value)


def permutation(count: int, *key: int) -> NDArray[np.int64]:
    """0 to count - 1 in an order that depends on the key alone, not on NumPy's version or the processor.

    Made of a bit generator's raw output, whose stream NumPy keeps for ever, and of a stable sort; NumPy's own
    permutations may change from one version to the next.
    """
    return np.argsort(np.random.Philox(np.random.SeedSequence(key)).random_raw(count), kind="stable")


@dataclass(frozen=True, slots=True)
class Window:
    """Shards of one lane that are held together, and among which rows are mixed."""

    lane: int
    index: int
    """Counts the lane's windows."""
    shards: tuple[int, ...]
    """Indices into the epoch's shards, in the order of reading."""


class Piece(NamedTuple):
    """Rows of a batch that lie in one window."""

    window: tuple[int, int]
    """Lane and index of the window."""
    part: slice
    """Of the window's rows in the order of reading; `EpochOrder.rows` says which rows those are."""


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """One batch: what must be opened before it, what it is made of, and what is not needed after it."""

    index: int
    """Counts the epoch's batches, whoever reads them."""
    opens: tuple[Window, ...]
    pieces: tuple[Piece, ...]
    closes: tuple[tuple[int, int], ...]


class EpochOrder:
    """One epoch over a fixed list of shards."""

    def __init__(
        self,
        shard_rows: Sequence[int],
        *,
        batch_rows: int,
        seed: int = 0,
        epoch: int = 0,
        shuffle: Shuffle = "none",
        window_shards: int = 1,
        lanes: int = 1,
        drop_last: bool = False,
    ) -> None:
        """Every argument is part of the order: keep them all, and only the number of readers may change.

        Args:
            shard_rows: rows of each shard, in the order of the log.
            batch_rows: rows of a batch; the last one of a lane may have fewer.
            seed: of the order.
            epoch: a number that gives another order of the same seed.
            shuffle: nothing, the order of shards, or that and the rows within a window of shards.
            window_shards: shards of a window; they are held in memory together. Counts for "rows" alone.
            lanes: streams of shards that batches take turns with.
            drop_last: leave out a lane's last batch if it has fewer rows.

        Raises:
            ConfigError: a number is below 1, or the kind of shuffling is unknown.
        """
        for name, value in (("batch_rows", batch_rows), ("window_shards", window_shards), ("lanes", lanes)):
            if value < 1:
                raise ConfigError(f"{name} is {value}, expected 1 or more")
        if shuffle not in {"none", "shards", "rows"}:
            raise ConfigError(f"shuffle is {shuffle!r}, expected 'none', 'shards' or 'rows'")
        rows = np.asarray(shard_rows, dtype=np.int64)
        order = np.arange(len(rows)) if shuffle == "none" else permutation(len(rows), seed, epoch, _SHARDS)
        self._key = (seed, epoch, _ROWS)
        self._mixed_rows: dict[int, tuple[int, NDArray[np.int64]]] = {}
        self._mixed = shuffle == "rows"
        self._window_shards = window_shards if self._mixed else 1
        self._batch_rows = batch_rows
        self._shards = [order[lane::lanes] for lane in range(lanes)]
        # Where each window of a lane begins, in rows of the lane, and where the last one ends.
        self._starts = [_window_starts(rows[shards], self._window_shards) for shards in self._shards]
        ends = [starts[-1] for starts in self._starts]
        self._batches = [end // batch_rows if drop_last else -(-end // batch_rows) for end in ends]
        # As long as the same lanes have batches left, turns are regular: `_turns` has the first turn of each such
        # stretch, `_firsts` its first batch, `_alive` its lanes.
        self._turns = [0, *sorted(set(self._batches) - {0})]
        self._alive = [[lane for lane, count in enumerate(self._batches) if count > turn] for turn in self._turns]
        self._firsts = [0]
        for turn, after, alive in zip(self._turns, self._turns[1:], self._alive, strict=False):
            self._firsts.append(self._firsts[-1] + (after - turn) * len(alive))

    def __len__(self) -> int:
        """Batches of the epoch."""
        return sum(self._batches)

    def read(self, cursor: int = 0, reader: int = 0, readers: int = 1, stop: int | None = None) -> Iterator[BatchPlan]:
        """One reader's part of what is left of the epoch.

        Args:
            cursor: batches that all readers together have taken before.
            reader: which one this is, counted from 0.
            readers: how many read; may differ from how many read before the cursor.
            stop: the first batch that nobody takes any more; None: all are taken.
        """
        opened: dict[int, list[int]] = {}
        batch_rows, nothing = self._batch_rows, ()
        for index in range(cursor + reader, len(self) if stop is None else stop, readers):
            lane, turn = self._place(index)
            starts = self._starts[lane]
            start, end = turn * batch_rows, min((turn + 1) * batch_rows, starts[-1])
            first = bisect_right(starts, start) - 1
            held = opened.setdefault(lane, [])
            if end < starts[first + 1] and held == [first]:  # most batches, and small ones come by the thousand
                within = slice(start - starts[first], end - starts[first])
                yield BatchPlan(index, nothing, (Piece((lane, first), within),), nothing)
                continue
            last = bisect_left(starts, end) - 1
            spanned = [window for window in range(first, last + 1) if starts[window] < starts[window + 1]]
            opens = tuple(self._window(lane, window) for window in spanned if window not in held)
            # What ends with this batch is not needed again; what goes on beyond it may be, if the next batch comes so.
            kept = [last] if end < starts[last + 1] else []
            closes = tuple((lane, window) for window in sorted({*held, *spanned}) if window not in kept)
            opened[lane] = kept
            pieces = tuple(
                Piece(
                    (lane, window),
                    slice(max(start - starts[window], 0), min(end, starts[window + 1]) - starts[window]),
                )
                for window in spanned
            )
            yield BatchPlan(index, opens, pieces, closes)

    def rows(self, piece: Piece) -> slice | NDArray[np.int64]:
        """Rows of a piece, counted through its window's shards one after another. Not safe for threads."""
        if not self._mixed:
            return piece.part
        lane, window = piece.window
        found = self._mixed_rows.get(lane)
        if found is None or found[0] != window:
            count = self._starts[lane][window + 1] - self._starts[lane][window]
            found = self._mixed_rows[lane] = (window, permutation(count, *self._key, lane, window))
        return found[1][piece.part]

    def _place(self, index: int) -> tuple[int, int]:
        """The lane of a batch, and how many of the lane's batches come before it."""
        stretch = bisect_right(self._firsts, index) - 1
        alive = self._alive[stretch]
        turns, lane = divmod(index - self._firsts[stretch], len(alive))
        return alive[lane], self._turns[stretch] + turns

    def _window(self, lane: int, index: int) -> Window:
        size = self._window_shards
        shards = self._shards[lane][index * size : (index + 1) * size]
        return Window(lane, index, tuple(map(int, shards)))


def _window_starts(rows: NDArray[np.int64], window_shards: int) -> list[int]:
    """`[W + 1]`: where windows of so many shards begin, in rows, and where the last one ends."""
    ends = np.cumsum(rows)
    chosen = np.minimum(np.arange(window_shards, len(rows) + window_shards, window_shards), len(rows)) - 1
    return [0, *ends[chosen].tolist()]
