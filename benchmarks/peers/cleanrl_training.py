"""Measures CleanRL's unmodified PPO scripts for some rounds: environment steps per second, after the first round.

`ppo.py` has discrete actions. `ppo_continuous_action.py` has continuous actions; its wrappers normalise observations
and rewards. Both have two layers of 64 units. `ppo_atari_envpool.py` has EnvPool's environments and Nature's
convolutions. All clip the value loss.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import runpy
import sys
import tempfile
from typing import Any

import numpy as np
import torch
from cleanrl_rounds import RoundTimes
from measure import machine, print_result

# gym 0.23.1 needs NumPy's former alias of `bool_`.
np.bool8 = np.bool_


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--environment", default="CartPole-v1")
    parser.add_argument("--script", default="ppo", choices=["ppo", "ppo_continuous_action", "ppo_atari_envpool"])
    parser.add_argument("--envs", type=int, default=32)
    parser.add_argument("--round-steps", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--minibatch-rows", type=int, default=1024)
    parser.add_argument("--torch-threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=12)
    args = parser.parse_args()

    round_rows = args.envs * args.round_steps
    options: dict[str, Any] = {
        "env-id": args.environment,
        "num-envs": args.envs,
        "num-steps": args.round_steps,
        "update-epochs": args.epochs,
        "num-minibatches": round_rows // args.minibatch_rows,
        "total-timesteps": round_rows * args.rounds,
        "cuda": False,
    }
    torch.set_num_threads(args.torch_threads)
    name = args.script
    found = importlib.util.find_spec(f"cleanrl.{name}")
    if found is None or found.origin is None:
        raise SystemExit(f"cleanrl has no script {name}.py: install requirements-cleanrl-alone.txt")
    script, times, printed = found.origin, RoundTimes(), sys.stdout
    sys.argv = [script, *(f"--{option}={value}" for option, value in options.items())]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        sys.stdout = times  # type: ignore[assignment]
        try:
            # Run it like `python ppo.py`, but in this process, which has set torch's threads.
            runpy.run_path(script, run_name="__main__")
        finally:
            sys.stdout = printed
    result = {
        "benchmark": "training throughput",
        "system": f"CleanRL {name}.py",
        "environment": args.environment,
        "env_steps_per_second": (len(times.at) - 1) * round_rows / (times.at[-1] - times.at[0]),
        "epochs": args.epochs,
        "minibatch_rows": args.minibatch_rows,
        "envs": args.envs,
        "torch_threads": args.torch_threads,
        "machine": machine(["cleanrl", "gym", "gymnasium", "torch", "numpy"]),
    }
    print_result(result)


if __name__ == "__main__":
    main()
