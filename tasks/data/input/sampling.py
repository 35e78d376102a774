"""Uniform and prioritised sampling over stored rows, for algorithms that learn from a window of many rounds.

A row's global id counts all rows of the shards in their order, from 0; it never changes. The window holds the newest
shards that fit into its capacity. A checkpoint of it needs only priorities and four numbers: the rows are in shards,
and commits name the shards.

Draws are keyed by (seed, number of the draw), and every inner node of the tree is the sum of its two children, whatever
happened before. So samples are a pure function of seed, draw and priorities: a window that was rebuilt from its
exported state resumes with the same sequence. (TorchRL's samplers draw from a generator of the process and keep sums
that depend on the order of updates; they would also bring TorchRL into every learner.)
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from penstock.storage.refs import ShardRef

_FEW_LEAVES = 1024


class SumTree:
    """A sum tree of non-negative numbers: sets one, or finds one by its share of the sum, in logarithmic time.

    Uses 16 bytes a leaf; the number of leaves is rounded up to a power of two.
    """

    def __init__(self, leaves: int) -> None:
        if leaves < 1:
            raise ValueError(f"leaves is {leaves}, expected 1 or more")
        self._first = 1 << (leaves - 1).bit_length()
        self._nodes = np.zeros(2 * self._first, dtype=np.float64)
        self.leaves = leaves

    @property
    def total(self) -> float:
        """Return the sum of all leaves."""
        return float(self._nodes[1])

    @property
    def nbytes(self) -> int:
        """Return the memory in bytes."""
        return self._nodes.nbytes

    def get(self, indices: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the values of leaves `[n]`."""
        return self._nodes[self._first + indices]

    def put(self, indices: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        """Set leaves `[n]`; of equal indices the last counts.

        Raises:
            ValueError: a value is negative or not finite.
            IndexError: there is no such leaf.
        """
        _check(values)
        if len(indices) and not (indices.min() >= 0 and indices.max() < self.leaves):
            raise IndexError(f"leaves {indices.min()} to {indices.max()}, expected 0 to {self.leaves - 1}")
        nodes = self._first + indices
        self._nodes[nodes] = values
        while len(nodes) and nodes[0] > 1:
            nodes = nodes >> 1
            # For a few, computing a sum twice costs less than finding duplicates.
            if len(nodes) > _FEW_LEAVES:
                nodes = np.unique(nodes)
            self._nodes[nodes] = self._nodes[2 * nodes] + self._nodes[2 * nodes + 1]

    def find(self, sums: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the leaf at which the running sum of all leaves first exceeds each of `[n]`; never one that is zero.

        Args:
            sums: at least 0, less than `total`.
        """
        nodes = np.ones(len(sums), dtype=np.int64)
        left = np.array(sums, dtype=np.float64)
        while nodes[0] < self._first:
            nodes = 2 * nodes
            below = self._nodes[nodes]
            # Rounding can leave a remainder that no right child covers: an empty child is never entered.
            right = (left >= below) & (self._nodes[nodes + 1] > 0)
            left = np.where(right, left - below, left)
            nodes += right
        return nodes - self._first


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample of rows."""

    ids: NDArray[np.int64]
    """Global row ids `[n]`, ascending."""
    weights: NDArray[np.float32]
    """Importance weights `[n]`, which correct the bias of sampling, at most 1; all 1 if sampling is uniform."""


class ReplayWindow:
    """The newest rows, and their probabilities of being drawn.

    Args:
        capacity_rows: at most this many rows; whole shards leave, oldest first.
        seed: seed of all draws.
        exponent: exponent of the priorities, alpha of prioritised replay (Schaul et al. 2016, arXiv 1511.05952); 0
            samples uniformly, and priorities are then not kept.
        correction: exponent of the importance weights, beta of the same paper; 1 corrects the bias fully.
    """

    def __init__(self, capacity_rows: int, seed: int, *, exponent: float = 0.0, correction: float = 1.0) -> None:
        if capacity_rows < 1 or exponent < 0 or correction < 0:
            raise ValueError(
                f"capacity_rows is {capacity_rows}, exponent {exponent} and correction {correction}; expected at least "
                f"1, 0 and 0"
            )
        self.capacity_rows = capacity_rows
        self.exponent = exponent
        self.correction = correction
        self._seed = seed
        self._tree = SumTree(capacity_rows) if exponent else None
        self._shard_rows: deque[int] = deque()
        self._largest = 1.0
        self.draws = 0
        """Number of samples drawn so far; the next one depends on it."""
        self.first_id = 0
        self.next_id = 0

    def __len__(self) -> int:
        return self.next_id - self.first_id

    @property
    def nbytes(self) -> int:
        """Return the memory of the tree of priorities in bytes."""
        return 0 if self._tree is None else self._tree.nbytes

    def extend(self, refs: Iterable[ShardRef]) -> None:
        """Add shards, in order; their rows get the largest priority so far, so that each is likely drawn once.

        Raises:
            ValueError: a shard alone has more rows than the window holds.
        """
        for ref in refs:
            if ref.rows > self.capacity_rows:
                raise ValueError(
                    f"'{ref.name}' has {ref.rows} rows, and the window holds {self.capacity_rows}; make it larger"
                )
            self.take_in(ref.rows)

    def take_in(self, rows: int) -> None:
        """Add rows that will leave together, at most `capacity_rows`; as `extend`."""
        while len(self) + rows > self.capacity_rows:
            self._leave(self._shard_rows.popleft())
        fresh = np.arange(self.next_id, self.next_id + rows)
        self._shard_rows.append(rows)
        self.next_id += rows
        if self._tree is not None:
            self._tree.put(fresh % self.capacity_rows, np.full(rows, self._largest**self.exponent))

    def skip(self, rows: int) -> None:
        """Skip the numbers of rows that are not added, because a full window follows them; all earlier rows leave."""
        self._leave(len(self))
        self._shard_rows.clear()
        self.first_id = self.next_id = self.next_id + rows

    def sample(self, count: int, correction: float | None = None, uniform: NDArray[np.float64] | None = None) -> Sample:
        """Draw rows with replacement, one from each of `count` equal shares of the sum of priorities.

        Args:
            count: number of rows.
            correction: replaces the window's own `correction`, for instance by one that grows over training.
            uniform: `[count]` random numbers in [0, 1), used instead of the window's own.

        Raises:
            ValueError: the window is empty, or all priorities are 0.
        """
        if not len(self) or count < 1 or (self._tree is not None and not self._tree.total > 0):
            raise ValueError(f"{count} rows of {len(self)} can't be drawn: expected some, with priorities above 0")
        shares = (np.arange(count) + (self._uniform(count) if uniform is None else uniform)) / count
        self.draws += 1
        if self._tree is None:
            offsets = np.minimum((shares * len(self)).astype(np.int64), len(self) - 1)
            return Sample(self.first_id + offsets, np.ones(count, dtype=np.float32))
        slots = self._tree.find(shares * self._tree.total)
        ids = np.sort(self.first_id + (slots - self.first_id) % self.capacity_rows)
        chances = self._tree.get(ids % self.capacity_rows) / self._tree.total
        weights = (len(self) * chances) ** -(self.correction if correction is None else correction)
        return Sample(ids, (weights / weights.max()).astype(np.float32))

    def update(self, ids: NDArray[np.int64], priorities: NDArray[np.floating[Any]]) -> None:
        """Set priorities of rows, as a loss's row outputs give them; rows that have left are skipped.

        Raises:
            ValueError: a priority is negative or not finite.
        """
        if self._tree is None:
            return
        inside = (ids >= self.first_id) & (ids < self.next_id)
        values = np.asarray(priorities, dtype=np.float64)[inside]
        _check(values)
        self._tree.put(ids[inside] % self.capacity_rows, values**self.exponent)
        self._largest = max(self._largest, float(values.max(initial=0.0)))

    def export(self) -> dict[str, NDArray[Any]]:
        """Return the state for a checkpoint: `priorities` `[rows]` by id, and `counters`, four numbers."""
        slots = np.arange(self.first_id, self.next_id) % self.capacity_rows
        priorities = np.empty(0) if self._tree is None else self._tree.get(slots)
        counters = [float(self.first_id), float(self.next_id), float(self.draws), self._largest]
        return {"priorities": priorities, "counters": np.array(counters, dtype=np.float64)}

    def restore(self, exported: Mapping[str, NDArray[Any]], shard_rows: Iterable[int]) -> None:
        """Resume as the window that `export` described.

        Args:
            exported: the result of `export`.
            shard_rows: rows of the shards in their order: all shards in the window and none after them.

        Raises:
            ValueError: the shards do not give that window.
        """
        first, following, draws = (int(value) for value in exported["counters"][:3])
        rows = deque(shard_rows)
        start = following - sum(rows)
        while rows and start < first:
            start += rows.popleft()
        kept = exported["priorities"]
        if start != first or not 0 <= following - first <= self.capacity_rows:
            raise ValueError(f"these shards end with rows {start} to {following}, expected {first} to {following}")
        if self._tree is not None and len(kept) != following - first:
            raise ValueError(f"{len(kept)} priorities for {following - first} rows: another window exported them")
        self._shard_rows, self.first_id, self.next_id = rows, first, following
        self.draws, self._largest = draws, float(exported["counters"][3])
        if self._tree is not None:
            self._tree = SumTree(self.capacity_rows)
            self._tree.put(np.arange(first, following) % self.capacity_rows, np.asarray(kept, dtype=np.float64))

    def _leave(self, rows: int) -> None:
        if self._tree is not None:
            slots = np.arange(self.first_id, self.first_id + rows) % self.capacity_rows
            self._tree.put(slots, np.zeros(rows))
        self.first_id += rows

    def _uniform(self, count: int) -> NDArray[np.float64]:
        """Return numbers in [0, 1), keyed by seed and draw, from raw bits, whose stream NumPy never changes."""
        bits = np.random.Philox(np.random.SeedSequence([self._seed, self.draws])).random_raw(count)
        return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _check(priorities: NDArray[np.float64]) -> None:
    if not (np.isfinite(priorities).all() and (priorities >= 0).all()):
        raise ValueError(
            f"priorities from {np.min(priorities)} to {np.max(priorities)}, expected finite ones of at least 0"
        )
