"""Steps dm_control's suite itself: to compare steps that another has made, or to measure its rate.

dm_control 1.0.50 lists fields of MuJoCo's structures that MuJoCo 4 does not have, and fails when it looks them up. They
are about flexible bodies, which no task of the suite has: here they are taken off its list, and all else is
dm_control's.

    .venv-peers/dm-control/bin/python benchmarks/peers/dm_control_suite.py compare STEPS.npz
    .venv-peers/dm-control/bin/python benchmarks/peers/dm_control_suite.py measure --task cheetah-run --num-envs 64
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from typing import Any

warnings.simplefilter("ignore")  # of a missing display: nothing is drawn
os.environ.setdefault("MUJOCO_GL", "disable")
import mujoco  # noqa: E402
import numpy as np  # noqa: E402
from dm_control.mujoco.wrapper.mjbindings import sizes  # noqa: E402

INTEGRATION = mujoco.mjtState.mjSTATE_INTEGRATION


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("compare").add_argument("steps", help="what benchmarks/pool/control_suite.py wrote")
    measuring = commands.add_parser("measure")
    measuring.add_argument("--task", required=True)
    measuring.add_argument("--num-envs", type=int, default=64)
    measuring.add_argument("--seconds", type=float, default=1.0)
    args = parser.parse_args()
    forget_missing_fields()
    result = compare(args.steps) if args.command == "compare" else measure(args)
    print(json.dumps(result))


def forget_missing_fields() -> None:
    """Take off dm_control's list what this MuJoCo has not."""
    model = mujoco.MjModel.from_xml_string("<mujoco/>")
    for name, there in (("mjmodel", model), ("mjdata", mujoco.MjData(model))):
        listed = sizes.array_sizes[name]
        for field in [field for field in listed if not hasattr(there, field)]:
            del listed[field]


def loaded(task: str, seed: int) -> Any:
    from dm_control import suite  # noqa: PLC0415  (the list must be right before)

    suite.quadruped.Physics.contexts = None  # `escape` asks for them to draw its ground, and nothing is drawn
    return suite.load(*task.split("-"), task_kwargs={"random": seed})


def compare(path: str) -> dict[str, Any]:
    """Step each task from the same state with the same actions; return how far observations and rewards differ."""
    recorded, results = np.load(path), {}
    for task in sorted({name.partition("/")[0] for name in recorded.files}):
        print(task, file=sys.stderr)
        start, actions, observations, rewards = (
            recorded[f"{task}/{part}"] for part in ("state", "actions", "obs", "rewards")
        )
        env = loaded(task, 0)
        env.reset()
        place(env, start, recorded[f"{task}/own"])
        bounds = env.action_spec()
        seen, given = [flat(env.task.get_observation(env.physics))], []
        env._step_count = -len(actions)  # noqa: SLF001  (no end by time)
        for action in actions:
            moment = env.step(np.clip(action.astype(np.float64), bounds.minimum, bounds.maximum))
            seen.append(flat(moment.observation))
            given.append(float(moment.reward))
        apart, apart_rewards = np.abs(np.array(seen) - observations), np.abs(np.array(given) - rewards)
        results[task] = {
            "steps": len(actions),
            "different_observations": int(np.count_nonzero(apart)),
            "observed_values": int(apart.size),
            "largest_difference": float((apart / np.maximum(1.0, np.abs(observations))).max()),
            "different_rewards": int(np.count_nonzero(apart_rewards)),
            "largest_difference_of_rewards": float(apart_rewards.max()),
            "mean_reward": float(np.mean(rewards)),
        }
    return {"mujoco": mujoco.__version__, "tasks": results}


def place(env: Any, state: Any, own: Any) -> None:
    """Set a state as a Penstock pool saves it: MuJoCo's, the sensors, and arrays of the model named in `own`."""
    physics = env.physics
    model, data = physics.model.ptr, physics.data.ptr
    size = mujoco.mj_stateSize(model, INTEGRATION)
    end = size + model.nsensordata
    rest = state[end:]
    for name in map(str, own):
        array = np.empty((30, 30)) if name == "bumps" else getattr(physics.model, name)
        array[...] = rest[: array.size].reshape(array.shape)
        rest = rest[array.size :]
        if name == "bumps":
            env.task._random = Given(array)  # noqa: SLF001  (nothing public sets it)
            env.task.initialize_episode(physics)
    if rest.size:
        sys.exit(f"a state has {rest.size} values too many")
    mujoco.mj_resetData(model, data)
    mujoco.mj_setState(model, data, state[:size], INTEGRATION)
    mujoco.mj_step1(model, data)
    data.sensordata[:] = state[size:end]


class Given:
    """Draws bumps that are given, so that dm_control itself makes its terrain of them."""

    def __init__(self, bumps: Any) -> None:
        self._bumps = bumps

    def uniform(self, *_: Any) -> Any:
        """Return the bumps."""
        return self._bumps

    def randn(self, count: int) -> Any:
        """Return an orientation, which is replaced."""
        return np.ones(count)


def flat(observation: Any) -> Any:
    return np.concatenate([np.asarray(part, np.float64).ravel() for part in observation.values()])


def measure(args: argparse.Namespace) -> dict[str, float]:
    """Return the steps per second of dm_control's own loop: one environment after the other, in one thread."""
    envs = [loaded(args.task, seed) for seed in range(args.num_envs)]
    for env in envs:
        env.reset()
    bounds = envs[0].action_spec()
    actions = np.random.default_rng(0).uniform(-1, 1, (256, args.num_envs, *bounds.shape))
    steps, started, processor = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - started < args.seconds:
        for env, action in zip(envs, actions[steps % len(actions)], strict=True):
            env.step(action)
        steps += 1
    elapsed, spent = time.perf_counter() - started, time.process_time() - processor
    done = steps * args.num_envs
    return {"env_steps_per_second": done / elapsed, "env_steps_per_processor_second": done / spent}


if __name__ == "__main__":
    main()
