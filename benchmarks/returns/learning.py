"""Compares the algorithms' returns after a fixed number of environment steps with published results.

The protocol runs `penstock train PRESET` with one seed after the other, all with the same settings and steps. Two
numbers are reported per seed: the mean return of the episodes that ended in the last tenth of training, as acted (with
exploration), and the mean return of 100 greedy episodes with the last snapshot, on seeds that training never used.
Published numbers are compared with the first, unless they are greedy themselves.

Writes a table to `benchmarks/results/<date>-learning.md`, and the raw results next to it.

    python -m benchmarks.returns.learning                                # everything, about an hour on two cores
    python -m benchmarks.returns.learning --only ppo-acrobot --seeds 7
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from benchmarks.support.programs import RESULTS
from benchmarks.support.tables import write_table
from penstock.flows.settings.options import parse_overrides
from penstock.tasks.setup.config.loading import build_config, load_preset, merge

_STAGES = 10


@dataclass(frozen=True, slots=True)
class Task:
    """A preset, its number of environment steps, and the published result."""

    preset: str
    env_steps: int
    reference: str
    reach: float
    greedy: bool = False
    """True if the reference is from a greedy evaluation."""
    settings: tuple[str, ...] = ()


_SPREAD = "random -26.4, scripted -8.8"
"""Returns of simple_spread by `spread_baselines.py`; a learned policy has to cover 70 % of the way between them."""
_TENTH = ("--algorithm.reward-scale", "0.1")
"""Returns that a critic without normalised targets can reach."""

TASKS = {
    "ppo-cartpole": Task("cartpole", 500_000, "CleanRL 490.0 ± 6.1", 490.0),
    "ppo-acrobot": Task("acrobot", 500_000, "CleanRL -86.4 ± 1.3", -86.0),
    "ppo-halfcheetah": Task("halfcheetah", 1_000_000, "CleanRL 1443 ± 46 (v4)", 1443.0),
    "ppo-hopper": Task(
        "halfcheetah", 1_000_000, "CleanRL 2383 ± 272 (v4)", 2383.0, settings=("--environment.id", "Hopper-v5")
    ),
    "sac-pendulum": Task("pendulum-sac", 20_480, "stable-baselines3 -157 ± 89", -157.0, greedy=True),
    "dqn-cartpole": Task("cartpole-dqn", 500_000, "CleanRL 488.7 ± 16", 488.0),
    "mappo-spread": Task("spread-mappo", 1_280_000, _SPREAD, -14.1, greedy=True),
    "ippo-spread": Task("spread-ippo", 1_280_000, _SPREAD, -14.1, greedy=True),
}
VARIANTS = {
    f"mappo-spread-{name}": Task("spread-mappo", 1_280_000, _SPREAD, -14.1, greedy=True, settings=settings)
    for name, settings in {
        "discount-0.99": ("--algorithm.discount", "0.99"),
        "one-minibatch": ("--algorithm.minibatches", "1"),
        "raw-values": (*("--algorithm.normalize-value", "false", "--algorithm.huber-delta", "0"), *_TENTH),
        "memories": ("--algorithm.network", "recurrent", "--algorithm.sequence-steps", "25"),
    }.items()
}
"""A preset with one thing changed, to show what that contributes. Measured only where `--only` names them."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(TASKS | VARIANTS), default=list(TASKS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    raw: dict[str, Any] = {}
    rows = []
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as home:
        os.environ["PREFECT_HOME"] = home
        from penstock.flows.api.prefect_server import PrefectServer  # noqa: PLC0415  (Prefect reads PREFECT_HOME when it is imported)

        with PrefectServer() as server:
            server.wait_ready()
            server.direct_here()
            for name in args.only:
                task = (TASKS | VARIANTS)[name]
                raw[name] = [train(task, seed, f"{home}/{name}") for seed in args.seeds]
                rows.append(row(name, task, raw[name]))
                print(" | ".join(rows[-1]), flush=True)
    head = ("algorithm and environment", "acted", "greedy", "reference", "reach", "")
    command = (
        f"python -m benchmarks.returns.learning --seeds {' '.join(map(str, args.seeds))} --only {' '.join(args.only)}"
    )
    print(write_table(args.results, "learning", command, rows, raw, head=head))


def train(task: Task, seed: int, store: str) -> dict[str, Any]:
    """Train one seed for all its steps."""
    config = build_config(merge(load_preset(task.preset), parse_overrides(task.settings)))
    round_rows = config.environment.num_envs * config.schedule.round_steps
    rounds = task.env_steps // (round_rows * _STAGES)
    command = [str(Path(sys.executable).parent / "penstock"), "train", task.preset, *task.settings]
    command += ["--rounds-per-stage", str(rounds), "--max-stages", str(_STAGES), "--target-return", "none"]
    command += ["--evaluate-every-stages", str(_STAGES), "--evaluation-episodes", "100"]
    # A busy machine does not change returns, so only the timeouts are longer.
    command += ["--cluster.gang-seconds", "600", "--cluster.lease-seconds", "60"]
    command += ["--store", store, "--name", f"seed-{seed}", "--seed", str(seed), "--json"]
    outcome = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    commits = sorted((Path(store) / f"seed-{seed}" / "commits").glob("*.json"))
    curve = [json.loads(path.read_text())["metrics"].get("episode_return") for path in commits]
    return {
        "seed": seed,
        "env_steps": outcome["env_steps"],
        "acted_return": curve[-1],
        "greedy_return": outcome["evaluation"]["mean_return"],
        "returns_by_stage": curve,
        "seconds": outcome["seconds"],
    }


def row(name: str, task: Task, results: list[dict[str, Any]]) -> tuple[str, ...]:
    """Return a row of the table."""
    steps = results[0]["env_steps"]
    acted, greedy = (
        [result[kind] for result in results if result[kind] is not None] for kind in ("acted_return", "greedy_return")
    )
    seconds = median(result["seconds"] for result in results)
    return (
        name,
        spread(acted),
        spread(greedy),
        task.reference,
        f">= {task.reach:g}" + (" (greedy)" if task.greedy else ""),
        f"{steps:,} steps, seeds {', '.join(str(result['seed']) for result in results)}, median {seconds:.0f} s",
    )


def spread(values: list[float]) -> str:
    """Return the mean and the standard deviation."""
    if not values:
        return "no episode ended"
    return f"{mean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "")


if __name__ == "__main__":
    main()
