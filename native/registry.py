"""Making pools by name. Everything that a caller can get wrong is said here, with what would be right."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from gymnasium.vector import AutoresetMode

from native import _core
from native.configuration import configuration
from native.pool import Pool
from native.rendered import RenderedPool

if TYPE_CHECKING:
    from collections.abc import Callable

before_refusing: list[Callable[[], object]] = []
"""Called when an id is not known, before that is said: by then they may have loaded it."""


def make(
    id: str,  # noqa: A002
    num_envs: int,
    num_threads: int = 1,
    max_episode_steps: int | None = None,
    autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    *,
    record_episode_statistics: bool = False,
    render_mode: str | None = None,
    thread_affinity: bool = False,
    **config: Any,
) -> Pool:
    """Make a pool of `num_envs` environments.

    Args:
        id: One of `environment_ids()`.
        num_envs: How many; row b of every array is environment b.
        num_threads: Threads that step, the caller's included. Results are the same for any number.
        max_episode_steps: Truncates episodes; None takes the environment's own limit, -1 means that there is none.
        autoreset_mode: What follows the end of an episode in `step`, as `gymnasium.vector.AutoresetMode`.
        record_episode_statistics: Whether infos carry `episode` where an episode ended, as Gymnasium's wrapper
            RecordEpisodeStatistics: return `r`, length `l`, seconds `t`.
        render_mode: 'rgb_array' for a pool that can `render`, where Gymnasium can draw the environment.
        thread_affinity: Whether each thread but the caller's stays on one of the CPUs that the process may use.
        config: Fields of the environment's configuration, as one value or one for each environment.

    Raises:
        ValueError: An unknown id or field (the message lists those that exist), or a value that cannot be.
    """
    if id not in _core.environment_ids():
        for bring_more in before_refusing:
            bring_more()
    if id not in _core.environment_ids():
        raise ValueError(f"no environment is called {id!r}; there are: {', '.join(_core.environment_ids())}")
    num_envs = _at_least_one("num_envs", num_envs)
    num_threads = _at_least_one("num_threads", num_threads)
    if max_episode_steps not in {None, -1}:
        max_episode_steps = _at_least_one("max_episode_steps", max_episode_steps)
    values = configuration(id, config, _core.describe(id)["config"], num_envs)
    mode = _autoreset_mode(autoreset_mode)
    if render_mode is None:
        return Pool(
            id,
            num_envs,
            num_threads,
            max_episode_steps,
            mode,
            values,
            record_episode_statistics=record_episode_statistics,
            thread_affinity=thread_affinity,
        )
    return RenderedPool(
        id,
        num_envs,
        num_threads,
        max_episode_steps,
        mode,
        values,
        record_episode_statistics=record_episode_statistics,
        render_mode=render_mode,
        thread_affinity=thread_affinity,
    )


def _autoreset_mode(value: AutoresetMode | str) -> AutoresetMode:
    try:
        return AutoresetMode(value)
    except ValueError:
        expected = ", ".join(repr(mode.value) for mode in AutoresetMode)
        raise ValueError(f"autoreset_mode is {value!r}, expected an AutoresetMode or one of {expected}") from None


def _at_least_one(name: str, value: Any) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be an integer of at least 1, got {value!r}") from None
    if isinstance(value, bool) or number < 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
    return number
