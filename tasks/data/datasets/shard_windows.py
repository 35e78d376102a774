"""Holds the rows of a few shards in memory, of which a dataset takes batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from penstock.storage.errors import ConfigError, SpecMismatchError
from penstock.tasks.data.input.run_selection import NEXT_OBSERVATION, stored_name
from penstock.tasks.model.nn.returns import set_rows, take_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from penstock.tasks.data.input.pipeline import LoadedShard

_COPIED_AT_ONCE_BYTES = 256 << 10  # a kept batch keeps at most this much memory, or its own size
_SHARED_ELEMENTS = 1 << 15  # torch copies fewer on one thread (`at::internal::GRAIN_SIZE`)


class ShardWindow:
    """The rows of a few shards, held together.

    Args:
        loaded: the shards, which the window drops or releases.
        columns: names of columns; None: all stored ones.

    Raises:
        ConfigError: a shard has no column of that name.
        SpecMismatchError: shards have different columns.
    """

    def __init__(self, loaded: list[LoadedShard], columns: Sequence[str] | None) -> None:
        self._loaded = loaded
        shards = [_rows_of(item, columns) for item in loaded]
        self._columns = shards[0]
        if len(shards) > 1:
            refuse_differences([_types(shard) for shard in shards])
            self._columns = concatenated(shards)
            for item in loaded:
                item.drop()
        row_bytes = sum(column.stride(0) * column.element_size() for column in self._columns.values())
        self._rows_at_once = _COPIED_AT_ONCE_BYTES // max(1, row_bytes)
        self._copied: dict[int, dict[str, Tensor]] = {}
        self._next_row = 0
        self.types = _types(self._columns)
        """The dtype and the shape of a row of each column, as text."""

    def rows(self, chosen: Any) -> dict[str, Tensor]:
        """Return copies of a slice of rows, or of rows by number."""
        if not isinstance(chosen, slice):
            return self.part(chosen)
        start, rows = chosen.start, chosen.stop - chosen.start
        copied = self._copied.pop(start, None)
        if copied is None or len(next(iter(copied.values()))) != rows:
            # A sequential reader needs the next rows too: one copy serves several small batches.
            several = max(1, self._rows_at_once // rows) if start == self._next_row else 1
            stretch = slice(start, start + several * rows)
            copies = [_copied([column[stretch]]).split(rows) for column in self._columns.values()]
            self._copied = {
                start + index * rows: dict(zip(self._columns, batch, strict=True))
                for index, batch in enumerate(zip(*copies, strict=True))
            }
            copied = self._copied.pop(start)
        self._next_row = chosen.stop
        return copied

    def part(self, chosen: Any) -> dict[str, Tensor]:
        """Return rows for `concatenated`: a slice of them as views, or copies of rows by number."""
        if isinstance(chosen, slice):
            return {name: column[chosen] for name, column in self._columns.items()}
        index = torch.from_numpy(chosen)
        return {name: take_rows(column, index) for name, column in self._columns.items()}

    def release(self) -> None:
        """Let the shards' memory go."""
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


def concatenated(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the rows of all parts, which have the same columns, one after another in memory of their own."""
    return {name: _copied([part[name] for part in parts]) for name in parts[0]}


def _copied(parts: Sequence[Tensor]) -> Tensor:
    """Return the rows of all parts, one after another in memory of their own.

    Torch would copy many with OpenMP's threads, which spin afterwards, on cores where the pipeline verifies what comes
    next; NumPy takes longer to begin, and asks for large memory in huge pages, which take less time to fill.
    """
    if sum(part.numel() for part in parts) < _SHARED_ELEMENTS:
        return parts[0].clone() if len(parts) == 1 else torch.cat(list(parts))
    arrays = [part.numpy() for part in parts]
    rows, start = np.empty((sum(map(len, arrays)), *arrays[0].shape[1:]), arrays[0].dtype), 0
    for array in arrays:
        np.copyto(rows[start : start + len(array)], array)
        start += len(array)
    return torch.from_numpy(rows)


def _types(columns: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the dtype and the shape of a row of each column, as text."""
    return {name: f"{str(column.dtype)[6:]} {list(column.shape[1:])}" for name, column in columns.items()}


def refuse_differences(parts: Sequence[Mapping[str, str]]) -> None:
    """Raise a SpecMismatchError if parts have different columns, or columns of different types."""
    first = parts[0]
    for part in parts[1:]:
        if part.keys() != first.keys():
            raise SpecMismatchError(
                f"shards of these runs have different columns: {sorted(first)} and {sorted(part)}; name the columns "
                f"that all of them have"
            )
        if wrong := [name for name in first if part[name] != first[name]]:
            raise SpecMismatchError(
                f"shards of these runs have different columns: '{wrong[0]}' is {first[wrong[0]]} in one and "
                f"{part[wrong[0]]} in another; name columns that all of them share, or read the runs apart"
            )
