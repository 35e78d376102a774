"""MuJoCo Playground's control suite (Zakka et al. 2025, arXiv 2502.08844) on MJX, as `mjx/<name>`: MuJoCo on JAX.

These are dm_control's tasks as functions. Playground's other families need robots that it would download, and are not
offered. It is an optional extra, imported when such a pool is made.
"""

from __future__ import annotations

import warnings
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.spaces import Box

from penstock.native.pool.arguments import refuse_unknown
from penstock.native.simulators.brax import jax_settings, jax_source

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.native.adapters.vector_env import WrappedSource

PREFIX = "mjx/"

_CHOSEN_HERE = ("impl", "episode_length", "vision")
_OBSERVED = "state"
"""Part that a policy sees where a task observes several; the others are for critics that know more."""


def playground_source(
    env_id: str, num_envs: int, num_threads: int, max_episode_steps: int | None, settings: Mapping[str, Any]
) -> WrappedSource:
    """Return a task as `mjx/CartpoleBalance`; settings are the numbers of its configuration, such as `ctrl_dt`.

    Raises:
        ValueError: Playground is not installed, or no such task, setting or value.
    """
    given = jax_settings(env_id, num_threads, settings)
    suite, name = _suite(env_id)
    config = suite.get_default_config(name)
    offered = _offered(config)
    refuse_unknown(env_id, sorted(given.keys() - offered.keys()), offered)
    for key, value in given.items():
        if type(offered[key]) is float and type(value) is int:
            given[key] = float(value)
        elif type(value) is not type(offered[key]):
            raise ValueError(f"{key} of {env_id} must be {type(offered[key]).__name__}, got {value!r}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its dependencies' own deprecations
            env = suite.load(name, config_overrides={**given, **({"impl": "jax"} if "impl" in config else {})})
    except Exception as error:  # whatever the task's constructor raises
        raise ValueError(f"Playground cannot make {env_id} with {given}: {type(error).__name__}: {error}") from error
    limit = int(config.episode_length) if max_episode_steps is None else max_episode_steps
    ones = np.ones(env.action_size, dtype=np.float32)
    part = _OBSERVED if isinstance(env.observation_size, dict) else None
    return jax_source(env_id, env, num_envs, Box(-ones, ones), None if limit == -1 else limit, part)


def playground_ids() -> list[str]:
    """Return the ids of all tasks; ValueError if Playground is not installed."""
    return [f"{PREFIX}{name}" for name in _imported(PREFIX).ALL_ENVS]


def playground_types(env_id: str) -> dict[str, type | None]:
    """Return the names of a task's settings with their types; ValueError as `playground_source`."""
    suite, name = _suite(env_id)
    return {key: type(value) for key, value in _offered(suite.get_default_config(name)).items()}


def _offered(config: Any) -> dict[str, Any]:
    numbers = {key: value for key, value in config.items() if isinstance(value, (bool, int, float))}
    return {key: value for key, value in numbers.items() if key not in _CHOSEN_HERE}


def _suite(env_id: str) -> tuple[Any, str]:
    """Return the suite and the task's name in it."""
    suite, name = _imported(env_id), env_id.removeprefix(PREFIX)
    if name not in suite.ALL_ENVS:
        near = ", ".join(f"{PREFIX}{match}" for match in get_close_matches(name, suite.ALL_ENVS, n=3))
        raise ValueError(
            f"Playground's control suite has no task {env_id!r}; similar: {near or ', '.join(playground_ids())}"
        )
    return suite, name


def _imported(env_id: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its dependencies' own deprecations
            from mujoco_playground import dm_control_suite  # noqa: PLC0415  (an optional extra)
    except ImportError as error:
        raise ValueError(
            f"{env_id} needs MuJoCo Playground, and importing it failed: {error}. Install it with: pip install "
            f"'penstock-rl[mjx]'"
        ) from error
    return dm_control_suite
