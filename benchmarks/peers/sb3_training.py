"""Measures Stable-Baselines3's PPO for some seconds: steps per second of acting and updating, after one rollout.

Network, epochs, rows per rollout and rows per minibatch are options, so they can match those of another system.
"""

from __future__ import annotations

import argparse
import time

import gymnasium
import torch
from measure import machine, print_result
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecFrameStack, VecNormalize


class Rate(BaseCallback):
    """Records the time at each rollout's start, and ends training after the given time."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.at: list[tuple[float, int]] = []
        self._seconds = seconds

    def _on_rollout_start(self) -> None:
        self.at.append((time.perf_counter(), self.num_timesteps))

    def _on_step(self) -> bool:
        return len(self.at) < 3 or self.at[-1][0] - self.at[1][0] < self._seconds


def environments_of(args: argparse.Namespace) -> VecEnv:
    """Return the environments that Stable-Baselines3 makes, with its wrappers."""
    kind, options = (SubprocVecEnv, {"start_method": "fork"}) if args.subprocesses else (DummyVecEnv, {})
    if args.atari:
        import ale_py  # noqa: PLC0415  (installed only for Atari)

        gymnasium.register_envs(ale_py)
        made = make_atari_env(args.environment, args.envs, args.seed, vec_env_cls=kind, vec_env_kwargs=options)
        return VecFrameStack(made, n_stack=4)
    made = make_vec_env(args.environment, args.envs, args.seed, vec_env_cls=kind, vec_env_kwargs=options)
    return VecNormalize(made) if args.normalize else made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--environment", default="CartPole-v1")
    parser.add_argument("--envs", type=int, default=32)
    parser.add_argument("--round-steps", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--minibatch-rows", type=int, default=1024)
    parser.add_argument("--hidden", type=int, nargs="+", default=[32, 32])
    parser.add_argument("--normalize", action="store_true", help="observations and rewards")
    parser.add_argument("--atari", action="store_true", help="frames, and the Nature convolutions")
    parser.add_argument("--subprocesses", action="store_true", help="a process for each environment")
    parser.add_argument("--torch-threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=15.0)
    args = parser.parse_args()

    torch.set_num_threads(args.torch_threads)
    model = PPO(
        "CnnPolicy" if args.atari else "MlpPolicy",
        environments_of(args),
        n_steps=args.round_steps,
        batch_size=args.minibatch_rows,
        n_epochs=args.epochs,
        policy_kwargs={} if args.atari else {"net_arch": args.hidden},
        device="cpu",
        seed=args.seed,
    )
    rate = Rate(args.seconds)
    model.learn(10**9, callback=rate)
    (first_at, first_steps), (last_at, last_steps) = rate.at[1], rate.at[-1]
    result = {
        "benchmark": "training throughput",
        "system": "stable-baselines3 PPO",
        "environment": args.environment,
        "env_steps_per_second": (last_steps - first_steps) / (last_at - first_at),
        "epochs": args.epochs,
        "minibatch_rows": args.minibatch_rows,
        "envs": args.envs,
        "seed": args.seed,
        "torch_threads": args.torch_threads,
        "machine": machine(["stable-baselines3", "gymnasium", "torch", "numpy"]),
    }
    print_result(result)


if __name__ == "__main__":
    main()
