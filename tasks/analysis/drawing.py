"""Draws a run's environment, by its renderer or as its observation where that is a picture."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import AutoresetMode

from penstock.storage.errors import ConfigError
from penstock.tasks.environments.factory import make_pool

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from penstock.tasks.setup.config.run import RunConfig

_LEAST_SIDE_PIXELS = 32


def drawn_pool(config: RunConfig, env: int = 0) -> tuple[Any, Callable[[], NDArray[np.uint8]]]:
    """Return a pool of one environment and its renderer: the environment's, or its observation if that is a picture.

    Args:
        config: of the run.
        env: number of the environment, which of several values of a setting, or blocks, it has.

    Raises:
        ConfigError: the environment can't be drawn; names the reason.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Gymnasium's, of an environment that has no such mode
            pool = make_pool(config, 1, AutoresetMode.SAME_STEP, render_mode="rgb_array", first_env=env)
    except ConfigError:
        pool = make_pool(config, 1, AutoresetMode.SAME_STEP, first_env=env)
        if not _is_picture(pool.single_observation_space):
            pool.close()
            raise ConfigError(
                f"there is no renderer for {config.environment.id}, expected one with the render_mode 'rgb_array' or "
                f"observations that are pictures"
            ) from None
        return pool, lambda: _as_picture(pool.observation[0])
    drawn: Any = pool
    return pool, lambda: np.asarray(drawn.render()[0], dtype=np.uint8)


def drawn(picture: Callable[[], NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Draw a picture, uint8 `[height, width, 3]` or `[height, width]`; ConfigError where the renderer fails."""
    try:
        return picture().copy()
    except Exception as error:
        # Third-party renderers raise any error where there is no screen, driver or package.
        raise ConfigError(f"drawing failed with {type(error).__name__}: {error}") from error


def _is_picture(space: Any) -> bool:
    return space.dtype == np.uint8 and len(space.shape) >= 2 and min(space.shape[-2:]) >= _LEAST_SIDE_PIXELS


def _as_picture(observation: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the newest of stacked frames."""
    newest: NDArray[np.uint8] = observation.reshape(-1, *observation.shape[-2:])[-1]
    return newest
