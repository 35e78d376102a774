"""Measures training as a user does it: `penstock train` in its own process, on a running Prefect server.

Prints the time until CartPole was solved, from the start of the process and from the first environment step, the loop's
environment steps per second, and the total peak memory (the command, its Dask workers and Prefect's server). Solved
means a deterministic mean return of at least 475 over 100 fresh seeds, evaluation time included.

    python -m benchmarks.board.training --seed 1 -- cartpole --max-stages 30
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.peers.measure import PeakPss, machine, print_result
from penstock.flows.api.prefect_server import PrefectServer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("settings", nargs="*", default=["cartpole"])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder, PeakPss() as memory:
        os.environ.setdefault("PREFECT_HOME", f"{folder}/prefect")
        if "PREFECT_API_URL" in os.environ:
            result = train(args, folder)
        else:
            with PrefectServer() as server:
                server.wait_ready()
                server.direct_here()
                result = train(args, folder)
    result |= {"peak_pss_bytes": memory.peak_bytes, "peak_pss_by_process": memory.by_process}
    print_result(result | {"machine": machine(["penstock-rl", "torch", "prefect", "distributed"])})


def train(args: argparse.Namespace, folder: str, environment: dict[str, str] | None = None) -> dict[str, Any]:
    command = [str(Path(sys.executable).parent / "penstock"), "train", *args.settings]
    command += ["--seed", str(args.seed), "--store", f"{folder}/runs", "--name", "bench", "--json"]
    started_at = time.time()
    finished = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    wall_seconds = time.time() - started_at
    outcome = json.loads(finished.stdout)
    run = Path(folder) / "runs" / "bench"
    config = json.loads((run / "run.json").read_text())["config"]
    stages = [json.loads(path.read_text()) for path in sorted((run / "timings").glob("*.json"))]
    first_step_at = min(part["first_step_at"] for part in stages[0]["act"])
    solved_at = stages[-1]["started_at"] + stages[-1]["stage_seconds"]
    # Count from the first step: the first stage's start includes the command's start, mostly imports.
    loop_seconds = solved_at - first_step_at - sum(stage["evaluate_seconds"] for stage in stages)
    learned = [part for stage in stages for part in stage["learn"]]
    algorithm = config["algorithm"]
    round_rows = config["environment"]["num_envs"] * config["schedule"]["round_steps"]
    return {
        "benchmark": "CartPole until solved",
        "system": "Penstock PPO",
        "seed": args.seed,
        "solved": outcome["finished"] is not None and outcome["finished"].startswith("target_return"),
        "seconds_to_solved_from_process_start": solved_at - started_at,
        "seconds_to_solved_from_first_step": solved_at - first_step_at,
        "seconds_of_command": wall_seconds,
        "env_steps": outcome["env_steps"],
        "env_steps_per_second": outcome["env_steps"] / loop_seconds,
        "update_rows_per_second": sum(part["update_rows"] for part in learned) / loop_seconds,
        "epochs": algorithm["epochs"],
        "minibatch_rows": round_rows // algorithm["minibatches"],
        "stages": len(stages),
        "evaluation_mean_return": outcome["evaluation"]["mean_return"],
    }


if __name__ == "__main__":
    main()
