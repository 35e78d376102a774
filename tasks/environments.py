"""The configured environment as a pool. Imports no torch: the flow checks a configuration with it before it starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import AutoresetMode

import native
from storage.errors import ConfigError
from tasks.floorplan_settings import FLOORPLAN

if TYPE_CHECKING:
    from native import EnvironmentPool
    from tasks.config import RunConfig


def make_pool(
    config: RunConfig,
    num_envs: int,
    autoreset_mode: AutoresetMode = AutoresetMode.NEXT_STEP,
    render_mode: str | None = None,
) -> EnvironmentPool:
    """A pool as configured; `autoreset_mode` says what follows an episode's end outside of rounds.

    Raises:
        ConfigError: unknown environment, setting or value, or one that the algorithm can't learn from.
    """
    settings, algorithm = config.environment, config.algorithm
    environment_id, given = settings.id, dict[str, Any](settings.settings)
    if settings.id == FLOORPLAN:
        from tasks.floorplan_blocks import blocks_of, load_blocks  # noqa: PLC0415  (others need none of it)

        environment_id = load_blocks(settings)
        given["block"] = np.arange(num_envs) % len(blocks_of(settings))
    try:
        pool = native.make(
            environment_id,
            num_envs,
            max_episode_steps=settings.max_episode_steps,
            autoreset_mode=autoreset_mode,
            render_mode=render_mode,
            **given,
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
