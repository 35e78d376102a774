"""Compares the whole loop on a store with 20 ms per request with the same loop on a local folder.

Runs `penstock train` as a user does, at lag 1, alternately on both stores: a local folder, and an S3 server in memory
that sleeps in every request (`object_server.py`). Time is counted from the first environment step to the last commit,
including the start, end and evaluations of all stages. Both runs must end with the same commits, byte for byte. The
figure holds if a round takes at least 200 ms; the table has the round's time on the local folder.

    python -m benchmarks.storage.slow_store
    python -m benchmarks.storage.slow_store --pairs 1 --stages 2 --rounds 4 --round-steps 64
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.peers.measure import machine
from benchmarks.support.object_server import ObjectServer
from benchmarks.support.tables import this_command, write_table
from penstock.flows.api.prefect_server import PrefectServer
from penstock.storage.runs.run import RunFolder
from penstock.storage.stores.open import open_store

BUCKET = "bench"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--request-seconds", type=float, default=0.02)
    parser.add_argument("--stages", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=10, help="rounds per stage")
    parser.add_argument("--round-steps", type=int, default=512)
    parser.add_argument("--results", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder, ObjectServer(args.request_seconds) as server:
        os.environ |= {"PREFECT_HOME": f"{folder}/prefect", **server.environment}
        request = urllib.request.Request(f"{server.endpoint}/{BUCKET}", method="PUT")
        urllib.request.urlopen(request, timeout=30).close()
        with PrefectServer() as prefect:
            prefect.wait_ready()
            prefect.direct_here()
            stores = {"local": f"{folder}/runs", "slow": f"s3://{BUCKET}/runs"}
            pairs = []
            for number in range(args.pairs + 1):
                pair = {name: train(args, folder, store, f"run-{number}") for name, store in stores.items()}
                if pair["local"].pop("commits") != pair["slow"].pop("commits"):
                    sys.exit("the two runs differ: both must end with the same commits")
                if number:  # the first pair is unmeasured, because its files are not in the page cache yet
                    pairs.append(pair)
                    print(json.dumps(pair), flush=True)
    report(args, pairs)


def train(args: argparse.Namespace, folder: str, store: str, name: str) -> dict[str, Any]:
    settings = {
        "num-envs": 64,
        "envs-per-tile": 16,
        "act-tasks": 1,
        "round-steps": args.round_steps,
        "rounds-per-stage": args.rounds,
        "max-stages": args.stages,
        "lag": 1,
        "evaluation-episodes": 10,
        "gang-seconds": 300,
        "cache-folder": f"{folder}/cache-{name}",
        "store": store,
        "name": name,
    }
    options = [part for key, value in settings.items() for part in (f"--{key}", str(value))]
    command = [str(Path(sys.executable).parent / "penstock"), "train", "cartpole", *options, "--json"]
    preset = Path(folder) / "preset.toml"
    preset.write_text("seed = 1\n")
    command[2] = str(preset)
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode:
        sys.exit(f"{shlex.join(command)} ended with {finished.returncode}:\n{finished.stderr}")
    run = RunFolder(open_store(store), name)
    stages = [json.loads(run.store.read(timings)) for timings in run.store.list("timings/")]
    first_step_at = min(part["first_step_at"] for part in stages[0]["act"])
    seconds = stages[-1]["started_at"] + stages[-1]["stage_seconds"] - first_step_at
    learned = [stage["learn"][0] for stage in stages]
    return {
        "seconds": seconds,
        "round_seconds": seconds / (args.stages * args.rounds),
        "act_seconds": sum(part["act_seconds"] for stage in stages for part in stage["act"]),
        "act_wait_seconds": sum(part["wait_seconds"] for stage in stages for part in stage["act"]),
        "learn_seconds": sum(part["learn_seconds"] for part in learned),
        "learn_wait_seconds": sum(part["wait_seconds"] for part in learned),
        "publish_seconds": sum(part["publish_seconds"] for part in learned),
        "outside_roles_seconds": sum(stage["stage_seconds"] - stage["roles_seconds"] for stage in stages[1:]),
        "commits": [run.store.read(commit).decode() for commit in run.store.list("commits/")],
    }


def report(args: argparse.Namespace, pairs: list[dict[str, Any]]) -> None:
    ratios = [pair["local"]["seconds"] / pair["slow"]["seconds"] for pair in pairs]
    round_ms = [1e3 * median(pair[side]["round_seconds"] for pair in pairs) for side in ("local", "slow")]
    title = f"whole loop, lag 1, a store with {1e3 * args.request_seconds:g} ms a request / a local folder"
    value = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    row = (title, value, ">= 0.8", f"a round took {round_ms[0]:.0f} and {round_ms[1]:.0f} ms")
    print(*row, sep=" | ")
    if args.results:
        raw = {"pairs": pairs, "machine": machine(["penstock-rl", "torch", "s3fs", "distributed"])}
        write_table(args.results, "slow-store", this_command(), [row], raw)


if __name__ == "__main__":
    main()
