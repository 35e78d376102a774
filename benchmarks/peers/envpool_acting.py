"""Measures acting alone in EnvPool's CartPole-v1, with a 2 x 64 tanh policy in eager torch; no storing or learning.

Tries the pool's settings (synchronous, and asynchronous with batches of all, a half or a quarter of the environments;
one and two pool threads; one and two torch threads) and reports each and the best. Every row that the pool returns
counts as an environment step, including rows that only carry a reset (about 1 in 23 under an untrained policy). This
favours EnvPool.
"""

from __future__ import annotations

import argparse
import itertools
import warnings
from typing import TYPE_CHECKING, Any

import envpool
import torch
from acting import SAMPLERS, Policy, best_steps_per_second
from measure import machine, print_result

if TYPE_CHECKING:
    from collections.abc import Callable


def synchronous(pool: Any, policy: Policy) -> Callable[[], int]:
    """Return a function that steps all environments of the pool once."""
    observation = pool.reset()[0]

    def advance() -> int:
        nonlocal observation
        action, _ = policy.act(observation)
        observation = pool.step(action.to(torch.int32).numpy())[0]
        return len(observation)

    return advance


def asynchronous(pool: Any, policy: Policy) -> Callable[[], int]:
    """Return a function that receives one batch, acts on it and sends it back, while other environments are stepped."""
    pool.async_reset()

    def advance() -> int:
        observation, _, _, _, info = pool.recv()
        action, _ = policy.act(observation)
        pool.send(action.to(torch.int32).numpy(), info["env_id"])
        return len(observation)

    return advance


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--num-envs", type=int, nargs="+", default=[64, 1024])
    parser.add_argument("--sampler", choices=SAMPLERS, default="exponential")
    parser.add_argument("--pool-threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--torch-threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--batch-divisors", type=int, nargs="+", default=[0, 1, 2, 4], help="0 is synchronous")
    parser.add_argument("--window-seconds", type=float, default=0.5)
    parser.add_argument("--windows", type=int, default=3)
    args = parser.parse_args()

    # EnvPool declares CartPole's bounds in float64; Gymnasium warns about the cast for each pool.
    warnings.filterwarnings("ignore", module="gymnasium")
    settings: list[dict[str, Any]] = []
    with torch.inference_mode():
        for num_envs, torch_threads, pool_threads, divisor in itertools.product(
            args.num_envs, args.torch_threads, args.pool_threads, args.batch_divisors
        ):
            torch.set_num_threads(torch_threads)
            batch = num_envs // max(divisor, 1)
            pool = envpool.make(
                "CartPole-v1",
                env_type="gymnasium",
                num_envs=num_envs,
                batch_size=batch,
                num_threads=pool_threads,
                seed=args.seed,
            )
            policy = Policy(args.seed, args.sampler)
            advance = (asynchronous if divisor else synchronous)(pool, policy)
            rate = best_steps_per_second(advance, args.window_seconds, args.windows)
            settings.append(
                {
                    "num_envs": num_envs,
                    "mode": "async" if divisor else "sync",
                    "batch_rows": batch,
                    "pool_threads": pool_threads,
                    "torch_threads": torch_threads,
                    "env_steps_per_second": rate,
                }
            )
            pool.close()

    best = {
        str(num_envs): max(
            (setting for setting in settings if setting["num_envs"] == num_envs),
            key=lambda setting: setting["env_steps_per_second"],
        )
        for num_envs in args.num_envs
    }
    result = {
        "benchmark": "acting alone",
        "system": "EnvPool with eager torch",
        "environment": "CartPole-v1",
        "seed": args.seed,
        "sampler": args.sampler,
        "best_by_num_envs": best,
        "settings": settings,
        "machine": machine(["envpool", "gymnasium", "torch", "numpy"]),
    }
    print_result(result)


if __name__ == "__main__":
    main()
