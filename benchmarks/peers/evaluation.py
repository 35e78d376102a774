"""Evaluate CartPole: the deterministic mean return over the starts of given seeds, all stepped together.

The starts equal those of `gymnasium.make("CartPole-v1").reset(seed=seed)`, one per seed; the steps are Gymnasium's
NumPy vector environment, the same in each version of Gymnasium that a peer needs. An evaluation ends early once the
threshold is unreachable, so failed ones are cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.utils import seeding

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MAX_EPISODE_STEPS = 500
SOLVED_RETURN = 475.0
EVALUATION_EPISODES = 100
"""CartPole is solved by this mean over so many episodes, for Penstock and for its peers."""


class CartPoleEvaluator:
    """Evaluates policies on CartPole environments, one per seed of an evaluation."""

    def __init__(self, episodes: int) -> None:
        self._episodes = episodes

    def mean_return(
        self, act: Callable[[np.ndarray], np.ndarray], seeds: Sequence[int], at_least: float = 0.0
    ) -> tuple[float, bool]:
        """Play one episode from each seed's start.

        Args:
            act: float32 observations [N, 4] to actions [N].
            seeds: one start each, as many as the evaluator has episodes.
            at_least: play on only while a mean of this much can still be reached.

        Returns:
            The mean return, and whether every episode was played to its end; if not, the mean is an upper bound below
            `at_least`.
        """
        if len(seeds) != self._episodes:
            raise ValueError(f"{len(seeds)} seeds, expected {self._episodes}: give one seed per episode")
        # A new one each time: older versions go on counting steps when they are reset, and cut episodes short.
        env = CartPoleVectorEnv(num_envs=self._episodes, max_episode_steps=MAX_EPISODE_STEPS)
        env.reset(seed=0)
        starts = np.stack([seeding.np_random(seed)[0].uniform(-0.05, 0.05, size=4) for seed in seeds], axis=1)
        env.state = starts
        observation = starts.T.astype(np.float32)
        alive = np.ones(self._episodes, dtype=bool)
        returns = np.full(self._episodes, float(MAX_EPISODE_STEPS))
        for step in range(1, MAX_EPISODE_STEPS + 1):
            observation, _, terminated, truncated, _ = env.step(act(observation.astype(np.float32, copy=False)))
            ended = alive & (terminated | truncated)
            if ended.any():
                returns[ended] = step
                alive &= ~ended
                bound = float(returns.mean())
                if not alive.any():
                    return bound, True
                if bound < at_least:
                    return bound, False
        return float(returns.mean()), True
