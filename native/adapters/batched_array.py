"""Encodes a whole batch of dictionaries, choices or arrays as one array, as FlattenObservation does it row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, Space

from penstock.native.adapters.one_array import MASK, PLAIN, Encoding, encoding, masked_encoding


class BatchedArray:
    """The encoder of a space's batches; a single array with dimensions and without a mask stays as it is.

    Raises:
        ValueError: two leaves of a structured observation have one name; or there can be no such mask.
    """

    def __init__(self, space: Space[Any], actions: Space[Any] | None = None, asked: Encoding = PLAIN) -> None:
        self._mask_is_inside = asked.action_mask == "observation"
        self._is_plain = not asked.action_mask and isinstance(space, (Box, MultiBinary)) and bool(space.shape)
        self._key: str | None = None
        self.space: Any = space
        """The space of one row."""
        if asked.action_mask:
            assert actions is not None
            masked, self.space = masked_encoding(space, actions, asked.action_mask, structured=asked.structured)
            space, self._key = masked.rest.space, masked.key
        elif not self._is_plain:
            self.space = encoding(space, structured=asked.structured)[1]
        self._observed, self._dtype = space, self.space.dtype
        of_vectors = isinstance(space, Dict) and all(_is_vector(part) for part in space.spaces.values())
        self._names = [*space.spaces] if isinstance(space, Dict) and of_vectors else None
        """The parts behind the mask, if each is a vector as it is."""

    @staticmethod
    def can_encode(space: Space[Any]) -> bool:
        """Return whether all of a space's leaves are arrays of numbers of one shape, or choices."""
        if isinstance(space, Dict):
            return all(BatchedArray.can_encode(part) for part in space.spaces.values())
        return isinstance(space, (Box, Discrete, MultiBinary))

    def __call__(self, batch: Any, out: Any = None, mask: Any = None) -> Any:
        """Encode a batch: `[num_envs, ...]` arrays, or dictionaries of these; into `out` if it is given.

        `mask` is that of a batch that it is not a part of.
        """
        if not self._is_plain:
            named, rest = self._names, batch if self._key is None else batch[self._key]
            parts = _parts(self._observed, rest) if named is None else [rest[name] for name in named]
            if self._mask_is_inside:
                mask = batch[MASK]
            if mask is not None:
                parts.insert(0, np.asarray(mask).reshape(len(mask), -1))
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
