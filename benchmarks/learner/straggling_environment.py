"""A slow CartPole for `stragglers.py`, which is slower still in one environment of the run.

It pauses in every step of the first environment of each tile, like a slow simulator. An environment derives its place
in the run from its seed.
"""

from __future__ import annotations

import time
from functools import lru_cache
from typing import Any

import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

from penstock.tasks.seeds import Purpose, environment_seeds

ID = "straggling_environment:Straggling-v0"


class Straggling(gymnasium.Wrapper):
    """CartPole with pauses in seconds per step. The other settings are the run's numbers that determine seeds."""

    def __init__(
        self,
        pause_seconds: float = 0.0,
        slow_pause_seconds: float = 0.0,
        run_seed: float = 0,
        tile_envs: float = 1,
        tiles: float = 1,
        rounds: float = 1,
        stages: float = 1,
    ) -> None:
        super().__init__(CartPoleEnv())
        self._pauses = _pauses(
            pause_seconds, slow_pause_seconds, *map(int, (run_seed, tile_envs, tiles, rounds, stages))
        )
        self._pause = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Reset as Gymnasium does; a seed identifies the environment within the run."""
        if seed is not None:
            self._pause = self._pauses.get(seed, 0.0)
            seed %= 2**32
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        """Pause, then step as Gymnasium does."""
        if self._pause:
            time.sleep(self._pause)
        return super().step(action)


@lru_cache
def _pauses(
    pause_seconds: float, slow_pause_seconds: float, run_seed: int, tile_envs: int, tiles: int, rounds: int, stages: int
) -> dict[int, float]:
    """Return the pauses by seed. Stages begin with new episodes, because the environment's state can't be saved."""
    pauses = {}
    for tile in range(tiles):
        pause = pause_seconds if tile else slow_pause_seconds
        first = range(tile * tile_envs, tile * tile_envs + 1)
        pauses[int(environment_seeds(run_seed, Purpose.ENVIRONMENT, env_ids=first)[0])] = pause
        for stage in range(1, stages):
            seeds = environment_seeds(run_seed, Purpose.RESTART, stage * rounds, env_ids=first)
            pauses[int(seeds[0])] = pause
    return pauses


gymnasium.register(id="Straggling-v0", entry_point=Straggling, max_episode_steps=500)
