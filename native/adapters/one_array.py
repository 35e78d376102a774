"""Encodes observations as one array of numbers: choices as one-hot, tuples and dictionaries flattened.

What Gymnasium's FlattenObservation does, with float32 in place of integers, since rounds and networks hold those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.spaces import Box, MultiBinary, MultiDiscrete
from gymnasium.spaces.utils import flatten, flatten_space
from gymnasium.wrappers import TransformObservation

if TYPE_CHECKING:
    import gymnasium
    from gymnasium.spaces import Space


def is_one_array(space: Space[Any]) -> bool:
    """Return whether observations are arrays of numbers with at least one dimension."""
    return isinstance(space, (Box, MultiBinary, MultiDiscrete)) and bool(space.shape)


def as_one_array(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """Return the environment, wrapped unless it observes one array; one that can't be encoded stays as it is."""
    space = env.observation_space
    if is_one_array(space) or not space.is_np_flattenable:
        return env
    flat = flatten_space(space)
    if not isinstance(flat, Box):
        return env
    dtype = flat.dtype if np.issubdtype(flat.dtype, np.floating) else np.dtype(np.float32)
    low, high = flat.low.astype(dtype), flat.high.astype(dtype)

    def encode(observation: Any) -> Any:
        return flatten(space, observation).astype(dtype)  # type: ignore[union-attr]

    return TransformObservation(env, encode, Box(low, high, dtype=dtype.type))
