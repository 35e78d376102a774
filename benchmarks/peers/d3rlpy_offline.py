"""Measures d3rlpy's offline learning on a data set in Minari's format: mean returns of evaluations by part of it.

BC, IQL and TD3+BC have the settings of d3rlpy's reproductions of their papers (takuseno/d3rlpy, reproductions/offline):
two layers of 256, 256 rows an update, for IQL an actor's learning rate that falls by a cosine and rewards scaled by
the range of returns, for TD3+BC observations normalised. BC's are its defaults, with these layers and rows. Fewer
updates are made than theirs (`--env-steps`). An evaluation is so many episodes of the policy's means.

    .venv-peers/d3rlpy/bin/python benchmarks/peers/d3rlpy_offline.py --algorithm iql --environment Hopper-v5 --data PATH
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from pathlib import Path
from typing import Any

import d3rlpy
import gymnasium
import minari
import numpy as np
import torch
from measure import machine, print_result

FIRST_SEED = 2_000_000
"""Of evaluations."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithm", choices=["bc", "iql", "td3_bc"], required=True)
    parser.add_argument("--environment", required=True)
    parser.add_argument("--data", type=Path, required=True, help="folder of the data set, which contains `data`")
    parser.add_argument("--reward-scale", type=float, default=1.0, help="for IQL")
    parser.add_argument("--env-steps", type=int, default=50_000, help="updates")
    parser.add_argument("--parts", type=int, default=10)
    parser.add_argument("--episodes", type=int, default=10, help="of an evaluation")
    parser.add_argument("--torch-threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    torch.set_num_threads(args.torch_threads)
    d3rlpy.seed(args.seed)
    started, updates = time.perf_counter(), args.env_steps // args.parts
    env, returns = gymnasium.make(args.environment), []
    # d3rlpy logs to the standard output, which is the result's.
    with contextlib.redirect_stdout(sys.stderr):
        algorithm = config_of(args, updates * args.parts).create(device=False)
        fitter = algorithm.fitter(
            read(args.data),
            n_steps=updates * args.parts,
            n_steps_per_epoch=updates,
            logger_adapter=d3rlpy.logging.NoopAdapterFactory(),
            show_progress=False,
        )
        for part, _ in enumerate(fitter):
            first = FIRST_SEED + args.seed * 10_000 + part * args.episodes
            returns.append(evaluate(algorithm, env, range(first, first + args.episodes)))
    print_result(
        {
            "benchmark": "offline learning",
            "system": f"d3rlpy {args.algorithm}",
            "environment": args.environment,
            "seed": args.seed,
            "env_steps": updates * args.parts,
            "returns_by_stage": returns,
            "seconds": time.perf_counter() - started,
            "machine": machine(["d3rlpy", "gymnasium", "mujoco", "minari", "torch", "numpy"]),
        }
    )


def config_of(args: argparse.Namespace, updates: int) -> Any:
    """Return the algorithm's settings."""
    layers = d3rlpy.models.VectorEncoderFactory([256, 256])
    if args.algorithm == "bc":
        return d3rlpy.algos.BCConfig(encoder_factory=layers, batch_size=256)
    common = {"actor_encoder_factory": layers, "critic_encoder_factory": layers, "batch_size": 256}
    common |= {"actor_learning_rate": 3e-4, "critic_learning_rate": 3e-4}
    if args.algorithm == "td3_bc":
        scaler = d3rlpy.preprocessing.StandardObservationScaler()
        return d3rlpy.algos.TD3PlusBCConfig(**common, alpha=2.5, observation_scaler=scaler)
    cosine = d3rlpy.optimizers.CosineAnnealingLRFactory(T_max=updates)
    return d3rlpy.algos.IQLConfig(
        **common,
        value_encoder_factory=layers,
        actor_optim_factory=d3rlpy.optimizers.AdamFactory(lr_scheduler_factory=cosine),
        expectile=0.7,
        weight_temp=3.0,
        max_weight=100.0,
        reward_scaler=d3rlpy.preprocessing.MultiplyRewardScaler(args.reward_scale),
    )


def read(path: Path) -> Any:
    """Return the data set's rows; an episode that its run's end cut is a time limit's."""
    episodes = list(minari.MinariDataset(path.absolute() / "data").iterate_episodes())
    ends = np.concatenate([episode.terminations for episode in episodes]).astype(np.float32)
    limits = np.concatenate([episode.truncations for episode in episodes]).astype(np.float32)
    return d3rlpy.dataset.MDPDataset(
        observations=np.concatenate([episode.observations[:-1] for episode in episodes]).astype(np.float32),
        actions=np.concatenate([episode.actions for episode in episodes]).astype(np.float32),
        rewards=np.concatenate([episode.rewards for episode in episodes]).astype(np.float32),
        terminals=ends,
        timeouts=limits * (1 - ends),
    )


def evaluate(algorithm: Any, env: gymnasium.Env[Any, Any], seeds: range) -> float:
    """Return the mean return of an episode from each seed's start."""
    returns = []
    for seed in seeds:
        observation, _ = env.reset(seed=seed)
        total, over = 0.0, False
        while not over:
            action = algorithm.predict(observation[None].astype(np.float32))[0]
            observation, reward, terminated, truncated, _ = env.step(np.clip(action, -1.0, 1.0))
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    return float(np.mean(returns))


if __name__ == "__main__":
    main()
