"""Compares environment steps per second of the whole training loop with peers, and with the minimal cost of training.

Penstock is `penstock train` at lag 1, on its own workers: shards are stored, snapshots published, stages committed. The
rate covers all stages except the first, with commits and without evaluations. Peers use the same network, epochs, rows
per round and rows per minibatch (Sample Factory has no rounds), with one or two torch threads, whichever is faster.
`bare/training.py` is one process that acts and updates with Penstock's own functions and stores nothing. All alternate,
round by round.

    python -m benchmarks.board.throughput --rounds 3
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
from statistics import median
from typing import Any

from benchmarks.support.programs import RESULTS, peer, ratio, run
from benchmarks.support.tables import write_table
from penstock.flows.settings.options import parse_overrides
from penstock.tasks.setup.config.loading import build_config, load_preset, merge


@dataclass(frozen=True, slots=True)
class Peers:
    """Arguments of each peer besides sizes, including its own name of the environment if that differs."""

    cleanrl: tuple[str, ...] = ()
    sb3: tuple[str, ...] = ()
    sample_factory: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Workload:
    """A preset with settings, and the required ratio to the best peer."""

    preset: str
    settings: tuple[str, ...]
    rounds_per_stage: int
    reach: float
    peers: Peers
    stages: int = 4


WORKLOADS = {
    "cartpole": Workload("cartpole", ("--hidden", "[64, 64]"), 60, 5.0, Peers()),
    # Epochs, rows per round and rows per minibatch are those of Sample Factory's MuJoCo example.
    "halfcheetah": Workload(
        "halfcheetah",
        (
            *("--num-envs", "64", "--envs-per-tile", "32", "--act-tasks", "2"),
            *("--round-steps", "64", "--epochs", "2", "--minibatches", "4"),
        ),
        20,
        3.0,
        # Two of the peers come with an older Gymnasium.
        Peers(
            cleanrl=("--script", "ppo_continuous_action", "--environment", "HalfCheetah-v4"),
            sb3=("--normalize",),
            sample_factory=("--normalize", "--environment", "HalfCheetah-v4"),
        ),
    ),
    # Frames are stacked by four; each system does so with its own wrappers or pool.
    "pong": Workload(
        "pong",
        ("--environment.settings.repeat-action-probability", "0.0"),
        # Each stage begins new episodes, which takes ale-py seconds; hence few long stages.
        40,
        2.0,
        Peers(
            cleanrl=("--script", "ppo_atari_envpool", "--environment", "Pong-v5"),
            sb3=("--atari", "--environment", "PongNoFrameskip-v4"),
            sample_factory=("--atari", "--environment", "atari_pong", "--envs-per-worker", "8"),
        ),
        stages=2,
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    raw: dict[str, Any] = {}
    rows: list[tuple[str, ...]] = []
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as home:
        os.environ["PREFECT_HOME"] = home
        from penstock.flows.api.prefect_server import PrefectServer  # noqa: PLC0415  (Prefect reads PREFECT_HOME when it is imported)

        with PrefectServer() as server:
            server.wait_ready()
            server.direct_here()
            for name in args.only:
                raw[name] = [measure(WORKLOADS[name], f"{home}/{name}-{turn}") for turn in range(args.rounds)]
                rows += compare(name, WORKLOADS[name], raw[name])
    command = f"python -m benchmarks.board.throughput --rounds {args.rounds} --only {' '.join(args.only)}"
    print(write_table(args.results, "throughput", command, rows, raw))


def measure(workload: Workload, store: str) -> dict[str, float]:
    """Run every system once and return its environment steps per second."""
    config = build_config(merge(load_preset(workload.preset), parse_overrides(workload.settings)))
    algorithm: Any = config.algorithm
    environment, schedule = config.environment, config.schedule
    minibatch_rows = environment.num_envs * schedule.round_steps // algorithm.minibatches
    same: list[object] = ["--epochs", algorithm.epochs, "--minibatch-rows", minibatch_rows]
    rounds: list[object] = ["--envs", environment.num_envs, "--round-steps", schedule.round_steps]
    own: list[object] = ["--environment", environment.id]
    hidden: list[object] = ["--hidden", *algorithm.hidden] if algorithm.hidden else []
    told = workload.peers
    found = {"penstock": train(workload, store)}
    for threads in (1, 2):
        command = [sys.executable, "-m", "benchmarks.bare.training", "--torch-threads", str(threads)]
        found[f"bare, {threads} threads"] = rate(run([*command, "--", workload.preset, *workload.settings], None))
        options = [*own, *same, *rounds, "--torch-threads", threads]
        for kind, processes in (("", []), (" in processes", ["--subprocesses"])):
            found[f"stable-baselines3{kind}, {threads} threads"] = rate(
                peer("sb3", "sb3_training.py", *options, *hidden, *told.sb3, *processes)
            )
        # CleanRL's scripts have two layers of 64 units, like the workloads, or the Nature convolutions.
        found[f"CleanRL, {threads} threads"] = rate(peer("cleanrl", "cleanrl_training.py", *options, *told.cleanrl))
    found["Sample Factory"] = rate(
        peer("sample-factory", "sample_factory_training.py", *own, *same, *hidden, *told.sample_factory)
    )
    return found


def rate(result: dict[str, Any]) -> float:
    """Return the output of a peer or of the bare loop."""
    return float(result["env_steps_per_second"])


def train(workload: Workload, store: str) -> float:
    """Return the steps per second of `penstock train`, without its first stage."""
    command = [str(Path(sys.executable).parent / "penstock"), "train", workload.preset, *workload.settings]
    command += ["--lag", "1", "--rounds-per-stage", str(workload.rounds_per_stage)]
    command += ["--max-stages", str(workload.stages), "--target-return", "none", "--evaluation-episodes", "1"]
    command += ["--store", store, "--name", "measured", "--json"]
    subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    stages = [json.loads(path.read_text()) for path in sorted(Path(store, "measured", "timings").glob("*.json"))][1:]
    steps = sum(part["env_steps"] for stage in stages for part in stage["act"])
    return steps / sum(stage["stage_seconds"] - stage["evaluate_seconds"] for stage in stages)


def compare(name: str, workload: Workload, turns: list[dict[str, float]]) -> list[tuple[str, ...]]:
    """Return the rows with the ratios to the best peer and to the bare loop, round by round."""
    ours = [turn["penstock"] for turn in turns]
    others = [kind for kind in turns[0] if not kind.startswith(("penstock", "bare"))]
    best = max(others, key=lambda kind: median(turn[kind] for turn in turns))
    bare = max(
        (kind for kind in turns[0] if kind.startswith("bare")), key=lambda kind: median(turn[kind] for turn in turns)
    )
    rows = []
    for title, kind, reach in (
        (f"{name}: env steps/s / best peer", best, f">= {workload.reach:g}"),
        (f"{name}: env steps/s / acting and updating alone", bare, ">= 0.6"),
    ):
        shares = [mine / turn[kind] for mine, turn in zip(ours, turns, strict=True)]
        note = f"{median(ours):,.0f} and {median(turn[kind] for turn in turns):,.0f} ({kind})"
        rows.append((title, ratio(shares), reach, note))
    return rows


if __name__ == "__main__":
    main()
