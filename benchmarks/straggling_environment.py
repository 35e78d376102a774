"""CartPole that takes its time, and in one environment of the run more of it: what `stragglers.py` trains on.

It pauses in every step of an environment that is the first of its tile, as a simulator would that takes so long. Which
environment one is, it knows by its seed.
"""

from __future__ import annotations

import time
from functools import lru_cache
from typing import Any

import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

from tasks.streams import Purpose, environment_seeds

ID = "straggling_environment:Straggling-v0"


class Straggling(gymnasium.Wrapper):
    """Settings: pauses in seconds a step, and the numbers of the run by which seeds are told."""

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
        """As Gymnasium's; a seed tells which environment of the run this is."""
        if seed is not None:
            self._pause = self._pauses.get(seed, 0.0)
            seed %= 2**32
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        """As Gymnasium's, after the pause."""
        if self._pause:
            time.sleep(self._pause)
        return super().step(action)


@lru_cache
def _pauses(
    pause_seconds: float, slow_pause_seconds: float, run_seed: int, tile_envs: int, tiles: int, rounds: int, stages: int
) -> dict[int, float]:
    """By seed; stages begin with new episodes, since nobody can ask the environment for its state."""
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
