"""Adapts every other environment in Gymnasium's registry, stepped by one of Gymnasium's vectorisers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium
from gymnasium.vector import AutoresetMode

from penstock.native import _core
from penstock.native.adapters.keywords import check_keywords, keywords_of, suggestion, type_of
from penstock.native.adapters.one_array import PLAIN, Encoding, as_one_array
from penstock.native.adapters.vector_env import WrappedSource
from penstock.native.pool.arguments import similar_ids, where_to_look

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from inspect import Parameter

    from gymnasium.envs.registration import EnvSpec
    from gymnasium.vector import VectorEnv

    Wrapper = Callable[[gymnasium.Env[Any, Any]], gymnasium.Env[Any, Any]]

PREFIX = "gymnasium/"
MODES = ("sync", "async", "vector_entry_point")
OF_MAKE_VEC = ("vectorization_mode", "vector_kwargs", "wrappers", "render_mode", "max_episode_steps")
"""Settings of `gymnasium.make_vec`, and no keyword arguments of an environment's class."""


def gymnasium_knows(env_id: str) -> bool:
    """Return whether Gymnasium's registry has the id; `module:id` imports the module first, as Gymnasium does."""
    module, colon, _ = env_id.partition(":")
    return (bool(colon) and "/" not in module) or env_id in gymnasium.registry


def registered_ids() -> list[str]:
    """Return the ids of Gymnasium's registry, as `make` takes them."""
    return [f"{PREFIX}{name}" for name in gymnasium.registry]


def gymnasium_source(
    env_id: str,
    num_envs: int,
    num_threads: int,
    max_episode_steps: int | None,
    settings: Mapping[str, Any],
    *,
    encoding: Encoding = PLAIN,
    own_wrappers: tuple[Wrapper, ...] = (),
    last_wrappers: tuple[Wrapper, ...] = (),
) -> WrappedSource:
    """Return an environment by its id in Gymnasium's registry.

    `vectorization_mode` is 'sync' (the default: one after the other), 'async' (a process each) or 'vector_entry_point'
    (the vector environment that the id brings). It, `vector_kwargs` and `wrappers` are those of `gymnasium.make_vec`;
    with `encoding.one_array` observations that are none (Discrete, Tuple, Dict) are encoded as one, where `sync` or
    `async` make the environments. Other settings go to the environment. An adapter's `own_wrappers` come before the
    setting's, and `last_wrappers` after them. A pool with the setting's, which may keep something over episodes
    (running means), makes new environments whenever it is seeded by ids.

    Raises:
        ValueError: No such id, mode, setting or value, or something that the environment needs is not installed.
    """
    if num_threads != 1:
        raise ValueError(
            f"{env_id} is stepped by Gymnasium, which has no threads: leave num_threads at 1, or choose "
            f"vectorization_mode='async' for a process each"
        )
    spec = _spec(env_id)
    own = spec.kwargs.get("environment_id") if spec.namespace == "penstock" else None
    if own in _core.environment_ids() and _core.describe(own)["agents"]:
        raise ValueError(f"{env_id} has a reward for each of its agents, and ids of Gymnasium have one: make {own!r}")
    own_only = spec.entry_point is None and spec.vector_entry_point is not None
    values = dict(settings)
    keywords = keywords_of(spec)
    check_keywords(spec.id, keywords, {name: value for name, value in values.items() if name not in OF_MAKE_VEC})
    mode = values.pop("vectorization_mode", "vector_entry_point" if own_only else "sync")
    if mode not in MODES:
        raise ValueError(f"vectorization_mode is {mode!r}, expected one of {', '.join(map(repr, MODES))}")
    if max_episode_steps is not None:
        values["max_episode_steps"] = max_episode_steps
    asked = tuple(values.pop("wrappers", ()))
    if asked and mode == "vector_entry_point":
        raise ValueError(
            f"wrappers ({', '.join(map(repr, asked))}) go around single environments, and the vector environment that "
            f"{env_id} brings has none; choose vectorization_mode='sync' or 'async', or leave the wrappers out"
        )
    encode = partial(as_one_array, structured=encoding.structured, action_mask=encoding.action_mask)
    wrappers = (*own_wrappers, *asked, *last_wrappers, *((encode,) if encoding.one_array else ()))

    def build(autoreset_mode: AutoresetMode) -> VectorEnv[Any, Any, Any]:
        arguments = dict(values)
        if mode != "vector_entry_point":
            arguments["vector_kwargs"] = dict(values.get("vector_kwargs", {})) | {"autoreset_mode": autoreset_mode}
            if wrappers:
                arguments["wrappers"] = wrappers
        try:
            made = gymnasium.make_vec(env_id, num_envs, vectorization_mode=mode, **arguments)
        except Exception as error:  # whatever the environment's constructor raises
            raise ValueError(
                f"Gymnasium cannot make {env_id} with {values}: {_reason(error, keywords, values)}"
            ) from error
        _require_reset(made, env_id, autoreset_mode, own_only=own_only)
        return made

    limit = spec.max_episode_steps if max_episode_steps is None else max_episode_steps
    return WrappedSource(
        env_id, build, None if limit == -1 else limit, spec.reward_threshold, outlives_seeds=bool(asked)
    )


def _reason(error: Exception, keywords: Mapping[str, Parameter], values: Mapping[str, Any]) -> str:
    """Return the text of a constructor's error, with the keyword that may have been meant."""
    given = {name: value for name, value in values.items() if name not in OF_MAKE_VEC}
    hint = suggestion(keywords, given) if isinstance(error, TypeError) else ""
    plain = isinstance(error, (gymnasium.error.Error, ImportError, OSError, TypeError, ValueError))
    said = str(error) if plain else f"{type(error).__name__}: {error}"
    return f"{said}{hint}"


def _require_reset(
    made: VectorEnv[Any, Any, Any], env_id: str, autoreset_mode: AutoresetMode, *, own_only: bool
) -> None:
    """Close a vector environment that resets otherwise, and raise ValueError.

    Args:
        made: the vector environment.
        env_id: its id.
        autoreset_mode: expected of it.
        own_only: whether no other vectoriser can make environments of that id.
    """
    found = made.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
    if found != autoreset_mode:
        made.close()
        instead = (
            "have it reset so, and its metadata say it" if own_only else "choose vectorization_mode='sync' or 'async'"
        )
        raise ValueError(
            f"the vector environment that {env_id} brings resets as {found.value}, and {autoreset_mode.value} is "
            f"needed; {instead}"
        )


def gymnasium_types(env_id: str) -> dict[str, type | None]:
    """Return the names of an environment's keyword arguments, with bool, int, float or str where they must be one.

    Raises:
        ValueError: No such id.
    """
    return {name: type_of(keyword) for name, keyword in keywords_of(_spec(env_id.removeprefix(PREFIX))).items()}


def _import(module: str) -> None:
    try:
        __import__(module)
    except ImportError:
        raise
    except Exception as error:  # a user's module may raise anything
        raise ValueError(f"importing {module} failed: {type(error).__name__}: {error}; correct the module") from error


def _spec(env_id: str) -> EnvSpec:
    module, _, name = env_id.rpartition(":")
    try:
        if module:
            _import(module)
        return gymnasium.spec(name)
    except ImportError as error:
        raise ValueError(
            f"Gymnasium has no environment {env_id!r}: {error}; install the package that has it, or name its folder in "
            f"PYTHONPATH, here and where the workers start"
        ) from error
    except gymnasium.error.Error as error:
        said = str(error).removesuffix(".")
        near = similar_ids(name, gymnasium.registry)
        if not module:
            raise ValueError(f"Gymnasium has no environment {env_id!r}: {said}{where_to_look(near)}") from error
        similar = f"; similar: {', '.join(f'{module}:{each}' for each in near)}" if near else ""
        raise ValueError(
            f"Gymnasium has no environment {env_id!r}: {said}; after the colon goes an id that {module} registers "
            f"(gymnasium.register), not the name of a class{similar}"
        ) from error
