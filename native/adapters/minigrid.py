"""MiniGrid and BabyAI (Chevalier-Boisvert et al. 2023, arXiv 2306.13831): Gymnasium's ids, seen as an image of cells.

An observation is a dictionary with the agent's view, its direction and a mission in words. No network here reads words:
MiniGrid's own ImgObsWrapper leaves the view alone, uint8 [width, height, 3] of kinds, colours and states of cells,
unless a wrapper before it has made something else of the dictionary. Structured observations keep all but the words.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium
from gymnasium.spaces import Dict
from gymnasium.wrappers import FilterObservation

from penstock.native.adapters.gymnasium import OF_MAKE_VEC, gymnasium_source, gymnasium_types
from penstock.native.adapters.one_array import MASK, PLAIN, Encoding
from penstock.native.pool.arguments import similar_ids, where_to_look

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.native.adapters.vector_env import WrappedSource

PREFIX = "minigrid/"

_MISSION, _IMAGE = "mission", "image"


def minigrid_source(
    env_id: str,
    num_envs: int,
    num_threads: int,
    max_episode_steps: int | None,
    settings: Mapping[str, Any],
    encoding: Encoding = PLAIN,
) -> WrappedSource:
    """Return a task as `minigrid/MiniGrid-Empty-5x5-v0`, with the settings of `gymnasium_source`.

    An environment truncates its episodes by itself, after `max_steps`, from which it makes its rewards too; BabyAI's
    depends on the mission. `max_episode_steps` is another limit, and leaves that one as it is.

    Raises:
        ValueError: MiniGrid is not installed, or as `gymnasium_source`.
    """
    name = _registered(env_id)
    made = gymnasium_source(
        name,
        num_envs,
        num_threads,
        max_episode_steps,
        settings,
        encoding=encoding,
        last_wrappers=(partial(without_mission, encoding=encoding),),
    )
    if made.max_episode_steps is None and (limit := _steps_of(name, settings)):
        return replace(made, id=env_id, max_episode_steps=limit)
    return replace(made, id=env_id)


def minigrid_ids() -> list[str]:
    """Return the ids of all tasks; ValueError if MiniGrid is not installed."""
    _import(PREFIX)
    return [f"{PREFIX}{name}" for name, spec in gymnasium.registry.items() if _is_of_minigrid(spec.entry_point)]


def minigrid_types(env_id: str) -> dict[str, type | None]:
    """Return the names and types of a task's settings; ValueError if MiniGrid is not installed."""
    return gymnasium_types(_registered(env_id))


def without_mission(env: gymnasium.Env[Any, Any], encoding: Encoding = PLAIN) -> gymnasium.Env[Any, Any]:
    """Return the environment with its view alone, if it still observes a mission.

    A mask of choices that a wrapper has put among the observations stays, where it is asked for. Structured
    observations lose the words alone; a mission that a wrapper has turned into numbers stays there.
    """
    from minigrid.core.mission import MissionSpace  # noqa: PLC0415  (an optional extra)
    from minigrid.wrappers import ImgObsWrapper  # noqa: PLC0415

    space = env.observation_space
    if not (isinstance(space, Dict) and _MISSION in space.spaces and _IMAGE in space.spaces):
        return env
    if encoding.structured:
        return FilterObservation(env, [key for key, part in space.spaces.items() if not isinstance(part, MissionSpace)])
    if encoding.action_mask == "observation" and MASK in space.spaces:
        return FilterObservation(env, [_IMAGE, MASK])
    view: gymnasium.Env[Any, Any] = ImgObsWrapper(env)
    return view


def _registered(env_id: str) -> str:
    """Return the id in Gymnasium's registry."""
    _import(env_id)
    name = env_id.removeprefix(PREFIX)
    if name not in gymnasium.registry or not _is_of_minigrid(gymnasium.spec(name).entry_point):
        near = (f"{PREFIX}{other}" for other in similar_ids(name, (one.removeprefix(PREFIX) for one in minigrid_ids())))
        raise ValueError(f"MiniGrid has no environment {env_id!r}{where_to_look(near, PREFIX)}")
    return name


def _steps_of(name: str, settings: Mapping[str, Any]) -> int:
    """Return the steps after which the environment truncates an episode, 0 if only an episode has a number."""
    if isinstance(given := settings.get("max_steps"), int):
        return given
    own = {key: value for key, value in settings.items() if key not in OF_MAKE_VEC}
    with gymnasium.make(name, disable_env_checker=True, **own) as env:
        limit: int = env.get_wrapper_attr("max_steps")
    return limit


def _is_of_minigrid(entry_point: object) -> bool:
    return str(entry_point).partition(":")[0].partition(".")[0] == "minigrid"


def _import(env_id: str) -> None:
    try:
        import minigrid  # noqa: F401, PLC0415  (it registers its ids)
    except ImportError as error:
        raise ValueError(
            f"{env_id} needs MiniGrid, and importing it failed: {error}. Install it with: pip install "
            f"'penstock-rl[minigrid]'"
        ) from error
