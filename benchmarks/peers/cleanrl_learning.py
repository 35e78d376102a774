"""Measures CleanRL's `ppo_continuous_action.py`, at its own settings, in environments newer than it: returns and rate.

Its published returns are of MuJoCo's v4 environments; v5 differs. The script runs unmodified on a newer Gymnasium than
it was written for. This module restores the older meaning of three of Gymnasium's names.

    .venv-peers/cleanrl-v5/bin/python benchmarks/peers/cleanrl_learning.py --environment HalfCheetah-v5 --seed 1
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from statistics import mean
from typing import Any

import gymnasium
import torch
from cleanrl_rounds import RoundTimes, run_script
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from measure import machine, print_result


class ReturnRecorder(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Replaces RecordEpisodeStatistics: records the environment's own returns, with the step of each."""

    ended: list[tuple[int, float]] = []  # noqa: RUF012  (there is one environment)

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self._steps, self._return = 0, 0.0

    def step(self, action: Any) -> Any:
        """Step, and record the end of an episode."""
        stepped = super().step(action)
        self._steps += 1
        self._return += float(stepped[1])
        if stepped[2] or stepped[3]:
            self.ended.append((self._steps, self._return))
            self._return = 0.0
        return stepped


class SameStepVectorEnv(SyncVectorEnv):
    """Ends an episode and begins the next in one step; the returns that a script would print are recorded elsewhere."""

    def __init__(self, made: Any) -> None:
        super().__init__(made, autoreset_mode=AutoresetMode.SAME_STEP)

    def step(self, actions: Any) -> Any:
        """Step without the last info, which has another format in newer versions."""
        *stepped, infos = super().step(actions)
        infos.pop("final_info", None)
        return (*stepped, infos)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environment", default="HalfCheetah-v5")
    parser.add_argument("--options", nargs="*", default=[], help="NAME=VALUE for the script")
    parser.add_argument("--torch-threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--env-steps", type=int, default=983_040)
    args = parser.parse_args()

    torch.set_num_threads(args.torch_threads)
    transform: Any = gymnasium.wrappers.TransformObservation
    names: dict[str, Any] = {
        "RecordEpisodeStatistics": ReturnRecorder,
        "TransformObservation": lambda env, function: transform(env, function, env.observation_space),
    }
    for name, meant in names.items():
        setattr(gymnasium.wrappers, name, meant)
    setattr(gymnasium.vector, "SyncVectorEnv", SameStepVectorEnv)  # noqa: B010  (a type checker knows the name)
    found = importlib.util.find_spec("cleanrl.ppo_continuous_action")
    if found is None or found.origin is None:
        raise SystemExit("cleanrl is missing: install requirements/cleanrl-v5-alone.txt")
    options = [f"--env-id={args.environment}", f"--seed={args.seed}", "--cuda=False"]
    options += [f"--total-timesteps={args.env_steps}", *(f"--{option}" for option in args.options)]
    started, times = time.perf_counter(), RoundTimes()
    run_script(found.origin, options, times)
    tenth = args.env_steps // 10
    by_tenth = [
        [value for at, value in ReturnRecorder.ended if part * tenth < at <= (part + 1) * tenth] for part in range(10)
    ]
    result = {
        "benchmark": "learning",
        "system": "CleanRL ppo_continuous_action.py",
        "environment": args.environment,
        "seed": args.seed,
        "env_steps": args.env_steps,
        "acted_return": mean(by_tenth[-1]) if by_tenth[-1] else None,
        "env_steps_per_second": args.env_steps / len(times.at) * (len(times.at) - 1) / (times.at[-1] - times.at[0]),
        "returns_by_stage": [mean(values) if values else None for values in by_tenth],
        "seconds": time.perf_counter() - started,
        "machine": machine(["cleanrl", "gymnasium", "mujoco", "torch", "numpy"]),
    }
    print_result(result)


if __name__ == "__main__":
    main()
