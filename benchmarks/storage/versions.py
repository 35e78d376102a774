"""Compares whole runs of this version of Penstock with those of another: steady rate, and time to the first shard.

Both train the same settings in turn, in a folder and on an S3 server, as `penstock train` with its own Prefect server
and workers. The rate is the median of all stages but the first. The start lasts from the command until its first shard
is stored; it is read in folders alone. Each has a home of Prefect of its own, which a run before the first pair has
filled.

    git worktree add /tmp/other COMMIT; then install it into an environment of its own
    python -m benchmarks.storage.versions --other /tmp/other/.venv/bin/penstock --name COMMIT --pairs 7
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from statistics import median

from benchmarks.peers.measure import machine
from benchmarks.support.object_server import ObjectServer
from benchmarks.support.programs import RESULTS
from benchmarks.support.tables import this_command, write_table
from penstock.storage.runs.run import RunFolder
from penstock.storage.stores.open import open_store

SETTINGS = {
    "CartPole-v1": """
        [environment]
        id = "CartPole-v1"
        num_envs = 128
        envs_per_tile = 64
        [algorithm]
        hidden = [32, 32]
        epochs = 2
        minibatches = 4
        [schedule]
        lag = 1
        round_steps = 128
        rounds_per_stage = 20
        max_stages = 12
        evaluate_every_stages = 1000
        """,
    "ALE/Pong-v5": """
        [environment]
        id = "ALE/Pong-v5"
        num_envs = 16
        envs_per_tile = 16
        [algorithm]
        network = "nature"
        features = 512
        hidden = []
        shared_network = true
        epochs = 1
        minibatches = 4
        [schedule]
        lag = 1
        round_steps = 64
        rounds_per_stage = 4
        max_stages = 3
        evaluate_every_stages = 1000
        """,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path, required=True, help="the command `penstock` of the other version")
    parser.add_argument("--name", default="the other version", help="its name in the table")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--environments", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    commands = {"this": Path(sys.executable).with_name("penstock"), "other": args.other}
    table, raw = [], {"machine": machine(("penstock-rl", "torch", "prefect", "distributed")), "runs": []}
    with tempfile.TemporaryDirectory(prefix="penstock-versions-") as folder, ObjectServer() as server:
        urllib.request.urlopen(urllib.request.Request(f"{server.endpoint}/bench", method="PUT"), timeout=30).close()
        os.environ |= server.environment
        for version, command in commands.items():
            measure(command, version, "CartPole-v1", folder, Path(folder))
        for environment in args.environments:
            for store in (folder, "s3://bench"):
                kind = "S3" if "://" in store else "folder"
                found: dict[str, list[dict[str, float]]] = {"this": [], "other": []}
                for pair in range(args.pairs):
                    for version in ("this", "other") if pair % 2 else ("other", "this"):
                        row = measure(commands[version], version, environment, store, Path(folder))
                        found[version].append(row)
                        raw["runs"].append({"version": version, "environment": environment, "store": kind, **row})
                pairs = list(zip(found["this"], found["other"], strict=True))
                rates = [ours["steps_per_second"] / theirs["steps_per_second"] for ours, theirs in pairs]
                table.append(row_of(f"{environment}, {kind}: env steps/s", rates, found, "steps_per_second", ">= 0.98"))
                print(*table[-1], sep=" | ", flush=True)
                if kind == "folder":
                    later = [ours["start_seconds"] - theirs["start_seconds"] for ours, theirs in pairs]
                    reach = "<= 0.3 s later"
                    table.append(row_of(f"{environment}: start, s", later, found, "start_seconds", reach))
                    print(*table[-1], sep=" | ", flush=True)
    head = ("figure", f"ratio to {args.name}; of the start the difference", "medians", "reach")
    write_table(args.results, "versions", this_command(), table, raw, head=head)


def row_of(
    figure: str, values: list[float], found: dict[str, list[dict[str, float]]], name: str, reach: str
) -> tuple[str, str, str, str]:
    """Return a row of the table: the median and the range over pairs, and both medians."""
    ours, theirs = (median(row[name] for row in found[version]) for version in ("this", "other"))
    spread = f"{median(values):.3f} ({min(values):.3f} to {max(values):.3f})"
    return figure, spread, f"{ours:,.5g} / {theirs:,.5g}", reach


def measure(command: Path, version: str, environment: str, store: str, folder: Path) -> dict[str, float]:
    """Train one run, and return its rate and the seconds until its first shard; 0 on S3."""
    number = len(list(folder.glob("preset-*")))
    (preset := folder / f"preset-{number}.toml").write_text(SETTINGS[environment])
    name = f"run-{number}"
    environ = {**os.environ, "PREFECT_HOME": f"{folder}/prefect-{version}"}
    arguments = [str(command), "train", str(preset), "--name", name, "--store", store]
    started, shards, first = time.perf_counter(), folder / name / "shards" / "00000000", None
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(arguments, env=environ, stdout=log, stderr=log)
        while "://" not in store and first is None and process.poll() is None:
            if shards.is_dir() and any(path.suffix == ".arrow" for path in shards.iterdir()):
                first = time.perf_counter() - started
            time.sleep(0.005)
        status = process.wait()
    if status:
        sys.exit(f"{shlex.join(arguments)} ended with {status}: {(folder / 'log').read_text()[-2000:]}")
    run = RunFolder(open_store(store), name)
    timings = [json.loads(run.store.read(each)) for each in sorted(run.store.list("timings/"))][1:]
    rate = median(sum(part["env_steps"] for part in stage["act"]) / stage["stage_seconds"] for stage in timings)
    run.store.delete(run.store.list())
    return {"steps_per_second": rate, "start_seconds": first or 0.0}


if __name__ == "__main__":
    main()
