"""Makes the pools that a stage is acted in, with the versions of the policy that play the other side of a game."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from gymnasium.vector import AutoresetMode

from penstock.tasks.data.snapshots.exchange import load_snapshot
from penstock.tasks.environments.factory import make_pool
from penstock.tasks.environments.self_play import SelfPlayPool, UniformPlayer
from penstock.tasks.setup.config.run import TrainConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from penstock.native import EnvironmentPool, Pool
    from penstock.storage.refs import SnapshotRef
    from penstock.storage.runs.commit_schema import Commit
    from penstock.tasks.environments.self_play import Player
    from penstock.tasks.model.algorithms.contract import Algorithm
    from penstock.tasks.runtime.run_context import RunContext
    from penstock.tasks.specs import Params


class SnapshotPlayer:
    """Moves as a version of the policy does, with noise."""

    def __init__(self, algorithm: Algorithm, params: Params) -> None:
        self._algorithm = algorithm
        self._params = params

    @torch.inference_mode()
    def __call__(self, observation: NDArray[Any], noise: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return the policy's actions."""
        rows, _ = self._algorithm.act(self._params, None, torch.from_numpy(observation), torch.from_numpy(noise))
        return cast("NDArray[np.int64]", rows["action"].numpy())


def make_acting_pool(context: RunContext, tile: int, before: Commit | None) -> EnvironmentPool | SelfPlayPool:
    """Return a new pool of a tile's environments, for the rounds of one stage.

    Args:
        context: of the run.
        tile: of the run.
        before: the commit that the stage resumes from; None before the first.

    Raises:
        ConfigError: the settings are no more those of a game of two.
        CorruptObjectError: the snapshot of an opponent is damaged.
    """
    config = context.config
    if not isinstance(config, TrainConfig) or not config.league.plays_itself:
        return context.make_pool(config.environment.envs_per_tile)
    uniform = UniformPlayer(is_masked=context.environment.unmasked_observation is not None)
    players = [(_player(context, ref), share) for ref, share in opponents_of(config, before)] or [(uniform, 1.0)]
    return _self_play(context, config, tile, players)


def make_trial_pool(context: RunContext, tile: int, params: Params) -> EnvironmentPool | SelfPlayPool:
    """Return a pool as stages have it once the league is full; these parameters stand for those of all its versions.

    Args:
        context: of the run.
        tile: of the run.
        params: as a snapshot has them.

    Raises:
        ConfigError: the settings are not those of a game of two.
    """
    config = context.config
    if not isinstance(config, TrainConfig) or not config.league.plays_itself:
        return context.make_pool(config.environment.envs_per_tile)
    members = config.league.size if config.league.opponents == "league" else 0
    players = [(SnapshotPlayer(context.algorithm, params), share) for share in _shares(config, members)]
    return _self_play(context, config, tile, players)


def _self_play(
    context: RunContext, config: TrainConfig, tile: int, players: Sequence[tuple[Player, float]]
) -> SelfPlayPool:
    return SelfPlayPool(
        make_game(config, config.environment.envs_per_tile),
        context.envs_of(tile),
        config.seed,
        config.schedule.round_steps,
        [player for player, _ in players],
        [share for _, share in players],
        config.league.opening_moves,
    )


def make_game(config: TrainConfig, num_envs: int) -> Pool:
    """Return a pool of the configured game in which both players' moves are the caller's; errors as `make_pool`."""
    environment = config.environment
    settings = environment.model_copy(update={"settings": {**environment.settings, "turns": True}})
    return cast(
        "Pool", make_pool(config.model_copy(update={"environment": settings}), num_envs, AutoresetMode.DISABLED)
    )


def opponents_of(config: TrainConfig, before: Commit | None) -> list[tuple[SnapshotRef, float]]:
    """Return the versions against which a stage plays, with their probabilities; none in the first stage.

    In that stage the other side plays at random, as a new policy nearly does.
    """
    if before is None:
        return []
    versions = [*(before.league or ()), before.snapshots[-1]]
    return list(zip(versions, _shares(config, len(versions) - 1), strict=True))


def _shares(config: TrainConfig, members: int) -> list[float]:
    """Return the probability of each member of the league, and last that of the latest version."""
    if not members:
        return [1.0]
    latest = config.league.latest_probability
    return [*[(1 - latest) / members] * members, latest]


def _player(context: RunContext, ref: SnapshotRef) -> Player:
    return SnapshotPlayer(context.algorithm, load_snapshot(context.cache.get_buffer(context.run.store, ref), ref))
