"""Compares the control suite's tasks with dm_control, step for step on the same MuJoCo, and in speed, EnvPool too.

Rates are environment steps per second of processor time: contenders alternate, each in one thread.

    python -m benchmarks.pool.control_suite                       # everything, about a quarter of an hour
    python -m benchmarks.pool.control_suite --only cheetah-run --rounds 5
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.support.programs import RESULTS, peer, ratio
from benchmarks.support.tables import write_table
from penstock import native
from penstock.native.adapters.dm_control import envpool_twin
from penstock.native.pool import control_suite
from tests.support.environments.control_suite import OWN_ARRAYS

ALL = [name.removeprefix(control_suite.PREFIX) for name in control_suite.IDS]
RATED = ("cartpole-balance", "cheetah-run", "walker-walk", "humanoid-run")
NUM_ENVS = 64
NAME = "dm-control"
NOTES = (
    """The first rows are the largest difference from dm_control 1.0.50 itself on MuJoCo 4.0.0, of all observed values
and all rewards, from the same state with the same random actions; of values above 1 relative to them. Where they are
not equal, NumPy's vectorized exponential, logarithm or inverse hyperbolic sine is not the C library's in the last
digit.""",
    "Rates are of one thread. EnvPool steps its own copies of the models on the MuJoCo that it brings.",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=ALL, default=ALL)
    parser.add_argument("--parts", nargs="+", choices=["equality", "rates"], default=["equality", "rates"])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    raw = earlier(args.results)
    if "equality" in args.parts:
        raw["equality"] |= compared(args.only, args.steps)
    if "rates" in args.parts:
        raw["rates"] |= {task: measured(task, args) for task in RATED if task in args.only}
    equality = sorted(raw["equality"].items())
    rows = [
        *map(equality_row, equality),
        *(row for task in RATED for row in rate_rows(task, raw["rates"].get(task, []))),
    ]
    for row in rows:
        print(" | ".join(row), flush=True)
    command = f"python -m benchmarks.pool.control_suite --steps {args.steps} --rounds {args.rounds}"
    write_table(args.results, NAME, command, rows, raw, notes=NOTES)


def earlier(results: Path) -> dict[str, Any]:
    """Return the day's results so far: a part or a task that is not asked for keeps them."""
    path = results / f"{dt.datetime.now(tz=dt.UTC).date().isoformat()}-{NAME}.json"
    return json.loads(path.read_text()) if path.exists() else {"equality": {}, "rates": {}}


def compared(tasks: list[str], steps: int) -> Any:
    """Step each task here, and let dm_control step it from the same state."""
    recorded: dict[str, Any] = {}
    for task in tasks:
        pool = native.make(f"{control_suite.PREFIX}{task}", 1, max_episode_steps=-1)
        observation, _ = pool.reset(seed=7)
        recorded[f"{task}/state"] = pool.save()["state"][0]
        shape = (steps, 1, *pool.single_action_space.shape)
        actions = np.random.default_rng(0).uniform(-1.2, 1.2, shape).astype(np.float32)
        seen, rewards = [observation[0].copy()], []
        for action in actions:
            observation, reward, *_ = pool.step(action)
            seen.append(observation[0].copy())
            rewards.append(reward[0])
        own = next((arrays for start, arrays in OWN_ARRAYS.items() if task.startswith(start)), ())
        parts = {"actions": actions[:, 0], "obs": seen, "rewards": rewards, "own": np.array(own, dtype=str)}
        recorded |= {f"{task}/{name}": np.array(part) for name, part in parts.items()}
        pool.close()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "steps.npz"
        np.savez(path, **recorded)
        return peer("dm-control", "dm_control_suite.py", "compare", path)["tasks"]


def measured(task: str, args: argparse.Namespace) -> list[dict[str, float]]:
    """Return each contender's rate by round."""
    envpool = ["--id", envpool_twin(f"dm_control/{task}").removeprefix("envpool/"), "--num-envs", NUM_ENVS]
    dm_control = ["measure", "--task", task, "--num-envs", NUM_ENVS, "--seconds", args.seconds]
    taken = []
    for _ in range(args.rounds):
        theirs = peer("dm-control", "dm_control_suite.py", *dm_control)
        peers = peer("pool", "envpool_processor_time.py", *envpool, "--seconds", args.seconds)
        taken.append(
            {
                "penstock": rate(task, args.seconds),
                "dm_control": theirs["env_steps_per_processor_second"],
                "envpool": peers["env_steps_per_processor_second"],
            }
        )
    return taken


def rate(task: str, seconds: float) -> float:
    """Return the pool's environment steps per second of processor time, in one thread."""
    pool = native.make(f"{control_suite.PREFIX}{task}", NUM_ENVS, 1)
    pool.reset(seed=0)
    shape = (256, NUM_ENVS, *pool.single_action_space.shape)
    actions = np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)
    steps, started, processor = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - started < seconds:
        pool.step(actions[steps % len(actions)])
        steps += 1
    return steps * NUM_ENVS / (time.process_time() - processor)


def equality_row(compared_task: tuple[str, Any]) -> tuple[str, str, str, str]:
    task, found = compared_task
    apart = max(found["largest_difference"], found["largest_difference_of_rewards"])
    notes = [
        f"{found[f'different_{what}']} of {count} {what} in the last digit"
        for what, count in (("observations", found["observed_values"]), ("rewards", found["steps"]))
        if found[f"different_{what}"]
    ]
    return (
        f"{task} - dm_control, {found['steps']} steps",
        f"{apart:.1e}" if apart else "==",
        "<= 1e-15",
        "; ".join(notes),
    )


def rate_rows(task: str, taken: list[dict[str, float]]) -> list[tuple[str, str, str, str]]:
    rows: list[tuple[str, str, str, str]] = []
    for name in ("dm_control", "envpool") if taken else ():
        ours, theirs = (median(each[side] for each in taken) for side in ("penstock", name))
        note = f"{ours:,.0f} and {theirs:,.0f} env steps per second of processor time"
        rows.append(
            (f"{task}, {NUM_ENVS} envs / {name}", ratio([each["penstock"] / each[name] for each in taken]), "> 1", note)
        )
    return rows


if __name__ == "__main__":
    main()
