"""Measures how well Stable-Baselines3 learns off-policy: mean returns, as acted, by part of the training.

SAC and TD3 have the settings of its published results on MuJoCo (RL Baselines3 Zoo): one environment, an update of 256
rows after each step, 10,000 random steps. DQN and QR-DQN (sb3-contrib) have those of MinAtar's paper (Young and Tian
2019, arXiv 1903.03176): a convolution of 16 filters, an update of 32 rows after each step, Adam in place of RMSProp.

    P=benchmarks/peers/sb3_learning.py
    .venv-peers/sb3/bin/python $P --algorithm sac --environment HalfCheetah-v5
    .venv-peers/sb3-minatar/bin/python $P --algorithm dqn --environment MinAtar/Breakout-v1
"""

from __future__ import annotations

import argparse
import time
from statistics import mean
from typing import Any

import gymnasium
import numpy as np
import stable_baselines3
import torch
from measure import machine, print_result
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

EPISODE_STEPS = 5_000
"""Limit of MinAtar's games, which have none."""


class Returns(BaseCallback):
    """Keeps the environment's own return of each episode, and the step at which it ended."""

    def __init__(self) -> None:
        super().__init__()
        self.ended: list[tuple[int, float]] = []

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "episode" in info:
                self.ended.append((self.num_timesteps, float(info["episode"]["r"])))
        return True


class SmallConvolution(BaseFeaturesExtractor):
    """MinAtar's network: 16 filters of 3 x 3 over `[10, 10, channels]`, then 128 features."""

    def __init__(self, observation_space: gymnasium.spaces.Box) -> None:
        super().__init__(observation_space, 128)
        height, width, channels = observation_space.shape
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(channels, 16, 3),
            torch.nn.ReLU(),
            torch.nn.Flatten(),
            torch.nn.Linear(16 * (height - 2) * (width - 2), 128),
            torch.nn.ReLU(),
        )

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Return features `[B, 128]` of observations `[B, height, width, channels]`."""
        found: torch.Tensor = self.layers(observations.permute(0, 3, 1, 2))
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithm", choices=["sac", "td3", "dqn", "qrdqn"], required=True)
    parser.add_argument("--environment", required=True)
    parser.add_argument("--env-steps", type=int, default=300_000)
    parser.add_argument("--parts", type=int, default=10)
    parser.add_argument("--torch-threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    torch.set_num_threads(args.torch_threads)
    started = time.perf_counter()
    model, returns = model_of(args), Returns()
    model.learn(args.env_steps, callback=returns)
    part = args.env_steps // args.parts
    env_packages = ["mujoco"] if args.algorithm in {"sac", "td3"} else ["minatar", "sb3-contrib"]
    by_part = [[value for at, value in returns.ended if n * part < at <= (n + 1) * part] for n in range(args.parts)]
    print_result(
        {
            "benchmark": "learning",
            "system": f"stable-baselines3 {args.algorithm}",
            "environment": args.environment,
            "seed": args.seed,
            "env_steps": args.env_steps,
            "returns_by_stage": [mean(values) if values else None for values in by_part],
            "seconds": time.perf_counter() - started,
            "machine": machine(["stable-baselines3", "gymnasium", *env_packages, "torch", "numpy"]),
        }
    )


def model_of(args: argparse.Namespace) -> Any:
    """Return the algorithm with its environment, at the settings that this module names."""
    common = {"seed": args.seed, "device": "cpu", "buffer_size": 1_000_000, "learning_starts": 10_000}
    if args.algorithm == "sac":
        return stable_baselines3.SAC("MlpPolicy", Monitor(gymnasium.make(args.environment)), **common)
    if args.algorithm == "td3":
        env = Monitor(gymnasium.make(args.environment))
        size = env.action_space.shape  # type: ignore[attr-defined]
        noise = NormalActionNoise(np.zeros(size), 0.1 * np.ones(size))
        return stable_baselines3.TD3(
            *("MlpPolicy", env),
            **common,
            learning_rate=1e-3,
            batch_size=256,
            train_freq=1,
            gradient_steps=1,
            action_noise=noise,
            policy_kwargs={"net_arch": [400, 300]},
        )
    from minatar.gym import register_envs  # noqa: PLC0415  (only in an environment of its own)

    register_envs()
    if args.algorithm == "dqn":
        kind, more = stable_baselines3.DQN, {}
    else:
        from sb3_contrib import QRDQN  # noqa: PLC0415

        kind, more = QRDQN, {"n_quantiles": 50}
    return kind(
        *("MlpPolicy", Monitor(gymnasium.make(args.environment, max_episode_steps=EPISODE_STEPS))),
        **common | {"buffer_size": 100_000, "learning_starts": 5_000},
        learning_rate=2.5e-4,
        batch_size=32,
        train_freq=1,
        gradient_steps=1,
        target_update_interval=1_000,
        exploration_fraction=100_000 / args.env_steps if args.env_steps > 100_000 else 0.1,
        exploration_final_eps=0.1,
        policy_kwargs={"features_extractor_class": SmallConvolution, "net_arch": [], **more},
    )


if __name__ == "__main__":
    main()
