"""Train CleanRL's `ppo.py` on CartPole-v1 until solved, at its own settings or those of Penstock's preset.

The rule is that of sb3_cartpole.py: a deterministic mean return of at least 475 over 100 evaluation seeds that no
earlier check used, with evaluations stopped early and their time counted. The script runs unmodified, on the older gym
that it was written for. At the preset's settings, rewards are scaled by a wrapper; the network is the script's own, two
layers of 64 units.

    .venv-peers/cleanrl/bin/python benchmarks/peers/cleanrl_cartpole.py --settings equal --seed 1
"""

from __future__ import annotations

import argparse
import importlib.util
from typing import Any

import gym
import numpy as np
import torch
from cleanrl_rounds import RoundTimes, run_script
from evaluation import EVALUATION_EPISODES, SOLVED_RETURN, CartPoleEvaluator
from measure import machine, print_result, seconds_since_process_start

# gym 0.23.1 needs NumPy's former alias of `bool_`.
np.bool8 = np.bool_

REWARD_SCALE = 0.05
# Those of Penstock's preset cartpole.toml, with a network of [64, 64].
EQUAL = {
    "num-envs": 32,
    "num-steps": 128,
    "update-epochs": 4,
    "num-minibatches": 4,
    "learning-rate": 1e-2,
    "anneal-lr": False,
    "gamma": 0.99,
    "gae-lambda": 0.98,
    "ent-coef": 0.005,
    "clip-vloss": False,
}
SETTINGS: dict[str, dict[str, Any]] = {"own": {}, "equal": EQUAL}


class UntilSolved:
    """Evaluates the script's agent after every few rounds, and ends the script once it has solved the task."""

    def __init__(self, seed: int, every_rounds: int, limit_seconds: float) -> None:
        self.solved = False
        self.rounds = self.checks = self.env_steps = 0
        self.mean_return = self.seconds = float("nan")
        self._every_rounds = every_rounds
        self._limit_seconds = limit_seconds
        self._seed = 1_000_000 * (seed + 1)
        self._evaluator = CartPoleEvaluator(EVALUATION_EPISODES)

    def __call__(self, script: dict[str, Any]) -> bool:
        """Return whether the script should end; called after each of its rounds."""
        self.rounds += 1
        self.env_steps = script["global_step"]
        if self.rounds % self._every_rounds == 0:
            agent = script["agent"]
            seeds = range(self._seed, self._seed + EVALUATION_EPISODES)
            self._seed += EVALUATION_EPISODES
            self.checks += 1
            with torch.inference_mode():
                self.mean_return, whole = self._evaluator.mean_return(
                    lambda seen: agent.actor(torch.from_numpy(seen)).argmax(1).numpy(), seeds, SOLVED_RETURN
                )
            self.solved = whole and self.mean_return >= SOLVED_RETURN
        self.seconds = seconds_since_process_start()
        return self.solved or self.seconds >= self._limit_seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--settings", choices=list(SETTINGS), default="own")
    parser.add_argument("--torch-threads", type=int, default=1)
    parser.add_argument("--check-every-rounds", type=int, default=4)
    parser.add_argument("--limit-seconds", type=float, default=120.0)
    args = parser.parse_args()

    torch.set_num_threads(args.torch_threads)
    found = importlib.util.find_spec("cleanrl.ppo")
    if found is None or found.origin is None:
        raise SystemExit("cleanrl is missing: install requirements/cleanrl-alone.txt")
    options: dict[str, Any] = {"seed": args.seed, "cuda": False, **SETTINGS[args.settings]}
    if args.settings == "equal":
        recorded = gym.wrappers.RecordEpisodeStatistics
        gym.wrappers.RecordEpisodeStatistics = lambda env: gym.wrappers.TransformReward(
            recorded(env), lambda reward: reward * REWARD_SCALE
        )
    until_solved = UntilSolved(args.seed, args.check_every_rounds, args.limit_seconds)
    script_options = [f"--{name}={value}" for name, value in options.items()]
    run_script(found.origin, script_options, RoundTimes(each_round=until_solved))
    result = {
        "benchmark": "time to solved",
        "system": "CleanRL ppo.py",
        "environment": "CartPole-v1",
        "seed": args.seed,
        "solved": until_solved.solved,
        "seconds_to_solved_from_process_start": until_solved.seconds if until_solved.solved else None,
        "env_steps": until_solved.env_steps,
        "evaluations": until_solved.checks,
        "evaluation_mean_return": until_solved.mean_return,
        "settings": args.settings,
        "options": options,
        "torch_threads": args.torch_threads,
        "machine": machine(["cleanrl", "gym", "gymnasium", "torch", "numpy"]),
    }
    print_result(result)


if __name__ == "__main__":
    main()
