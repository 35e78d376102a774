"""Gymnasium's spaces of an environment, from its description."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.envs.registration import ENV_ID_RE, EnvSpec
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from penstock.native.interface import ActionFormat

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gymnasium.spaces import Space

    from penstock.native._core import Description
    from penstock.native.interface import EnvironmentSpec


def observation_space_of(described: Description) -> Box:
    """Return the observation space of one environment."""
    dtype = described["observation_dtype"].type
    low, high = (described[bound].astype(dtype) for bound in ("observation_low", "observation_high"))
    return Box(low, high, dtype=dtype)


def action_space_of(described: Description) -> tuple[Space[Any], ActionFormat]:
    """Return the action space of one environment, and the same as plain data."""
    count, shape = described["action_count"], described["action_shape"]
    if count == 0:
        low, high = described["action_low"], described["action_high"]
        action = ActionFormat(kind="box", dtype="float32", shape=shape, low=low.tolist(), high=high.tolist())
        return Box(low, high, dtype=np.float32), action
    space = MultiDiscrete(np.full(shape, count)) if shape else Discrete(count)
    return space, {"kind": "discrete", "dtype": "int64", "shape": shape, "n": count}


SINGLE_ENTRY_POINT = "penstock.native.registry.gymnasium_ids:make_single"
VECTOR_ENTRY_POINT = "penstock.native.registry.gymnasium_ids:make_vector"


def gymnasium_id(environment_id: str) -> str:
    """Return the id in Gymnasium's registry: in the namespace `penstock`, unless the id has a namespace of its own."""
    return environment_id if "/" in environment_id else f"penstock/{environment_id}"


def single_spec(
    environment: EnvironmentSpec, limit: int | None, config: Mapping[str, object], **kwargs: Any
) -> EnvSpec | None:
    """Return the spec of one environment. Gymnasium's `make` wraps its time limit around an unlimited environment."""
    return _spec(environment, limit, {**config, **kwargs})


def vector_spec(
    environment: EnvironmentSpec, limit: int | None, config: Mapping[str, object], **kwargs: Any
) -> EnvSpec | None:
    """Return the JSON-able spec of a pool, from which `gymnasium.make_vec` makes it again."""
    unlimited = {} if limit is not None else {"max_episode_steps": -1}
    return _spec(environment, limit, {**config, **kwargs, **unlimited, "vectorization_mode": "vector_entry_point"})


def _spec(environment: EnvironmentSpec, limit: int | None, kwargs: Mapping[str, object]) -> EnvSpec | None:
    name = gymnasium_id(environment["id"])
    if not ENV_ID_RE.fullmatch(name):  # a library may call its environment as it likes
        return None
    return EnvSpec(
        id=name,
        entry_point=SINGLE_ENTRY_POINT,
        reward_threshold=environment["reward_threshold"],
        max_episode_steps=limit,
        kwargs={"environment_id": environment["id"], **kwargs},
        vector_entry_point=VECTOR_ENTRY_POINT,
    )
