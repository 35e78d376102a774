"""Where going on without stragglers makes sense. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage.errors import ConfigError
from tasks.algorithm_settings.own import OwnSettings
from tasks.own_probe import ask
from tasks.placement import works_in_step

if TYPE_CHECKING:
    from tasks.config import RunConfig
    from tasks.policies import DistributionPolicy


def check_quorum(config: RunConfig, policy: DistributionPolicy) -> None:
    """Refuse a quorum below 1 where a round can't do without some of its shards.

    Raises:
        ConfigError: says why, and what would be right.
    """
    quorum, tiles = config.placement.quorum, config.environment.tiles
    if config.waits_for_all:
        return
    asked = f"placement.quorum = {quorum:g}"
    if not config.acts:
        raise ConfigError(f"{asked}: a replay reads what is stored and waits for nobody; leave it out")
    if works_in_step(policy):
        raise ConfigError(
            f"{asked}: policy '{policy.name}' has members that wait for each other within a round, so the slowest sets "
            f"the pace whatever is left out; choose placement.policy = 'single_learner_coarse', or quorum 1"
        )
    actors = policy.role_of("act")
    if actors.replicas != tiles:
        raise ConfigError(
            f"{asked}: {actors.replicas} act tasks share {tiles} tiles, and each acts its own one after the other, so "
            f"the last of them would be left out round by round; choose placement.act_tasks = {tiles}, or larger tiles "
            f"(environment.envs_per_tile)"
        )
    if config.shards_needed == tiles:
        raise ConfigError(
            f"{asked}: that is all of a round's shards, of which there are {tiles}; choose a smaller quorum, or more "
            f"tiles (a smaller environment.envs_per_tile)"
        )
    algorithm = ask(config) if isinstance(config.algorithm, OwnSettings) else config.algorithm
    if algorithm.learns_from_window:
        raise ConfigError(
            f"{asked}: '{config.algorithm.name}' learns from a window of rounds, which have to be of one size; choose "
            f"an algorithm without a window, such as ppo or impala, or quorum 1"
        )
