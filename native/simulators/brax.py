"""Brax's environments (Freeman et al. 2021, arXiv 2106.13281) on JAX, as `brax/<name>`, with a backend as a setting.

Episodes are limited to 1,000 steps unless told otherwise, as Brax's own training does it. Brax is an optional extra,
imported when such a pool is made.
"""

from __future__ import annotations

import inspect
import warnings
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode

from penstock.native.adapters.vector_env import WrappedSource
from penstock.native.pool.arguments import refuse_unknown
from penstock.native.simulators.array_vector import ArrayVector
from penstock.native.simulators.jax_program import JaxProgram

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gymnasium.vector import VectorEnv

PREFIX = "brax/"
BACKENDS = ("generalized", "spring", "positional", "mjx")
_LIMIT = 1000
_OF_NO_USE = ("fast",)
"""Environments of Brax's own tests."""


def brax_source(
    env_id: str, num_envs: int, num_threads: int, max_episode_steps: int | None, settings: Mapping[str, Any]
) -> WrappedSource:
    """Return an environment as `brax/inverted_pendulum`, with its constructor's arguments and `backend` as settings.

    Raises:
        ValueError: Brax is not installed, or no such environment, setting or backend.
    """
    given = jax_settings(env_id, num_threads, settings)
    constructor = _constructor(env_id)
    offered = brax_types(env_id)
    refuse_unknown(env_id, sorted(given.keys() - offered.keys()), list(offered))
    if given.get("backend", BACKENDS[0]) not in BACKENDS:
        raise ValueError(f"backend is {given['backend']!r}, expected one of {', '.join(map(repr, BACKENDS))}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of Brax: it is maintained no more
            env = constructor(**given)
    except Exception as error:  # whatever the environment's constructor raises
        raise ValueError(f"Brax cannot make {env_id} with {given}: {type(error).__name__}: {error}") from error
    limit = _LIMIT if max_episode_steps is None else max_episode_steps
    low, high = np.asarray(env.sys.actuator.ctrl_range, dtype=np.float32).T
    return jax_source(env_id, env, num_envs, Box(low, high), None if limit == -1 else limit)


def brax_ids() -> list[str]:
    """Return the ids of all environments; ValueError if Brax is not installed."""
    return [f"{PREFIX}{name}" for name in _all(PREFIX) if name not in _OF_NO_USE]


def brax_types(env_id: str) -> dict[str, type | None]:
    """Return the names of an environment's settings with the types of their defaults; ValueError as `brax_source`."""
    found = inspect.signature(_constructor(env_id)).parameters.values()
    named = {one.name: one.default for one in found if one.kind in {one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY}}
    plain = (bool, int, float, str)
    return {name: type(value) if type(value) in plain else None for name, value in named.items()} | {"backend": str}


def jax_settings(env_id: str, num_threads: int, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of an environment on JAX; raises ValueError if it is to have threads or to be drawn."""
    if num_threads != 1:
        raise ValueError(f"{env_id} is stepped by JAX, which chooses its threads: leave num_threads at 1")
    if settings.get("render_mode") is not None:
        raise ValueError(f"{env_id} can't be drawn here: leave render_mode out")
    return {name: value for name, value in settings.items() if name != "render_mode"}


def jax_source(
    env_id: str, env: Any, num_envs: int, action_space: Box, limit: int | None, key: str | None = None
) -> WrappedSource:
    """Return the source of a functional environment; `key` names the part to observe where there are several."""
    program = JaxProgram(env, num_envs, lambda seen: seen if key is None else seen[key])

    def build(mode: AutoresetMode) -> VectorEnv[Any, Any, Any]:
        if mode == AutoresetMode.DISABLED:
            raise ValueError(f"{env_id}: autoreset_mode is NextStep or SameStep, got Disabled")
        return ArrayVector(program, action_space, mode, limit)

    return WrappedSource(env_id, build, limit, None)


def _constructor(env_id: str) -> Any:
    known, name = _all(env_id), env_id.removeprefix(PREFIX)
    if name not in known or name in _OF_NO_USE:
        near = ", ".join(f"{PREFIX}{match}" for match in get_close_matches(name, known, n=3))
        raise ValueError(f"Brax has no environment {env_id!r}; similar: {near or ', '.join(brax_ids())}")
    return known[name]


def _all(env_id: str) -> dict[str, Any]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of its dependencies
            from brax import envs  # noqa: PLC0415  (an optional extra)
    except ImportError as error:
        raise ValueError(
            f"{env_id} needs Brax, and importing it failed: {error}. Install it with: pip install 'penstock-rl[brax]'"
        ) from error
    return dict(envs._envs)  # noqa: SLF001  (Brax lists them nowhere else)
