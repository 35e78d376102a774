"""Rows of stored shards by global id, through shards that were read last, within a budget of bytes."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from storage.refs import ShardRef


class StoredRows:
    """Gathers rows of many shards, of which it holds as many as the budget allows, those used last.

    Args:
        load: gives a shard's columns, `[rows, ...]` by name; called in the thread that gathers.
        budget_bytes: of columns that are held. A shard that is larger is read, used and let go.

    Attributes:
        held_bytes: now.
        peak_held_bytes: at most.
        reads: shards loaded.
        hits: times that a shard was there.
    """

    def __init__(self, load: Callable[[ShardRef], Mapping[str, NDArray[Any]]], budget_bytes: int) -> None:
        if budget_bytes < 1:
            raise ValueError(f"budget_bytes is {budget_bytes}, expected 1 or more")
        self._load = load
        self._budget_bytes = budget_bytes
        self._refs: list[ShardRef] = []
        self._starts: list[int] = []
        self._held: OrderedDict[int, tuple[Mapping[str, NDArray[Any]], int]] = OrderedDict()
        self.rows = 0
        self.held_bytes = 0
        self.peak_held_bytes = 0
        self.reads = 0
        self.hits = 0

    def extend(self, refs: Iterable[ShardRef]) -> None:
        """Number the rows of further shards."""
        for ref in refs:
            self._refs.append(ref)
            self._starts.append(self.rows)
            self.rows += ref.rows

    def gather(self, ids: NDArray[np.int64], columns: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Columns `[n, ...]` of rows by global id `[n]`, in that order; each shard is looked at once.

        Raises:
            IndexError: there is no such row.
            CorruptObjectError: a shard was altered, as `load` says.
        """
        if not len(ids):
            raise IndexError("no rows were asked for, expected at least one id")
        if ids.min() < 0 or ids.max() >= self.rows:
            raise IndexError(f"rows {ids.min()} to {ids.max()}, expected 0 to {self.rows - 1}")
        order = np.argsort(ids, kind="stable")
        ordered = ids[order]
        found: dict[str, NDArray[Any]] = {}
        done = 0
        while done < len(ordered):
            index = bisect_right(self._starts, int(ordered[done])) - 1
            start = self._starts[index]
            end = int(np.searchsorted(ordered, start + self._refs[index].rows))
            values = self._columns(index)
            for name in columns:
                if name not in found:
                    found[name] = np.empty((len(ids), *values[name].shape[1:]), values[name].dtype)
                found[name][order[done:end]] = values[name][ordered[done:end] - start]
            done = end
        return found

    def _columns(self, index: int) -> Mapping[str, NDArray[Any]]:
        held = self._held.get(index)
        if held is not None:
            self._held.move_to_end(index)
            self.hits += 1
            return held[0]
        ref = self._refs[index]
        # Room is made first: while it is read, a shard is in memory too.
        while self._held and self.held_bytes + ref.nbytes > self._budget_bytes:
            self.held_bytes -= self._held.popitem(last=False)[1][1]
        values = self._load(ref)
        self.reads += 1
        nbytes = max(ref.nbytes, sum(value.nbytes for value in values.values()))
        while self._held and self.held_bytes + nbytes > self._budget_bytes:
            self.held_bytes -= self._held.popitem(last=False)[1][1]
        self.peak_held_bytes = max(self.peak_held_bytes, self.held_bytes + nbytes)
        if nbytes <= self._budget_bytes:
            self._held[index] = (values, nbytes)
            self.held_bytes += nbytes
        return values
