"""Makes a pool of the configured environment. Imports no torch: the flow checks configurations with it at its start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import AutoresetMode

from penstock import native
from penstock.storage.errors import ConfigError
from penstock.tasks.setup.config.environment import FLOORPLAN

if TYPE_CHECKING:
    from penstock.native import EnvironmentPool
    from penstock.tasks.setup.config.run import RunConfig


def make_pool(
    config: RunConfig,
    num_envs: int,
    autoreset_mode: AutoresetMode = AutoresetMode.NEXT_STEP,
    render_mode: str | None = None,
) -> EnvironmentPool:
    """Make a pool as configured; `autoreset_mode` applies outside of rounds.

    Raises:
        ConfigError: unknown environment, setting or value, or one that the algorithm can't learn from.
    """
    settings, algorithm = config.environment, config.algorithm
    environment_id, given = settings.id, dict[str, Any](settings.settings)
    if settings.id == FLOORPLAN:
        from penstock.tasks.environments.floorplan_blocks import blocks_of, load_blocks  # noqa: PLC0415  (others need none of it)

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
