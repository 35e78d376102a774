"""Measures `--policy auto`: its throughput as a share of the best policy's, on four workloads.

Every candidate that `auto` compares is trained in turn, in its own processes, and its rounds of one stage are timed
(acting and learning, without start and evaluation). The choice of `auto` is then looked up among them. The output has
both the predicted and the measured seconds per round.

    python -m benchmarks.learner.auto_policy --tasks 2
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.peers.measure import machine, print_result
from penstock.flows.api.prefect_server import PrefectServer

PENSTOCK = str(Path(sys.executable).parent / "penstock")
COUNTS = ("act_tasks", "env_tasks", "learn_tasks")
TILES = ["--num-envs", "64", "--envs-per-tile", "16"]
WORKLOADS = {
    "CartPole, small network": ["cartpole", *TILES],
    "Pendulum, large network, many epochs": ["pendulum", *TILES, "--hidden", "[256, 256]", "--epochs", "10"],
    "HalfCheetah": ["halfcheetah", *TILES, "--round-steps", "64"],
    "CartPole, lag 1": ["cartpole", *TILES, "--lag", "1"],
}
ENOUGH = ["--target-return", "none", "--evaluation-episodes", "1", "--max-stages", "2"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=1, help="Maximum number of act, environment and learn tasks.")
    parser.add_argument("--rounds", type=int, default=10, help="Rounds of the timed stage.")
    parser.add_argument("--only", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        os.environ.setdefault("PREFECT_HOME", f"{folder}/prefect")
        with PrefectServer() as server:
            server.wait_ready()
            server.direct_here()
            found = {
                name: measure(WORKLOADS[name], args, f"{folder}/{number}") for number, name in enumerate(args.only)
            }
    print_result(
        {
            "benchmark": "policy auto",
            "tasks": args.tasks,
            "smallest_share": min(workload["share"] for workload in found.values()),
            "workloads": found,
            "machine": machine(["penstock-rl", "torch", "distributed"]),
        }
    )


def measure(workload: list[str], args: argparse.Namespace, folder: str) -> dict[str, Any]:
    settings = [*workload, "--rounds-per-stage", str(args.rounds), *ENOUGH]
    counts = [text for name in COUNTS for text in (f"--distribution.{name}", str(args.tasks))]
    planned = json.loads(run("plan", *settings, *counts, "--policy", "auto", "--json"))
    rows = []
    for number, candidate in enumerate(planned["chosen"]["candidates"]):
        chosen = [text for name in COUNTS for text in (f"--distribution.{name}", str(candidate[name]))]
        run("train", *settings, *chosen, "--policy", candidate["policy"], "--store", folder, "--name", str(number))
        timings = json.loads(max((Path(folder) / str(number) / "timings").glob("*.json")).read_text())
        rows.append({**candidate, "found_seconds": timings["roles_seconds"] / args.rounds})
        print(rows[-1], file=sys.stderr, flush=True)
    best = min(rows, key=lambda row: row["found_seconds"])
    return {"share": best["found_seconds"] / rows[0]["found_seconds"], "best": best["policy"], "candidates": rows}


def run(*arguments: str) -> str:
    done = subprocess.run([PENSTOCK, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"penstock {' '.join(arguments)}: {done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
