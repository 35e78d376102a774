"""Computes the order in which stored rows are read, from committed rows, seed, epoch and cursor alone.

There is no list of rows already read. A reader's complete state is a `ReaderState` of four numbers, so it fits into a
checkpoint, and any number of readers that share one state read the same epoch: each takes its part by a fixed rule, and
the parts together are what one reader alone would read.

An epoch covers the commits that existed when it began. A log only grows, so the same state always means the same rows.

An epoch's rows are dealt to lanes: shard k of the epoch's order to lane k % lanes. Batch after batch comes from lane
after lane, as long as each has rows, and reader i of n takes batches i, i + n, ... So where the number of readers
divides the number of lanes, each reads separate shards and no shard is read twice; where it does not, the order is
the same and a shard may have several readers.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import numpy as np

from penstock.storage.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

Shuffle = Literal["none", "shards", "rows"]

_SHARDS, _ROWS = 0, 1  # the purpose of a permutation, part of its key


@dataclass(frozen=True, slots=True)
class ReaderState:
    """A reader resumes from this state."""

    commit: int
    """The newest commit that the epoch covers; -1 before the first."""
    epoch: int
    seed: int
    cursor: int
    """The number of shards or batches, as read, that all readers together have taken from the epoch."""

    def to_json(self) -> dict[str, int]:
        """Return a JSON-able form; `from_json` reads it."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Parse the result of `to_json`.

        Raises:
            ValueError: fields are missing, unknown, or no whole numbers.
        """
        names = [field.name for field in fields(cls)]
        known = isinstance(value, dict) and set(value) == set(names)
        if not known or not all(type(value[name]) is int for name in names):
            raise ValueError(f"{value!r} is not a reader's state: expected whole numbers for {', '.join(names)}")
        return cls(**value)


def permutation(count: int, *key: int) -> NDArray[np.int64]:
    """Return 0 to count - 1 in an order that depends on the key alone, not on NumPy's version or the processor.

    It uses a bit generator's raw output, whose stream NumPy never changes, and a stable sort; NumPy's own permutations
    may change from one version to the next.
    """
    return np.argsort(np.random.Philox(np.random.SeedSequence(key)).random_raw(count), kind="stable")


@dataclass(frozen=True, slots=True)
class Window:
    """A window is the shards of one lane that are in memory together, and among which rows are shuffled."""

    lane: int
    index: int
    """The number of the window in its lane."""
    shards: tuple[int, ...]
    """The shards' indices in the epoch, in reading order."""


class Piece(NamedTuple):
    """A piece is the rows of a batch that are in one window."""

    window: tuple[int, int]
    """The window's lane and index."""
    part: slice
    """A range of the window's rows in reading order; `EpochOrder.rows` maps it to rows."""


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The plan of a batch lists windows to open before it, its pieces, and windows not needed after it."""

    index: int
    """The number of the batch in the epoch, over all readers."""
    opens: tuple[Window, ...]
    pieces: tuple[Piece, ...]
    closes: tuple[tuple[int, int], ...]


class EpochOrder:
    """Orders one epoch over a fixed list of shards."""

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
        """Take the arguments that define the order: keep them all, and only the number of readers may change.

        Args:
            shard_rows: rows of each shard, in the order of the log.
            batch_rows: rows of a batch; the last one of a lane may have fewer.
            seed: of the order.
            epoch: a number that selects another order of the same seed.
            shuffle: nothing, the order of shards, or the order of shards and the rows within a window of shards.
            window_shards: shards of a window, which are in memory together. Used for "rows" alone.
            lanes: streams of shards that batches take turns with.
            drop_last: leave out a lane's last batch if it has fewer rows.

        Raises:
            ConfigError: a number is below 1, or the kind of shuffling is unknown.
        """
        for name, value in (("batch_rows", batch_rows), ("window_shards", window_shards), ("lanes", lanes)):
            if not isinstance(value, (int, np.integer)) or value < 1:
                raise ConfigError(f"{name} is {value!r}, expected a whole number of 1 or more")
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
        # The start of each window of a lane, in rows of the lane, and the end of the last one.
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
        """Return the number of batches in the epoch."""
        return sum(self._batches)

    def read(self, cursor: int = 0, reader: int = 0, readers: int = 1, stop: int | None = None) -> Iterator[BatchPlan]:
        """Plan one reader's part of the rest of the epoch.

        Args:
            cursor: batches that all readers together have already taken.
            reader: number of this reader, from 0.
            readers: their number; it may differ from the number before the cursor.
            stop: the first batch that no reader takes; None to take all.
        """
        opened: dict[int, list[int]] = {}
        batch_rows, nothing = self._batch_rows, ()
        for index in range(cursor + reader, len(self) if stop is None else stop, readers):
            lane, turn = self._place(index)
            starts = self._starts[lane]
            start, end = turn * batch_rows, min((turn + 1) * batch_rows, starts[-1])
            first = bisect_right(starts, start) - 1
            held = opened.setdefault(lane, [])
            if end < starts[first + 1] and held == [first]:  # most batches, and there are thousands of small ones
                within = slice(start - starts[first], end - starts[first])
                yield BatchPlan(index, nothing, (Piece((lane, first), within),), nothing)
                continue
            last = bisect_left(starts, end) - 1
            spanned = [window for window in range(first, last + 1) if starts[window] < starts[window + 1]]
            opens = tuple(self._window(lane, window) for window in spanned if window not in held)
            # A window that ends with this batch is not needed again; one that continues may be.
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
        """Return a piece's rows, numbered through its window's shards one after another. Not safe for threads."""
        if not self._mixed:
            return piece.part
        lane, window = piece.window
        found = self._mixed_rows.get(lane)
        if found is None or found[0] != window:
            count = self._starts[lane][window + 1] - self._starts[lane][window]
            found = self._mixed_rows[lane] = (window, permutation(count, *self._key, lane, window))
        return found[1][piece.part]

    def _place(self, index: int) -> tuple[int, int]:
        """Return the lane of a batch, and how many of the lane's batches precede it."""
        stretch = bisect_right(self._firsts, index) - 1
        alive = self._alive[stretch]
        turns, lane = divmod(index - self._firsts[stretch], len(alive))
        return alive[lane], self._turns[stretch] + turns

    def _window(self, lane: int, index: int) -> Window:
        size = self._window_shards
        shards = self._shards[lane][index * size : (index + 1) * size]
        return Window(lane, index, tuple(map(int, shards)))


def _window_starts(rows: NDArray[np.int64], window_shards: int) -> list[int]:
    """Return `[W + 1]`: the starts of windows of so many shards, in rows, and the end of the last one."""
    ends = np.cumsum(rows)
    chosen = np.minimum(np.arange(window_shards, len(rows) + window_shards, window_shards), len(rows)) - 1
    return [0, *ends[chosen].tolist()]
