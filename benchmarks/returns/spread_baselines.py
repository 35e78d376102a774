"""Plays simple_spread_v3 by a scripted policy and at random: what learned policies' returns lie between.

The script has each agent go to the landmark of the best assignment, the one with the least total distance, chosen anew
in every step. Returns are of the mean of the agents' rewards, as everywhere in Penstock.

    python -m benchmarks.returns.spread_baselines                # some seconds
    python -m benchmarks.returns.spread_baselines --episodes 5000
"""

from __future__ import annotations

import argparse
from itertools import permutations
from typing import TYPE_CHECKING

import numpy as np

from penstock import native

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

ENVIRONMENT, AGENTS, STEPS = "simple_spread_v3", 3, 25
_ASSIGNMENTS = np.array(list(permutations(range(AGENTS))))
_COAST = 0.4
"""Seconds of its present velocity that an agent still drifts: 0.1 s a step, a quarter less of the velocity each."""
_PUSH = 0.1
"""Half the way that one push carries it: closer to its landmark, pushing overshoots by more than it gains."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=1000)
    args = parser.parse_args()
    generator = np.random.default_rng(1)
    policies = {
        "random": lambda observation: generator.integers(0, 5, observation.shape[:2]),
        "scripted": scripted_actions,
    }
    for name, policy in policies.items():
        returns = play(policy, args.episodes)
        error = returns.std(ddof=1) / np.sqrt(len(returns))
        print(f"{name}: {returns.mean():.2f} ± {error:.2f} (standard error, {len(returns)} episodes)")


def scripted_actions(observation: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the choices `[episodes, agents]` that go where the best assignment says, `[episodes, agents, 18]`.

    Of both axes, an agent pushes along the one on which it would end up farther from its landmark if it drifted on.
    """
    velocity, landmarks = observation[..., :2], observation[..., 4:10].reshape(*observation.shape[:2], AGENTS, 2)
    distance = np.linalg.norm(landmarks, axis=-1)
    agents = np.arange(AGENTS)
    total = np.stack([distance[:, agents, each].sum(1) for each in _ASSIGNMENTS], 1)
    goal = _ASSIGNMENTS[total.argmin(1)]
    offset = np.take_along_axis(landmarks, goal[..., None, None], 2).squeeze(2) - _COAST * velocity
    axis = np.abs(offset).argmax(-1)
    way = np.take_along_axis(offset, axis[..., None], -1).squeeze(-1)
    # Choices are nothing, left, right, down, up.
    return np.where(np.abs(way) > _PUSH, 1 + 2 * axis + (way > 0), 0)


def play(policy: Callable[[NDArray[np.float32]], NDArray[np.int64]], episodes: int) -> NDArray[np.float64]:
    """Return the returns of whole episodes, `[episodes]`, from starts that no seed of training has."""
    pool = native.make(ENVIRONMENT, episodes, 1, STEPS)
    observation, _ = pool.reset(seed=[1_000_000 + number for number in range(episodes)])
    returns = np.zeros(episodes)
    for _ in range(STEPS):
        observation, reward, *_ = pool.step(policy(observation))
        returns += reward.mean(1)
    pool.close()
    return returns


if __name__ == "__main__":
    main()
