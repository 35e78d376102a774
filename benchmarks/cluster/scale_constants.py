"""Measures the constants of `penstock scale` that need a cluster or a Prefect server; the package stores them.

Seconds are CPU seconds, as the kernel counts them per process, so other load on the machine matters little. `--write`
stores the values, with date, machine and command, in `tasks/setup/planning/measured_constants.json`.

    python -m benchmarks.cluster.scale_constants --write
"""

from __future__ import annotations

import argparse
import base64
import datetime as dt
import json
import os
import platform
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from distributed import Client, LocalCluster, get_worker

from penstock.flows.api.prefect_server import PrefectServer
from penstock.storage.digest import digest
from penstock.storage.refs import Ref, ShardRef, checkpoint_name, shard_name
from penstock.storage.runs.commit_schema import Commit, decode_commit, encode_commit
from penstock.tasks.roles.acting.tile import TileActor
from penstock.tasks.runtime import mailbox
from penstock.tasks.setup.config.loading import build_config
from penstock.tasks.setup.planning.dry_run import trial_run
from penstock.tasks.setup.planning.measured_constants import FILE

if TYPE_CHECKING:
    from collections.abc import Callable

HINTS, REFS, BEGINS, CALLS, LOGS, RECORDS = 1_000, 10_000, 50, 50, 4, 200
TOPIC = "penstock/constants"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="into the package's file, in place of what is there")
    args = parser.parse_args()
    found: dict[str, float] = {}
    for measure in (prefect_seconds, hint_seconds, commit_seconds, begin_seconds):
        found |= measure()
        print(json.dumps(found), flush=True)
    if args.write:
        today = dt.datetime.now(tz=dt.UTC).date().isoformat()
        where = f"{os.cpu_count()} cores of {_processor()}"
        source = f"measured {today} on {where}: python -m benchmarks.cluster.scale_constants"
        constants = json.loads(FILE.read_text(encoding="utf-8"))
        for name, value in found.items():
            constants[name] |= {"value": float(f"{value:.3g}"), "source": source}
        FILE.write_text(json.dumps(constants, indent=1) + "\n", encoding="utf-8")


def hint_seconds() -> dict[str, float]:
    """Return the CPU seconds per message of the process that receives it from another worker."""
    with (
        LocalCluster(n_workers=2, threads_per_worker=2, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(2, timeout=120)
        near, far = sorted(client.scheduler_info(n_workers=-1)["workers"])
        client.submit(_open, workers=near, pure=False).result()
        client.submit(_send, near, 50, workers=far, pure=False).result()
        client.submit(_wait, 50, workers=near, pure=False).result()
        before = client.run(time.process_time, workers=[near])[near]
        client.submit(_send, near, HINTS, workers=far, pure=False).result()
        client.submit(_wait, HINTS, workers=near, pure=False).result()
        taken = client.run(time.process_time, workers=[near])[near] - before
    return {"hint_seconds": taken / HINTS}


def _open() -> None:
    mailbox.install(get_worker())
    mailbox.MAILBOX.open(TOPIC)


def _send(address: str, count: int) -> None:
    ref = _refs(1)[0]
    for number in range(count):
        mailbox.send(get_worker(), [address], TOPIC, {f"shard/{number}": ref, "last": number + 1})


def _wait(count: int) -> None:
    assert mailbox.MAILBOX.wait(TOPIC, lambda hints: sum(key.startswith("shard/") for key in hints) >= count, 120.0)


def _refs(count: int) -> list[dict[str, Any]]:
    name = digest(b"content")
    return [
        ShardRef(
            shard_name(0, 0, index // 100, index % 100, name), name, 10_000, index // 100, index % 100, 64
        ).to_json()
        for index in range(count)
    ]


def commit_seconds() -> dict[str, float]:
    """Return the CPU seconds per shard of a commit: of the flow that encodes and digests it, and of a reader."""
    commit = Commit(
        stage=0, parent="0" * 32, rounds=(0, 99), version=100, env_steps=1, episodes=1,
        shards=tuple(map(ShardRef.from_json, _refs(REFS))), states=(), snapshots=(),
        checkpoint=Ref(checkpoint_name(0, "0" * 32), "0" * 32, 1), metrics={}, evaluation=None, finished=None,
    )  # fmt: skip
    data = encode_commit(commit)
    return {
        "commit_ref_seconds": busy(lambda: digest(encode_commit(commit))) / REFS,
        "read_ref_seconds": busy(lambda: decode_commit(data, "commits/00000000.json", 0)) / REFS,
    }


def begin_seconds() -> dict[str, float]:
    """Return the CPU seconds of an actor's process for creating a tile's environments at the start of a stage."""
    config = build_config({"environment": {"num_envs": 8, "envs_per_tile": 8}})
    with trial_run(config) as (_, context):

        def begin() -> None:
            for _ in range(BEGINS):
                actor = TileActor(context, 0)
                actor.start()
                actor.close()

        return {"begin_seconds": busy(begin) / BEGINS}


def prefect_seconds() -> dict[str, float]:
    """Return the CPU seconds of Prefect's server per writing request and per log record."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        os.environ["PREFECT_HOME"] = folder
        with PrefectServer() as server:
            server.wait_ready()
            started = next(child for child in psutil.Process().children() if "prefect" in child.cmdline())
            processes = [started, *started.children(recursive=True)]
            post(server, "logs/", records(1))

            def busy_seconds() -> float:
                return sum(sum(process.cpu_times()[:2]) for process in processes)

            began = busy_seconds()
            for number in range(CALLS):
                post(server, "artifacts/", {"key": f"k-{number}", "type": "markdown", "data": "x"})
            called = busy_seconds()
            for _ in range(LOGS):
                post(server, "logs/", records(RECORDS))
            logged = busy_seconds()
    calls, logs = called - began, logged - called
    return {"prefect_call_seconds": calls / CALLS, "log_record_seconds": logs / (LOGS * RECORDS)}


def records(count: int) -> list[dict[str, Any]]:
    now = dt.datetime.now(tz=dt.UTC).isoformat()
    record = {
        "name": "penstock",
        "level": 20,
        "message": "acted rounds=0..9 tiles=0..0 env_steps=640",
        "timestamp": now,
    }
    return [record] * count


def post(server: PrefectServer, path: str, body: Any) -> None:
    data = json.dumps(body).encode()
    request = urllib.request.Request(f"{server.api_url}/{path}", data, {"Content-Type": "application/json"})
    request.add_header("Authorization", f"Basic {base64.b64encode(server.auth_string.encode()).decode()}")
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.read()


def busy(work: Callable[[], Any]) -> float:
    """Return the CPU seconds of this process for `work`, the minimum of three tries."""
    taken = []
    for _ in range(3):
        started = time.process_time()
        work()
        taken.append(time.process_time() - started)
    return min(taken)


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    sys.exit(main())
