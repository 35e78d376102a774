"""Measures the cost of orchestration per stage: its wall time minus the longest of its act and learn tasks.

Runs the real flow with Prefect, with act and learn in separate processes, and so little learning that orchestration
dominates. The first stage waits for imports and is omitted. Eight act tasks, then sixty-four, are separate Dask tasks.

    python -m benchmarks.board.orchestration --act-tasks 8 64
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.peers.measure import machine, print_result
from penstock.flows.api.prefect_server import PrefectServer

STAGES = 9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--act-tasks", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--act-workers", type=int, default=2)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        os.environ.setdefault("PREFECT_HOME", f"{folder}/prefect")
        if "PREFECT_API_URL" in os.environ:
            rows = {str(tasks): measure(tasks, args.act_workers, folder) for tasks in args.act_tasks}
        else:
            with PrefectServer() as server:
                server.wait_ready()
                server.direct_here()
                rows = {str(tasks): measure(tasks, args.act_workers, folder) for tasks in args.act_tasks}
    few, many = min(args.act_tasks), max(args.act_tasks)
    more = rows[str(many)]["orchestration_seconds"] - rows[str(few)]["orchestration_seconds"]
    print_result(
        {
            "benchmark": "orchestration of a stage",
            "by_act_tasks": rows,
            "seconds_more_per_act_task": more / (many - few) if many > few else None,
            "machine": machine(["penstock-rl", "prefect", "distributed"]),
        }
    )


def measure(act_tasks: int, act_workers: int, folder: str) -> dict[str, Any]:
    command = [str(Path(sys.executable).parent / "penstock"), "train", "cartpole", "--json"]
    command += ["--store", f"{folder}/runs", "--name", f"tasks-{act_tasks}", "--target-return", "none"]
    command += ["--num-envs", str(8 * act_tasks), "--envs-per-tile", "8", "--act-tasks", str(act_tasks)]
    command += ["--act-workers", str(act_workers), "--round-steps", "16", "--rounds-per-stage", "2"]
    command += ["--epochs", "1", "--minibatches", "1", "--max-stages", str(STAGES)]
    command += ["--evaluate-every-stages", "1000000"]
    subprocess.run(command, check=True, capture_output=True)
    timings = Path(folder) / "runs" / f"tasks-{act_tasks}" / "timings"
    stages = [json.loads(path.read_text()) for path in sorted(timings.glob("*.json"))]
    # Omit the first stage, which waits for imports, and the last, which is evaluated.
    spent = [
        stage["stage_seconds"] - max(part["task_seconds"] for part in stage["act"] + stage["learn"])
        for stage in stages[1:-1]
    ]
    return {
        "orchestration_seconds": median(spent),
        "orchestration_seconds_worst": max(spent),
        "admission_seconds": median(stage["admission_seconds"] for stage in stages[1:-1]),
        "gather_seconds": median(stage["gather_seconds"] for stage in stages[1:-1]),
        "stage_seconds": median(stage["stage_seconds"] for stage in stages[1:-1]),
    }


if __name__ == "__main__":
    main()
