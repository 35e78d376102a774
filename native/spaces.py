"""Gymnasium's spaces of an environment, from its description."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete

if TYPE_CHECKING:
    from gymnasium.spaces import Space

    from native._core import Description


def observation_space_of(described: Description) -> Box:
    """Of one environment."""
    dtype = described["observation_dtype"].type
    low, high = (described[bound].astype(dtype) for bound in ("observation_low", "observation_high"))
    return Box(low, high, dtype=dtype)


def action_space_of(described: Description) -> tuple[Space[Any], dict[str, Any]]:
    """Of one environment; and the same as plain data."""
    count, shape = described["action_count"], described["action_shape"]
    if count == 0:
        low, high = described["action_low"], described["action_high"]
        bounds = {"low": low.tolist(), "high": high.tolist()}
        return Box(low, high, dtype=np.float32), {"kind": "box", "dtype": "float32", "shape": shape, **bounds}
    space = MultiDiscrete(np.full(shape, count)) if shape else Discrete(count)
    return space, {"kind": "discrete", "dtype": "int64", "shape": shape, "n": count}
