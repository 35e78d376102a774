"""Measures the cost of a tile that is four times slower, at quorum 1 and at a quorum that continues without it.

Runs `penstock train` as a user does, at lag 1, with one tile in each of four act tasks. The environments pause in every
step, in one tile four times as long (`straggling_environment.py`). Both runs learn the same number of rounds. The first
stage, in which processes start, does not count; neither do evaluations. Pauses are long, so the figure depends little
on the machine's speed.

    python -m benchmarks.learner.stragglers
    python -m benchmarks.learner.stragglers --pairs 1 --quorum 0.5
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
from statistics import median
from typing import Any

from benchmarks.learner.straggling_environment import ID
from benchmarks.peers.measure import machine
from benchmarks.support.tables import this_command, write_table
from penstock.flows.api.prefect_server import PrefectServer
from penstock.storage.runs.run import RunFolder
from penstock.storage.stores.open import open_store

SEED, TILES, TILE_ENVS = 1, 4, 8
KINDS = (
    ("rounds_per_second", "rounds/s", "{:.2f}"),
    ("learned_steps_per_second", "learned steps/s", "{:,.0f}"),
    ("wait_share", "learner waits", "{:.0%}"),
    ("missed_share", "shards missed", "{:.0%}"),
    ("late_share", "came late", "{:.0%}"),
    ("training_return", "return while training", "{:.0f}"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--quorum", type=float, default=0.75)
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=10, help="of a stage")
    parser.add_argument("--round-steps", type=int, default=16)
    parser.add_argument("--pause-seconds", type=float, default=0.04)
    parser.add_argument("--slower", type=float, default=4.0)
    parser.add_argument("--results", type=Path)
    args = parser.parse_args()
    raw: dict[str, list[dict[str, Any]]] = {"1": [], f"{args.quorum:g}": []}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        os.environ["PREFECT_HOME"] = f"{folder}/prefect"
        os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parent)
        with PrefectServer() as server:
            server.wait_ready()
            server.direct_here()
            for pair in range(args.pairs):
                for quorum, results in raw.items():
                    results.append(train(args, folder, quorum, f"run-{pair}-{quorum}"))
                    print(quorum, json.dumps(results[-1]), flush=True)
    report(args, raw)


def train(args: argparse.Namespace, folder: str, quorum: str, name: str) -> dict[str, Any]:
    settings = {
        "environment.id": ID,
        "num-envs": TILES * TILE_ENVS,
        "envs-per-tile": TILE_ENVS,
        "act-tasks": TILES,
        "round-steps": args.round_steps,
        "rounds-per-stage": args.rounds,
        "max-stages": args.stages,
        "lag": 1,
        "quorum": quorum,
        "epochs": 2,
        "minibatches": 4,
        "evaluation-episodes": 1,
        "seed": SEED,
        "store": f"{folder}/runs",
        "name": name,
        "environment.settings.pause_seconds": args.pause_seconds,
        "environment.settings.slow_pause_seconds": args.slower * args.pause_seconds,
        "environment.settings.run_seed": SEED,
        "environment.settings.tile_envs": TILE_ENVS,
        "environment.settings.tiles": TILES,
        "environment.settings.rounds": args.rounds,
        "environment.settings.stages": args.stages,
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
    commits = [run.log.read(stage["stage"]) for stage in counted]
    seconds = sum(stage["roles_seconds"] for stage in counted)
    planned = len(counted) * args.rounds * TILES
    waited, learned = (sum(s["learn"][0][f"{kind}_seconds"] for s in counted) for kind in ("wait", "learn"))
    return {
        "rounds_per_second": len(counted) * args.rounds / seconds,
        "learned_steps_per_second": sum(ref.rows for commit in commits for ref in commit.shards) / seconds,
        "wait_share": waited / (waited + learned),
        "missed_share": sum(stage.get("missed_shards", 0) for stage in counted) / planned,
        "late_share": sum(stage.get("late_shards", 0) for stage in counted) / planned,
        "training_return": commits[-1].metrics.get("episode_return", 0.0),
        "seconds": seconds,
    }


def report(args: argparse.Namespace, raw: dict[str, list[dict[str, Any]]]) -> None:
    head = ("quorum", *(title for _, title, _ in KINDS))
    rows = [
        (quorum, *(form.format(median(result[kind] for result in results)) for kind, _, form in KINDS))
        for quorum, results in raw.items()
    ]
    for row in (head, *rows):
        print(*row, sep=" | ")
    if args.results:
        said = {"runs": raw, "machine": machine(["penstock-rl", "torch", "distributed"])}
        round_ms = 1e3 * args.pause_seconds * args.round_steps
        note = f"A tile pauses for {round_ms:.0f} ms in a round, the slow one for {args.slower * round_ms:.0f} ms."
        notes = [f"Medians of {args.pairs}. {note}"]
        write_table(args.results, "stragglers", this_command(), rows, said, head=head, notes=notes)


if __name__ == "__main__":
    main()
