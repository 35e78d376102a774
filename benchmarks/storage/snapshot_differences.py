"""Measures what `distribution.snapshot_differences` saves and costs: bytes that actors' nodes read, waits, and seconds.

The same run is trained without and with differences, in turn, on an S3 server in memory that takes 20 ms a request and
has no limit of bandwidth but the machine's. Learner and actor are workers of a Dask cluster with a cache each, as on
one host each. The stages after the first are counted; their versions have differences, except one whose number gets a
digit more if its file gets longer. Encoding and decoding are measured on the run's stored snapshots, in one thread.

A node reads a difference faster than the whole snapshot if its bandwidth is below `saved bytes / decoding seconds`. The
learner also encodes it and stores it next to the whole one; with the seconds of encoding, a version is at the actors
earlier below the second bandwidth of the table.

    python -m benchmarks.storage.snapshot_differences                                     # about 8 minutes
    python -m benchmarks.storage.snapshot_differences --only cartpole --rounds 1          # a smoke run
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.peers.measure import machine
from benchmarks.support.object_server import ObjectServer
from benchmarks.support.programs import RESULTS, ROOT
from benchmarks.support.tables import write_table
from penstock.storage.digest import digest
from penstock.storage.errors import ObjectNotFoundError
from penstock.storage.refs import SnapshotRef, difference_name, parse_snapshot_name
from penstock.storage.stores.open import open_store
from penstock.tasks.data.snapshots.differences import apply_difference, encode_difference
from tests.support.processes.commands import Cluster, Command
from tests.support.services.prefect_server import prefect_server

if TYPE_CHECKING:
    from penstock.storage.stores.protocol import Store

REQUEST_SECONDS = 0.02
ACTORS = 1
STORE = "s3://bucket/runs"
ENDLESS = ("--target-return", "none")
HEAD = (
    "run",
    "snapshot, kB",
    "difference, kB",
    "read by an actor's node a round, kB: off",
    "on",
    "of it",
    "wait a round, s: off",
    "on",
    "a round, s: off",
    "on",
    "encoding, ms",
    "decoding, ms",
    "a node gains below, MB/s",
    "a version comes earlier below, MB/s",
)


@dataclass(frozen=True, slots=True)
class Case:
    """A preset with settings."""

    preset: str
    settings: tuple[str, ...]


CASES = {
    "cartpole": Case(
        "cartpole",
        ("--hidden", "[256, 256]", "--rounds-per-stage", "20", "--max-stages", "3", *ENDLESS),
    ),
    "halfcheetah": Case(
        "halfcheetah",
        ("--hidden", "[1400, 1400]", "--epochs", "2", "--rounds-per-stage", "4", "--max-stages", "3", *ENDLESS),
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--rounds", type=int, default=3, help="pairs of runs")
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    raw: dict[str, Any] = {"machine": machine(["penstock-rl", "torch", "numpy", "pyarrow"]), "cases": {}}
    rows: list[tuple[str, ...]] = []
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder, ObjectServer(REQUEST_SECONDS) as server:
        os.environ.update(server.environment)
        for name in ("workers", "server"):
            (Path(folder) / name).mkdir()
        with prefect_server(Path(folder) / "server", ROOT / "build" / "tests") as api:
            environment = {**server.environment, "PREFECT_API_URL": api, "PREFECT_HOME": f"{folder}/prefect"}
            cluster = Cluster(ACTORS, 1, server.environment, Path(folder) / "workers", own_caches=True)
            try:
                for name in args.only:
                    raw["cases"][name] = measure(name, args.rounds, cluster.address, environment, Path(folder))
                    rows.append(row(name, raw["cases"][name]))
                    print(*rows[-1], sep=" | ", flush=True)
            finally:
                cluster.close()
    report(args, rows, raw)


def measure(name: str, rounds: int, scheduler: str, environment: dict[str, str], folder: Path) -> dict[str, Any]:
    """Train in turn without and with differences; both end with the same commits."""
    found: dict[str, Any] = {"off": [], "on": []}
    for number in range(rounds):
        heads = []
        for kind in ("off", "on") if number % 2 == 0 else ("on", "off"):
            run = f"{name}-{kind}-{number}"
            more = ("--snapshot-differences", "true") if kind == "on" else ()
            for cache in (folder / "workers").glob("cache-*"):  # runs of a case have the same snapshots
                shutil.rmtree(cache / "objects", ignore_errors=True)
            train(CASES[name], run, more, scheduler, environment, folder)
            store = open_store(STORE).at(run)
            found[kind].append(counted(store))
            heads.append(digest(store.read(store.list("commits/")[-1])))
            if kind == "on":
                found["codec"] = codec(store)
        if len(set(heads)) != 1:
            sys.exit(f"{name}: runs with and without differences ended with different commits")
    return found


def train(
    case: Case, run: str, more: tuple[str, ...], scheduler: str, environment: dict[str, str], folder: Path
) -> None:
    arguments = (
        "train",
        case.preset,
        *case.settings,
        *more,
        "--snapshot-dtype",
        "bfloat16",
        "--name",
        run,
        "--store",
        STORE,
    )
    arguments += (
        "--scheduler",
        scheduler,
        "--act-tasks",
        str(ACTORS),
        "--evaluate-every-stages",
        "1000",
        "--seed",
        "1",
    )
    Command(arguments, environment, folder / run).succeed(1800)


def counted(store: Store) -> dict[str, float]:
    """Return what the stages after the first counted: of one actor's node, and of a round."""
    stages = [json.loads(store.read(name)) for name in store.list("timings/")][1:]
    rounds = sum(stage["edges"]["sync -> act"]["rounds"] for stage in stages)
    members = [member for stage in stages for member in stage["act"]]
    return {
        "read_bytes": sum(member["cache"]["origin_bytes"] for member in members) / ACTORS / rounds,
        "wait_seconds": sum(member["wait_seconds"] for member in members) / ACTORS / rounds,
        "round_seconds": sum(stage["roles_seconds"] for stage in stages) / rounds,
        "publish_seconds": sum(member["publish_seconds"] for stage in stages for member in stage["learn"]) / rounds,
    }


def codec(store: Store) -> dict[str, float]:
    """Return sizes and seconds of the differences between the run's versions: medians."""
    by_version = {parse_snapshot_name(name).version: name for name in store.list("snapshots/")}
    sizes, encoding, decoding, whole = [], [], [], []
    for version in sorted(by_version)[1:]:
        before, after = store.read(by_version[version - 1]), store.read(by_version[version])
        started = time.perf_counter()
        difference = encode_difference(before, after)
        encoded = time.perf_counter()
        ref = SnapshotRef(by_version[version], digest(after), len(after), version)
        if difference is None:
            continue
        decoded_at = time.perf_counter()
        content = apply_difference(before, difference)
        decoding.append(time.perf_counter() - decoded_at)
        encoding.append(encoded - started)
        try:
            stored = store.read(difference_name(ref))
        except ObjectNotFoundError:
            sys.exit(f"version {version} has no difference")
        if content != after or stored != difference:
            sys.exit(f"the difference of version {version} gives other bytes")
        sizes.append(len(difference))
        whole.append(len(after))
    return {
        "whole_bytes": median(whole),
        "difference_bytes": median(sizes),
        "encode_seconds": median(encoding),
        "decode_seconds": median(decoding),
    }


def row(name: str, found: dict[str, Any]) -> tuple[str, ...]:
    codec_ = found["codec"]
    off, on = ({key: median(one[key] for one in found[kind]) for key in found[kind][0]} for kind in ("off", "on"))
    saved = codec_["whole_bytes"] - codec_["difference_bytes"]
    both = codec_["encode_seconds"] + codec_["decode_seconds"]
    return (
        f"`{CASES[name].preset} {shlex.join(CASES[name].settings[:2])}`",
        f"{codec_['whole_bytes'] / 1e3:,.1f}",
        f"{codec_['difference_bytes'] / 1e3:,.1f}",
        f"{off['read_bytes'] / 1e3:,.1f}",
        f"{on['read_bytes'] / 1e3:,.1f}",
        f"{on['read_bytes'] / off['read_bytes']:.2f}",
        f"{off['wait_seconds']:.3f}",
        f"{on['wait_seconds']:.3f}",
        f"{off['round_seconds']:.3f}",
        f"{on['round_seconds']:.3f}",
        f"{codec_['encode_seconds'] * 1e3:.2f}",
        f"{codec_['decode_seconds'] * 1e3:.2f}",
        f"{saved / codec_['decode_seconds'] / 1e6:,.0f}",
        f"{saved / both / 1e6:,.0f}",
    )


def report(args: argparse.Namespace, rows: list[tuple[str, ...]], raw: dict[str, Any]) -> None:
    parts = [] if args.only == list(CASES) else ["--only", *args.only]
    command = shlex.join(
        ["python", "-m", "benchmarks.storage.snapshot_differences", *parts, "--rounds", str(args.rounds)]
    )
    conditions = (
        f"Medians over {args.rounds} pairs of runs, whose last commits were equal; an actor with a cache "
        f"of its own; {REQUEST_SECONDS * 1e3:g} ms a request. The last two columns follow from sizes and seconds: the "
        f"bandwidth between the store and one node below which it has a version earlier by its difference, without and "
        f"with the time for encoding."
    )
    limits = (
        "All processes share the machine's cores, and nothing here limits bandwidth: waits and rounds show the costs "
        "of differences, and not what they save on a slow connection. "
        f"At the end the machine's load over 15 minutes was {os.getloadavg()[2]:.0f}, of {os.cpu_count()} cores."
    )
    print(write_table(args.results, "snapshot-differences", command, rows, raw, head=HEAD, notes=[conditions, limits]))


if __name__ == "__main__":
    main()
