"""Measures what costs nothing: returns of random actions, or of a scripted policy, in Penstock's own pool.

Random actions are uniform over the choices, or within the bounds.

    python -m benchmarks.returns.baseline --environment HalfCheetah-v5
    python -m benchmarks.returns.baseline --environment simple_spread_v3 --policy scripted
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.peers.measure import machine, print_result
from benchmarks.returns.spread_baselines import ENVIRONMENT, scripted_actions
from penstock import native

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

ENVS = 20
FIRST_SEED = 1_000_000
"""Of environments: no seed of training has it."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environment", required=True)
    parser.add_argument("--policy", choices=["random", "scripted"], default="random")
    parser.add_argument("--episodes", type=int, default=5, help=f"of each of {ENVS} environments")
    parser.add_argument("--parts", type=int, default=10, help="points of a curve, which is flat")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if args.policy == "scripted" and args.environment != ENVIRONMENT:
        parser.error(f"--policy scripted is for {ENVIRONMENT}, not for {args.environment}")
    pool = native.make(args.environment, ENVS)
    policy = scripted_actions if args.policy == "scripted" else random_actions(pool, args.seed)
    returns, steps = play(pool, policy, args.episodes, args.seed)
    pool.close()
    print_result(
        {
            "benchmark": "returns",
            "system": f"{args.policy} actions",
            "environment": args.environment,
            "seed": args.seed,
            "env_steps": steps,
            "returns_by_stage": [float(returns.mean())] * args.parts,
            "machine": machine(["penstock-rl", "gymnasium", "mujoco", "numpy"]),
        }
    )


def random_actions(pool: Any, seed: int) -> Callable[[NDArray[Any]], NDArray[Any]]:
    """Return a policy that looks at nothing."""
    pool.action_space.seed(seed)
    return lambda _observation: pool.action_space.sample()


def play(
    pool: Any, policy: Callable[[NDArray[Any]], NDArray[Any]], episodes: int, seed: int
) -> tuple[NDArray[np.float64], int]:
    """Return the returns of the first episodes of every environment, and the steps taken."""
    observation, _ = pool.reset(seed=[FIRST_SEED * seed + number for number in range(ENVS)])
    ended: list[list[float]] = [[] for _ in range(ENVS)]
    gathered, after_end, steps = np.zeros(ENVS), np.zeros(ENVS, bool), 0
    while min(map(len, ended)) < episodes:
        observation, reward, terminated, truncated, _ = pool.step(policy(observation))
        # The step after an end resets, and its reward counts for nothing.
        gathered += np.where(after_end, 0.0, reward if reward.ndim == 1 else reward.mean(1))
        steps += int((~after_end).sum())
        after_end = terminated | truncated
        for number in np.flatnonzero(after_end):
            ended[number].append(float(gathered[number]))
        gathered[after_end] = 0.0
    return np.array([values[:episodes] for values in ended]).ravel(), steps


if __name__ == "__main__":
    main()
