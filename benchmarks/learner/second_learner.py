"""Measures whether a second learner pays: a round under each policy with two learners, against one learner.

One learner stands twice: with one thread, where the whole command has one core, and with two threads on two cores. The
network has two million parameters or more, so that learning is most of a round. Rounds of the second stage are timed,
acting and learning, at lag 0 and in turns; the CPU seconds are those of all members, actors included. Predictions are
those of `--policy auto` from a trial of the same configuration on this machine; more learners than it has cores are
predicted only, for as many cores as learners.

    python -m benchmarks.learner.second_learner --rounds 5  # a quarter of an hour
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.peers.measure import machine
from benchmarks.support.cpu_tally import CpuTally
from benchmarks.support.tables import this_command, write_table
from penstock.flows.api.prefect_server import PrefectServer
from penstock.flows.settings.options import configured
from penstock.tasks.setup.distribution.policies import make_policy
from penstock.tasks.setup.planning.round_time import round_seconds
from penstock.tasks.setup.planning.run_calibration import measure_parts

if TYPE_CHECKING:
    from penstock.tasks.setup.config.run import TrainConfig
    from penstock.tasks.setup.planning.round_time import PartSeconds

PENSTOCK = str(Path(sys.executable).parent / "penstock")
WORKLOAD = ["--num-envs", "64", "--envs-per-tile", "16", "--round-steps", "32", "--epochs", "4", "--minibatches", "4"]
ENOUGH = ["--target-return", "none", "--evaluation-episodes", "1", "--max-stages", "2"]
ONE, TWO = "1 learner, 1 thread", "1 learner, 2 threads"
MEASURED = {
    ONE: ["--policy", "single_learner_coarse"],
    TWO: ["--policy", "single_learner_coarse"],
    "1 learner, 2 threads, fine": ["--policy", "single_learner_fine"],
    **{
        f"2 learners, {policy}": ["--policy", policy, "--learn-tasks", "2"]
        for policy in ("multiple_learners", "central", "environments", "gpu_only")
    },
    "2 learners, central, max_staleness 1": [
        *("--policy", "central", "--learn-tasks", "2", "--distribution.max_staleness", "1")
    ],
}
PREDICTED = (4, 8)
HEAD = (
    "learners, policy",
    "seconds a round, median (range)",
    "predicted (over measured)",
    "times one thread",
    "times two threads",
    "CPU seconds a round",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="times that each is trained")
    parser.add_argument("--rounds-per-stage", type=int, default=4)
    parser.add_argument("--hidden", type=int, nargs="+", default=[1024, 1024])
    parser.add_argument("--preset", default="pendulum", help="gpu_only needs an environment of Penstock's own")
    parser.add_argument("--results", type=Path)
    parser.add_argument("--name", default="second-learner", help="of the results")
    args = parser.parse_args()
    settings = [
        *WORKLOAD,
        *ENOUGH,
        "--hidden",
        json.dumps(args.hidden),
        "--rounds-per-stage",
        str(args.rounds_per_stage),
    ]
    seconds: dict[str, list[float]] = {name: [] for name in MEASURED}
    busy: dict[str, list[float]] = {name: [] for name in MEASURED}
    predicted, parts = predictions(args.preset, settings)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        os.environ.setdefault("PREFECT_HOME", f"{folder}/prefect")
        with PrefectServer() as server:
            server.wait_ready()
            server.direct_here()
            for number in range(args.rounds):
                for name, policy in MEASURED.items():
                    command = [PENSTOCK, "train", args.preset, *settings, *policy]
                    command += ["--store", f"{folder}/{number}", "--name", name.replace(",", "").replace(" ", "-")]
                    taken, used = timed(command, args.rounds_per_stage, first_core_alone=name == ONE)
                    seconds[name].append(taken)
                    busy[name].append(used)
                    print(f"{name}: {taken:.3f} s, {used:.3f} CPU s", file=sys.stderr, flush=True)
    report(args, seconds, busy, predicted, parts)


def predictions(preset: str, settings: list[str]) -> tuple[dict[str, float], PartSeconds]:
    """Return the predicted seconds of a round of everything that is measured and of more learners, and their parts."""
    config: TrainConfig = configured(preset, settings, {})
    sizes, parts = measure_parts(config, None)
    found = {}
    for name, policy in MEASURED.items():
        planned = configured(preset, [*settings, *policy], {})
        here = replace(parts, cores=1) if name == ONE else parts
        found[name] = round_seconds(make_policy(planned.distribution), planned, here, sizes)
    for learners in PREDICTED:
        for policy in ("multiple_learners", "central"):
            given = ["--policy", policy, "--learn-tasks", str(learners), "--num-envs", str(16 * max(4, learners))]
            planned = configured(preset, [*settings, *given, "--round-steps", str(32 * 4 // max(4, learners))], {})
            more = replace(parts, cores=learners)
            found[f"{learners} learners, {policy}"] = round_seconds(
                make_policy(planned.distribution), planned, more, sizes
            )
    return found, parts


def timed(command: list[str], rounds: int, *, first_core_alone: bool) -> tuple[float, float]:
    """Train, and return seconds and CPU seconds of a round in the second stage."""
    cores = os.sched_getaffinity(0)
    with CpuTally() as cpu:
        if first_core_alone:
            os.sched_setaffinity(0, {min(cores)})
        try:
            done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
        finally:
            os.sched_setaffinity(0, cores)
    if done.returncode:
        sys.exit(f"{shlex.join(command)} ended with {done.returncode}:\n{done.stderr}")
    run = Path(command[command.index("--store") + 1]) / command[command.index("--name") + 1]
    stage: dict[str, Any] = json.loads(max((run / "timings").glob("*.json")).read_text())
    members = {facts["pid"] for facts in stage["members"].values()}
    used = cpu.seconds(stage["started_at"], stage["started_at"] + stage["stage_seconds"])
    return stage["roles_seconds"] / rounds, sum(used.get(pid, 0.0) for pid in members) / rounds


def report(
    args: argparse.Namespace,
    seconds: dict[str, list[float]],
    busy: dict[str, list[float]],
    predicted: dict[str, float],
    parts: PartSeconds,
) -> None:
    middle = {name: median(each) for name, each in seconds.items()}
    rows = []
    for name in (*MEASURED, *(name for name in predicted if name not in MEASURED)):
        foreseen = f"{predicted[name]:.3f}"
        if name in middle:
            foreseen += f" ({predicted[name] / middle[name]:.2f})"
            each = seconds[name]
            taken = f"{middle[name]:.3f} ({min(each):.3f} to {max(each):.3f})"
            gains = [f"{middle[base] / middle[name]:.2f}" for base in (ONE, TWO)]
            rows.append((name, taken, foreseen, *gains, f"{median(busy[name]):.2f}"))
        else:
            rows.append((name, "", foreseen, "", f"{predicted[TWO] / predicted[name]:.2f} (predicted)", ""))
    raw = {
        "seconds": seconds,
        "cpu_seconds": busy,
        "predicted": predicted,
        "parts": parts.to_json(),
        "machine": machine(["penstock-rl", "torch", "distributed"]),
    }
    command = this_command()
    print(write_table(args.results or Path(tempfile.mkdtemp()), args.name, command, rows, raw, head=HEAD))


if __name__ == "__main__":
    main()
