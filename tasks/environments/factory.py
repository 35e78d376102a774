"""Makes a pool of the configured environment. Imports no torch: the flow checks configurations with it at its start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import AutoresetMode

from penstock import native
from penstock.storage.errors import ConfigError
from penstock.tasks.environments.header import loaded_header
from penstock.tasks.environments.local_modules import search_working_directory
from penstock.tasks.environments.model_files import check_model
from penstock.tasks.environments.typed_settings import arguments_of
from penstock.tasks.environments.wrappers import wrappers_of
from penstock.tasks.setup.config.environment import FLOORPLAN, SOCKET

if TYPE_CHECKING:
    from penstock.native import EnvironmentPool, EnvironmentSpec
    from penstock.tasks.setup.config.environment import EnvironmentSettings
    from penstock.tasks.setup.config.run import RunConfig


def make_pool(
    config: RunConfig,
    num_envs: int,
    autoreset_mode: AutoresetMode = AutoresetMode.SAME_STEP,
    render_mode: str | None = None,
    first_env: int = 0,
) -> EnvironmentPool:
    """Make a pool as configured; `autoreset_mode` applies outside of rounds, which need the same step.

    Of settings with several values, and of several blocks, its environments have those from `first_env` on.

    Raises:
        ConfigError: unknown environment, setting or value, or one that the algorithm can't learn from.
    """
    settings = config.environment
    encoding = {"structured": settings.structured, "action_mask": settings.action_mask}
    fixed: dict[str, Any] = {"one_array": True, "one_action": True, **encoding}
    if ":" in settings.id:  # module:Id
        search_working_directory()
    with loaded_header(settings) as loaded_id:
        environment_id = loaded_id
        check_model(settings)
        if settings.id == FLOORPLAN:
            from penstock.tasks.environments.floorplan_blocks import blocks_of, load_blocks  # noqa: PLC0415  (others need none of it)

            environment_id = load_blocks(settings)
            fixed["block"] = np.arange(first_env, first_env + num_envs) % len(blocks_of(settings))
        try:
            given = arguments_of(settings, environment_id, num_envs, first_env)
            if wrappers := wrappers_of(settings, environment_id):
                fixed["wrappers"] = wrappers
            if settings.id.startswith(SOCKET):
                fixed |= {"address": settings.address, "reply_seconds": settings.reply_seconds}
                fixed |= {"reconnect_seconds": settings.reconnect_seconds, "tls_certificate": settings.tls_certificate}
            pool = native.make(
                environment_id,
                num_envs,
                max_episode_steps=settings.max_episode_steps,
                autoreset_mode=autoreset_mode,
                render_mode=render_mode,
                **given,
                **fixed,
            )
        except (ValueError, ImportError) as error:
            raise ConfigError(f"environment: {error}") from error
    try:
        config.algorithm.check_environment(_described(pool, settings))
    except ConfigError:
        pool.close()
        raise
    return pool


def _described(pool: EnvironmentPool, settings: EnvironmentSettings) -> EnvironmentSpec:
    """Return the pool's formats.

    Raises:
        ConfigError: its spaces are none that rounds or networks can hold, or without the leaves or the mask that the
            settings promise.
    """
    try:
        described = pool.environment
    except ValueError as error:
        raise ConfigError(f"environment: {error}") from error
    if not described["observation"]["shape"]:
        raise ConfigError(
            f"environment: {described['id']} observes {pool.single_observation_space}, which the vector environment "
            f"that it brings does not encode as an array; choose environment.settings.vectorization_mode = 'sync'"
        )
    if settings.action_mask and "behind_mask" not in described["observation"]:
        raise ConfigError(
            f"environment.action_mask = '{settings.action_mask}': the vector environment that {described['id']} brings "
            f"puts no mask into observations; choose environment.settings.vectorization_mode = 'sync'"
        )
    if settings.structured and "leaves" not in described["observation"]:
        raise ConfigError(
            f"environment.structured = true: {described['id']} observes one array of shape "
            f"{list(described['observation']['shape'])}, expected Discrete, Tuple or Dict; leave it out"
        )
    return described
