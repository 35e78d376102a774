"""Measures acting alone in Gymnasium's NumPy vector environment of CartPole-v1, with a 2 x 64 tanh policy in torch.

The policy runs in eager mode. Nothing is stored or learned. Every row counts as an environment step, including rows
that only carry a reset.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import torch
from acting import SAMPLERS, Policy, best_steps_per_second
from measure import machine, print_result

if TYPE_CHECKING:
    from collections.abc import Callable


def stepping(env: Any, policy: Policy, seed: int) -> Callable[[], int]:
    """Return a function that steps all environments once."""
    observation, _ = env.reset(seed=seed)

    def advance() -> int:
        nonlocal observation
        action, _ = policy.act(observation)
        observation = env.step(action.numpy())[0]
        return len(observation)

    return advance


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--num-envs", type=int, nargs="+", default=[64, 1024])
    parser.add_argument("--sampler", choices=SAMPLERS, default="exponential")
    parser.add_argument("--torch-threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--window-seconds", type=float, default=0.5)
    parser.add_argument("--windows", type=int, default=3)
    args = parser.parse_args()

    settings: list[dict[str, Any]] = []
    with torch.inference_mode():
        for num_envs in args.num_envs:
            for torch_threads in args.torch_threads:
                torch.set_num_threads(torch_threads)
                env = gym.make_vec("CartPole-v1", num_envs=num_envs, vectorization_mode="vector_entry_point")
                advance = stepping(env, Policy(args.seed, args.sampler), args.seed)
                rate = best_steps_per_second(advance, args.window_seconds, args.windows)
                settings.append({"num_envs": num_envs, "torch_threads": torch_threads, "env_steps_per_second": rate})
                env.close()

    best = {
        str(num_envs): max(
            (setting for setting in settings if setting["num_envs"] == num_envs),
            key=lambda setting: setting["env_steps_per_second"],
        )
        for num_envs in args.num_envs
    }
    result = {
        "benchmark": "acting alone",
        "system": "Gymnasium's NumPy vector environment with eager torch",
        "environment": "CartPole-v1",
        "seed": args.seed,
        "sampler": args.sampler,
        "best_by_num_envs": best,
        "settings": settings,
        "machine": machine(["gymnasium", "torch", "numpy"]),
    }
    print_result(result)


if __name__ == "__main__":
    main()
