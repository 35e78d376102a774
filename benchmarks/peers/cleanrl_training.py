"""Measures CleanRL's unmodified scripts for some seconds: environment steps per second, after the first round.

`ppo.py` has discrete actions. `ppo_continuous_action.py` has continuous actions; its wrappers normalise observations
and rewards. Both have two layers of 64 units. `ppo_atari_envpool.py` has EnvPool's environments and Nature's
convolutions. All clip the value loss. `dqn.py` and `sac_continuous_action.py` have one environment and networks of
their own; they run at their own settings, and are measured once they have begun to learn.
"""

from __future__ import annotations

import argparse
import importlib.util
from typing import Any

import numpy as np
import torch
from cleanrl_rounds import RoundTimes, run_script
from measure import machine, print_result

# gym 0.23.1 needs NumPy's former alias of `bool_`.
np.bool8 = np.bool_

OFF_POLICY = {"dqn": 100, "sac_continuous_action": 100}
"""Environment steps between two rates that a script prints."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--environment", default="CartPole-v1")
    parser.add_argument(
        "--script", default="ppo", choices=["ppo", "ppo_continuous_action", "ppo_atari_envpool", *OFF_POLICY]
    )
    parser.add_argument("--envs", type=int, default=32)
    parser.add_argument("--round-steps", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--minibatch-rows", type=int, default=1024)
    parser.add_argument("--torch-threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=12, help="of PPO, unless --seconds is given")
    parser.add_argument("--seconds", type=float, default=None)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    name = args.script
    options: dict[str, Any] = {"env-id": args.environment, "seed": args.seed, "cuda": False}
    result: dict[str, Any] = {}
    if name in OFF_POLICY:
        round_rows = OFF_POLICY[name]
        accept_older_spaces()
    else:
        round_rows = args.envs * args.round_steps
        options |= {
            "num-envs": args.envs,
            "num-steps": args.round_steps,
            "update-epochs": args.epochs,
            "num-minibatches": round_rows // args.minibatch_rows,
            "total-timesteps": round_rows * args.rounds if args.seconds is None else 10**9,
        }
        result |= {"epochs": args.epochs, "minibatch_rows": args.minibatch_rows, "envs": args.envs}
    torch.set_num_threads(args.torch_threads)
    found = importlib.util.find_spec(f"cleanrl.{name}")
    if found is None or found.origin is None:
        raise SystemExit(f"cleanrl has no script {name}.py: install requirements/cleanrl-alone.txt")
    seconds = float("inf") if args.seconds is None and name not in OFF_POLICY else args.seconds or 10.0
    times = RoundTimes(seconds)
    run_script(found.origin, [f"--{option}={value}" for option, value in options.items()], times)
    result |= {
        "benchmark": "training throughput",
        "system": f"CleanRL {name}.py",
        "environment": args.environment,
        "env_steps_per_second": (len(times.at) - 1) * round_rows / (times.at[-1] - times.at[0]),
        "seed": args.seed,
        "torch_threads": args.torch_threads,
        "machine": machine(["cleanrl", "gym", "gymnasium", "torch", "numpy"]),
    }
    print_result(result)


def accept_older_spaces() -> None:
    """Let Stable-Baselines3's replay buffer take spaces of the older gym, which `sac_continuous_action.py` has."""
    import gymnasium  # noqa: PLC0415  (only the environment for these scripts has what follows)
    from stable_baselines3.common import buffers  # noqa: PLC0415

    original = buffers.ReplayBuffer

    def newer(space: Any) -> Any:
        if isinstance(space, gymnasium.Space):
            return space
        return gymnasium.spaces.Box(space.low, space.high, space.shape, space.dtype)

    def made(rows: int, observation_space: Any, action_space: Any, *rest: Any, **options: Any) -> Any:
        return original(rows, newer(observation_space), newer(action_space), *rest, **options)

    buffers.ReplayBuffer = made  # type: ignore[assignment, misc]


if __name__ == "__main__":
    main()
