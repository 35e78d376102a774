"""Encodes a whole batch of dictionaries, choices or arrays as one array, as FlattenObservation does it row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, Space
from gymnasium.spaces.utils import flatten_space


class BatchedArray:
    """The encoder of a space's batches; a single array with dimensions stays as it is."""

    def __init__(self, space: Space[Any]) -> None:
        self._observed = space
        self._is_plain = isinstance(space, (Box, MultiBinary)) and bool(space.shape)
        flat: Any = space if self._is_plain else flatten_space(space)
        self._dtype = flat.dtype if np.issubdtype(flat.dtype, np.floating) else np.dtype(np.float32)
        low, high = (None, None) if self._is_plain else (flat.low.astype(self._dtype), flat.high.astype(self._dtype))
        self.space: Any = flat if low is None or high is None else Box(low, high, dtype=self._dtype.type)
        """The space of one row."""
        of_vectors = isinstance(space, Dict) and all(_is_vector(part) for part in space.spaces.values())
        self._names = [*space.spaces] if isinstance(space, Dict) and of_vectors else None
        """The parts, if each is a vector as it is."""

    @staticmethod
    def can_encode(space: Space[Any]) -> bool:
        """Return whether all of a space's leaves are arrays of numbers of one shape, or choices."""
        if isinstance(space, Dict):
            return all(BatchedArray.can_encode(part) for part in space.spaces.values())
        return isinstance(space, (Box, Discrete, MultiBinary))

    def __call__(self, batch: Any, out: Any = None) -> Any:
        """Encode a batch: `[num_envs, ...]` arrays, or dictionaries of these; into `out` if it is given."""
        if not self._is_plain:
            named = self._names
            parts = _parts(self._observed, batch) if named is None else [batch[name] for name in named]
            if out is None:
                return np.concatenate(parts, axis=1, dtype=self._dtype, casting="unsafe")
            return np.concatenate(parts, axis=1, out=out, casting="unsafe")
        if out is None:
            return batch
        out[...] = batch
        return out


def with_true_bounds(space: Space[Any]) -> Space[Any]:
    """Return a space whose unbounded numbers say so: EnvPool's begin at the smallest positive float in some tasks."""
    if isinstance(space, Dict):
        return Dict({name: with_true_bounds(part) for name, part in space.spaces.items()})
    if not isinstance(space, Box) or not np.issubdtype(space.dtype, np.floating):
        return space
    limits = np.finfo(space.dtype)
    wrong = (space.low == limits.tiny) & (space.high == limits.max)
    if not wrong.any():
        return space
    low, high = np.where(wrong, -np.inf, space.low), np.where(wrong, np.inf, space.high)
    return Box(low.astype(space.dtype), high.astype(space.dtype), dtype=space.dtype.type)


def _is_vector(space: Space[Any]) -> bool:
    return isinstance(space, (Box, MultiBinary)) and len(space.shape) == 1


def _parts(space: Space[Any], batch: Any) -> list[Any]:
    if isinstance(space, Dict):
        return [part for name, inner in space.spaces.items() for part in _parts(inner, batch[name])]
    if isinstance(space, Discrete):
        return [np.asarray(batch)[:, None] == np.arange(space.start, space.start + space.n)]
    return [np.asarray(batch).reshape(len(batch), -1)]
