"""Measures how long two learners need for a round at a parameter server if each pauses in some minibatches.

Runs `penstock train` as a user does, under `central`: without `max_staleness`, where every minibatch waits for the
slower learner, and with several values of it. The algorithm is PPO, and each learner sleeps in a fifth of its
minibatches (`hesitant_ppo.py`). The first stage, in which processes start, does not count. Pauses are long, so the
figure depends little on the machine's speed.

    python -m benchmarks.returns.staleness
    python -m benchmarks.returns.staleness --repeats 1 --bounds none 8
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks.peers.measure import machine
from benchmarks.returns.hesitant_ppo import PAUSE_SECONDS, PAUSE_SHARE
from benchmarks.support.tables import this_command, write_table
from penstock.flows.api.prefect_server import PrefectServer
from penstock.storage.runs.run import RunFolder
from penstock.storage.stores.open import open_store

KINDS = (
    ("round_seconds", "seconds a round", "{:.2f}"),
    ("mean_lead", "mean lead", "{:.1f}"),
    ("greatest_lead", "greatest lead", "{:.0f}"),
    ("mean_delay", "mean delay", "{:.1f}"),
    ("training_return", "return while training", "{:.0f}"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bounds", nargs="+", default=["none", "0", "1", "4", "16"])
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=8, help="of a stage")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--minibatches", type=int, default=16, help="of an epoch")
    parser.add_argument("--results", type=Path)
    args = parser.parse_args()
    raw: dict[str, list[dict[str, Any]]] = {bound: [] for bound in args.bounds}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        os.environ["PREFECT_HOME"] = f"{folder}/prefect"
        os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parent)
        with PrefectServer() as server:
            server.wait_ready()
            server.direct_here()
            for repeat in range(args.repeats):
                for bound, results in raw.items():
                    results.append(train(args, folder, bound, f"run-{repeat}-{bound}"))
                    print(bound, json.dumps(results[-1]), flush=True)
    report(args, raw)


def train(args: argparse.Namespace, folder: str, bound: str, name: str) -> dict[str, Any]:
    settings = {
        "algorithm.name": "hesitant_ppo:HesitantPPO",
        "environment.id": "CartPole-v1",
        "num-envs": 32,
        "envs-per-tile": 16,
        "policy": "central",
        "learn-tasks": 2,
        "round-steps": 32,
        "rounds-per-stage": args.rounds,
        "max-stages": args.stages,
        "algorithm.epochs": args.epochs,
        "algorithm.minibatches": args.minibatches,
        "algorithm.hidden": "[32]",
        "evaluation-episodes": 1,
        "store": f"{folder}/runs",
        "name": name,
        **({} if bound == "none" else {"distribution.max_staleness": bound}),
    }
    preset = Path(folder) / "preset.toml"
    preset.write_text("")
    options = [part for key, value in settings.items() for part in (f"--{key}", str(value))]
    command = [str(Path(sys.executable).parent / "penstock"), "train", str(preset), *options, "--json"]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode:
        sys.exit(f"{shlex.join(command)} ended with {finished.returncode}:\n{finished.stderr}")
    run = RunFolder(open_store(f"{folder}/runs"), name)
    counted = [json.loads(run.store.read(timings)) for timings in run.store.list("timings/")][1:]
    newest = run.log.newest()
    staleness = [server.get("staleness") or {} for stage in counted for server in stage["server"]]
    learned = sum(max(part["learn_seconds"] for part in stage["learn"]) for stage in counted)
    return {
        "round_seconds": learned / (len(counted) * args.rounds),
        "mean_lead": mean(one.get("mean_lead", 0.0) for one in staleness),
        "greatest_lead": max(one.get("greatest_lead", 0) for one in staleness),
        "mean_delay": mean(one.get("mean_delay", 0.0) for one in staleness),
        "training_return": newest.metrics.get("episode_return", 0.0) if newest else 0.0,
    }


def report(args: argparse.Namespace, raw: dict[str, list[dict[str, Any]]]) -> None:
    head = ("max_staleness", *(title for _, title, _ in KINDS))
    rows = [
        (bound, *(form.format(median(result[kind] for result in results)) for kind, _, form in KINDS))
        for bound, results in raw.items()
    ]
    for row in (head, *rows):
        print(*row, sep=" | ")
    if args.results:
        said = {"runs": raw, "machine": machine(["penstock-rl", "torch", "distributed"])}
        minibatches = args.epochs * args.minibatches
        pause = f"{1e3 * PAUSE_SECONDS:.0f} ms in each with a probability of {PAUSE_SHARE:g}"
        notes = [f"Medians of {args.repeats}. A round has {minibatches} minibatches; a learner pauses for {pause}."]
        write_table(args.results, "staleness", this_command(), rows, said, head=head, notes=notes)


if __name__ == "__main__":
    main()
