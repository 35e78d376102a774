"""Measures Stable-Baselines3's DQN or SAC for some seconds: steps per second of acting and updating, after warming up.

Everything that decides how much is computed for a step is an option: environments, steps between updates, updates and
rows of each, and the network. So the settings can be those of another system.
"""

from __future__ import annotations

import argparse
import time

import torch
from measure import machine, print_result
from stable_baselines3 import DQN, SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv


class Rate(BaseCallback):
    """Records the time at each rollout's start once updates have begun, and ends training after the given time."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.at: list[tuple[float, int]] = []
        self._seconds = seconds

    def _on_rollout_start(self) -> None:
        if self.model._n_updates > 0:  # noqa: SLF001  (the only count of updates)
            self.at.append((time.perf_counter(), self.num_timesteps))

    def _on_step(self) -> bool:
        return len(self.at) < 3 or self.at[-1][0] - self.at[0][0] < self._seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--algorithm", choices=["dqn", "sac"], default="dqn")
    parser.add_argument("--environment", default="CartPole-v1")
    parser.add_argument("--envs", type=int, default=8)
    parser.add_argument("--round-steps", type=int, default=32, help="of each environment, between updates")
    parser.add_argument("--minibatches", type=int, default=25, help="updates each time")
    parser.add_argument("--minibatch-rows", type=int, default=128)
    parser.add_argument("--hidden", type=int, nargs="+", default=[120, 84])
    parser.add_argument("--warm-up-rows", type=int, default=10_240)
    parser.add_argument("--window-rows", type=int, default=102_400)
    parser.add_argument("--subprocesses", action="store_true", help="a process for each environment")
    parser.add_argument("--torch-threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=10.0)
    args = parser.parse_args()

    torch.set_num_threads(args.torch_threads)
    kind = {"dqn": DQN, "sac": SAC}[args.algorithm]
    vector, options = (SubprocVecEnv, {"start_method": "fork"}) if args.subprocesses else (DummyVecEnv, {})
    model = kind(
        "MlpPolicy",
        make_vec_env(args.environment, args.envs, args.seed, vec_env_cls=vector, vec_env_kwargs=options),
        train_freq=args.round_steps,
        gradient_steps=args.minibatches,
        batch_size=args.minibatch_rows,
        buffer_size=args.window_rows,
        learning_starts=args.warm_up_rows,
        policy_kwargs={"net_arch": args.hidden},
        device="cpu",
        seed=args.seed,
    )
    rate = Rate(args.seconds)
    model.learn(10**9, callback=rate)
    (first_at, first_steps), (last_at, last_steps) = rate.at[0], rate.at[-1]
    result = {
        "benchmark": "training throughput",
        "system": f"stable-baselines3 {args.algorithm.upper()}",
        "environment": args.environment,
        "env_steps_per_second": (last_steps - first_steps) / (last_at - first_at),
        "updates_per_env_step": args.minibatches / (args.envs * args.round_steps),
        "minibatch_rows": args.minibatch_rows,
        "envs": args.envs,
        "seed": args.seed,
        "torch_threads": args.torch_threads,
        "machine": machine(["stable-baselines3", "gymnasium", "torch", "numpy"]),
    }
    print_result(result)


if __name__ == "__main__":
    main()
