"""Gymnasium's MuJoCo tasks stepped by mujoco_warp, as `warp/HalfCheetah-v5`: one batch of worlds in Warp.

On Warp's CPU device alone, where it is for trying: MuJoCo itself is much faster there. An optional extra, imported when
such a pool is made.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode

from penstock.native.adapters.vector_env import WrappedSource
from penstock.native.simulators.array_vector import ArrayVector
from penstock.native.simulators.warp_program import WarpProgram
from penstock.native.simulators.warp_tasks import tasks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gymnasium.vector import VectorEnv

PREFIX = "warp/"


def warp_source(
    env_id: str, num_envs: int, num_threads: int, max_episode_steps: int | None, settings: Mapping[str, Any]
) -> WrappedSource:
    """Return a task as `warp/InvertedPendulum-v5`, which has no settings.

    Raises:
        ValueError: mujoco_warp is not installed or can't take the model, no such task, or a setting.
    """
    if num_threads != 1:
        raise ValueError(f"{env_id} is stepped by Warp, which uses one thread: leave num_threads at 1")
    if settings:
        raise ValueError(f"{env_id} has no settings, got {', '.join(sorted(settings))}; leave them out")
    task = tasks().get(env_id.removeprefix(PREFIX))
    if task is None:
        near = ", ".join(get_close_matches(env_id, _known(), n=3)) or ", ".join(_known())
        raise ValueError(f"there is no task {env_id!r} on Warp; there are: {near}")
    try:
        program = WarpProgram(task, num_envs)
    except ImportError as error:
        raise _missing(env_id, error) from error
    except Exception as error:  # whatever mujoco_warp says of a model
        raise ValueError(f"mujoco_warp cannot make {env_id}: {type(error).__name__}: {error}") from error
    limit = task.max_episode_steps if max_episode_steps is None else max_episode_steps
    low, high = program.control_range.T

    def build(mode: AutoresetMode) -> VectorEnv[Any, Any, Any]:
        if mode == AutoresetMode.DISABLED:
            raise ValueError(f"{env_id}: autoreset_mode is NextStep or SameStep, got Disabled")
        return ArrayVector(program, Box(low, high), mode, None if limit == -1 else limit)

    return WrappedSource(env_id, build, None if limit == -1 else limit, task.reward_threshold)


def warp_ids() -> list[str]:
    """Return the ids of all tasks; ValueError if mujoco_warp is not installed."""
    try:
        import mujoco_warp  # noqa: F401, PLC0415  (an optional extra)
    except ImportError as error:
        raise _missing(PREFIX, error) from error
    return _known()


def _known() -> list[str]:
    return [f"{PREFIX}{name}" for name in tasks()]


def _missing(env_id: str, error: ImportError) -> ValueError:
    return ValueError(
        f"{env_id} needs mujoco_warp, and importing it failed: {error}. Install it with: pip install "
        f"'penstock-rl[warp]'"
    )
