"""The configured environment as a pool. Imports no torch: the flow checks a configuration with it before it starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gymnasium.vector import AutoresetMode

import native
from storage.errors import ConfigError

if TYPE_CHECKING:
    from native import EnvironmentPool
    from tasks.config import RunConfig


def make_pool(
    config: RunConfig, num_envs: int, autoreset_mode: AutoresetMode = AutoresetMode.NEXT_STEP
) -> EnvironmentPool:
    """A pool as configured; `autoreset_mode` says what follows an episode's end outside of rounds.

    Raises:
        ConfigError: unknown environment, setting or value, or one that the algorithm can't learn from.
    """
    settings, algorithm = config.environment, config.algorithm
    try:
        pool = native.make(
            settings.id,
            num_envs,
            max_episode_steps=settings.max_episode_steps,
            autoreset_mode=autoreset_mode,
            **dict[str, Any](settings.settings),
        )
        described = pool.environment
    except (ValueError, ImportError) as error:
        raise ConfigError(f"environment: {error}") from error
    try:
        algorithm.check_environment(described)
    except ConfigError:
        pool.close()
        raise
    return pool
