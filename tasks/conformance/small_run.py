"""The small run in which an algorithm is checked. Imports no torch."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from penstock.tasks.environments.factory import make_pool
from penstock.tasks.setup.config.loading import build_config
from penstock.tasks.setup.config.run import TrainConfig

if TYPE_CHECKING:
    from penstock.native.interface import EnvironmentSpec
    from penstock.tasks.setup.config.environment import EnvironmentSettings
    from penstock.tasks.setup.config.run import RunConfig

LIMITS = (12, 9, 20, 50)
"""Time limits of an episode; the first one under which some episodes are truncated and others terminated is used."""

_STEPS = 64
"""Least steps of a round; with recurrent networks a round is a whole number of sequences."""


def small_run(
    config: RunConfig, environment: EnvironmentSettings, limit: int = LIMITS[0]
) -> tuple[TrainConfig, EnvironmentSpec]:
    """Return the settings of a run of two tiles in an environment, and the formats of the environment.

    Args:
        config: has the algorithm.
        environment: its numbers of copies and its time limit are replaced.
        limit: of an episode's steps.

    Raises:
        ConfigError: there is no such environment, or the algorithm can't act in it.
    """
    few = {"num_envs": 8, "envs_per_tile": 4, "max_episode_steps": limit}
    steps = -(-_STEPS // config.algorithm.row_steps) * config.algorithm.row_steps
    values: dict[str, object] = {
        "name": "check",
        "environment": environment.model_dump(exclude_unset=True) | few,
        "schedule": {"round_steps": steps},
    }
    if isinstance(config, TrainConfig):
        values["algorithm"] = config.algorithm.model_dump()
    run = build_config(values)
    with closing(make_pool(run, 1)) as pool:
        # A replay's algorithm is none of this run's own, which `make_pool` has checked.
        config.algorithm.check_environment(pool.environment)
        return run, pool.environment
