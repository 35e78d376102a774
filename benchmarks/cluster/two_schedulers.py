"""Runs 2,048 light actors on two Dask schedulers through an S3 server, kills the flow once, and compares all bytes.

The actors wait in their environments (`waiting_env/`). Each has one environment, one tile, and a thread in one of a
few processes. Half of the processes belong to each scheduler and share a cache there; the learner, with a third cache,
is on the first. Between the two schedulers everything goes through the store (`object_server.py`).

The same run is trained twice: undisturbed, which gives the figures of its last stage, next to the predictions of
`penstock scale`; and with its flow killed by SIGKILL in the middle of the last stage, then resumed. Every object that a
commit names must then have the same digest in both, as read back from the store.

All of that shares this machine, and nothing else may run on it. Predictions are for half of its cores per node of
actors, and for what schedulers, servers, flow and other programs leave of these.

    python -m benchmarks.cluster.two_schedulers --results benchmarks/results  # a quarter of an hour
    python -m benchmarks.cluster.two_schedulers --actors 256  # three minutes
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import psutil

from benchmarks.cluster.dask_clusters import DaskClusters, Node
from benchmarks.cluster.prefect_tally import PrefectTally
from benchmarks.cluster.scale import (
    PENSTOCK,
    compare,
    config_of,
    counts,
    measured_here,
    number,
    toml,
    with_waiting_environment,
)
from benchmarks.peers.measure import machine, process_pss_bytes
from benchmarks.support.cpu_tally import CpuTally
from benchmarks.support.object_server import ObjectServer
from benchmarks.support.tables import this_command, write_table
from penstock.flows.api.prefect_server import PrefectServer
from penstock.flows.support.capacity_table import deployment_of
from penstock.storage.digest import digest
from penstock.storage.refs import stage_folder
from penstock.storage.runs.run import RunFolder
from penstock.storage.shards.verify import check_content
from penstock.storage.stores.open import open_store
from penstock.tasks.setup.planning.capacity_model import predict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.storage.refs import Ref

SCHEDULERS = 2
UNDISTURBED, KILLED = "undisturbed", "killed"
LOOK_SECONDS = 2.0
READERS = 16
HEAD = ("of the last stage", "predicted", "with times or processors as measured", "measured", "ratio")
FOUND = ("of the run", "", "", "measured", "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--actors", type=int, default=2048)
    parser.add_argument("--act-workers", type=int, default=8, help="processes that actors share, on both schedulers")
    parser.add_argument("--wait-milliseconds", type=float, default=20.0)
    parser.add_argument("--round-steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3, help="of a stage")
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--lag", type=int, default=0)
    parser.add_argument("--client", choices=["s3", "s3+obstore"], default="s3+obstore")
    parser.add_argument("--gang-seconds", type=float, default=600.0)
    parser.add_argument("--results", type=Path)
    args = parser.parse_args()
    if args.actors % args.act_workers or args.act_workers % SCHEDULERS or args.stages < 2:
        parser.error("expected --actors a multiple of --act-workers, these an even number, and two --stages or more")
    with_waiting_environment()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder, ObjectServer() as server:
        # The flow's cache; nodes have their own.
        os.environ |= {
            "PREFECT_HOME": f"{folder}/prefect",
            "PENSTOCK_CACHE_DIR": f"{folder}/cache",
            **server.environment,
        }
        with PrefectServer() as prefect:
            prefect.wait_ready()
            sizes, parts, constants = measured_here(args, folder)
            with PrefectTally(int(prefect.ui_url.rpartition(":")[2])) as tally:
                prefect.direct_here()
                os.environ["PREFECT_API_URL"] = tally.api_url
                bench = TwoSchedulers(args, Path(folder), server, tally)
                counted, found = bench.undisturbed()
                constants["cores_per_node"] = parts.busy_cores / SCHEDULERS
                deployment = deployment_of(bench.config, args.actors, 1, args.actors // SCHEDULERS, SCHEDULERS)
                prediction = predict(deployment, sizes, parts, constants)
                # A busy core gives as many seconds of an idle one as its speed is.
                beside = {"cpu beside": counted["cpu beside"] * parts.busy_core_speed}
                compared = compare(prediction, sizes, parts, constants, counted | beside)
                show(found | {"seconds": counted["seconds"]})
                found |= bench.killed()
                show(found)
    report(args, compared, found, {"sizes": sizes.to_json(), "parts": parts.to_json(), "constants": constants})


def show(found: dict[str, Any]) -> None:
    print(json.dumps(found), file=sys.stderr, flush=True)


class TwoSchedulers:
    """Trains one configuration on two schedulers, with and without a kill."""

    def __init__(self, args: argparse.Namespace, folder: Path, server: ObjectServer, tally: PrefectTally) -> None:
        config = config_of(args, args.actors, str(folder))
        # Some episodes end within the run, and so does its evaluation.
        environment = config.environment.model_copy(update={"max_episode_steps": 2 * args.round_steps + 3})
        cluster = config.cluster.model_copy(
            update={
                "act_workers": args.act_workers // SCHEDULERS,
                "gang_seconds": args.gang_seconds,
                "cache_folder": None,
            }
        )
        self.config = config.model_copy(update={"environment": environment, "cluster": cluster})
        self._args, self._folder, self._server, self._tally = args, folder, server, tally
        slots = args.actors // args.act_workers
        of_each = args.act_workers // SCHEDULERS
        self._nodes = [
            *(Node(number, "actor", of_each, slots) for number in range(SCHEDULERS)),
            Node(0, "learner", 1, 1),
        ]

    def undisturbed(self) -> tuple[dict[str, float], dict[str, Any]]:
        """Train; return what `counts` counted in the last stage, and other facts of the run."""
        rounds = self.config.schedule.rounds_per_stage
        self._server.requests()
        self._tally.seen.clear()
        with DaskClusters(self._folder / UNDISTURBED, self._nodes) as clusters:
            with CpuTally() as cpu, Processes() as processes:
                started = time.perf_counter()
                self._end(self._train(UNDISTURBED, clusters), UNDISTURBED)
                whole = time.perf_counter() - started
            schedulers = clusters.scheduler_pids
        stages = self._timings(UNDISTURBED)
        last = stages[-1]
        between = last["started_at"], last["started_at"] + last["stage_seconds"]
        counted = counts([last], between, rounds, cpu, self._server, clusters.tallies, self._tally)
        counted["seconds"] -= last["evaluate_seconds"]
        busy = cpu.seconds(*between)
        others = max(0.0, processes.machine_seconds(*between) - sum(busy.values()))
        counted["cpu beside"] += others
        acting = {facts["pid"] for member, facts in last["members"].items() if member.startswith("act-")}
        learning = {facts["pid"] for member, facts in last["members"].items() if member.startswith("learn-")}
        return counted, {
            "actors": self._args.actors,
            "schedulers": len({facts["scheduler"] for facts in last["members"].values()}),
            "processes of actors": len(acting),
            "seconds of the whole command": whole,
            "seconds until all members of a stage report": last["gather_seconds"],
            "CPU seconds of the schedulers, in the last stage": sum(busy[pid] for pid in schedulers),
            "CPU seconds of other programs, in the last stage": others,
            "peak PSS of a process of actors, MB": processes.most("pss_bytes", acting) / 1e6,
            "peak PSS of the learner's process, MB": processes.most("pss_bytes", learning) / 1e6,
            "most threads of a process of actors": processes.most("threads", acting),
            "most open files of a process of actors": processes.most("files", acting),
            "most open files of a scheduler": processes.most("files", schedulers),
        }

    def killed(self) -> dict[str, Any]:
        """Train, kill the flow in the middle of the last stage, resume; return what that cost, and what differs."""
        schedule, tiles = self.config.schedule, self.config.environment.tiles
        self._server.requests()
        store = open_store(self.config.store).at(KILLED)
        with DaskClusters(self._folder / KILLED, self._nodes) as clusters:
            flow = self._train(KILLED, clusters)
            folder = stage_folder("shards", int(schedule.max_stages or 0) - 1, 0)
            while (there := len(store.list(folder))) < tiles * schedule.rounds_per_stage * 3 // 4:
                if flow.poll() is not None:
                    self._end(flow, KILLED)
                    sys.exit("the run ended before it could be killed: choose more rounds")
                time.sleep(LOOK_SECONDS)
            os.killpg(flow.pid, signal.SIGKILL)
            flow.wait()
            there = len(store.list(folder))
            started = time.perf_counter()
            self._end(self._resume(clusters), KILLED)
            resumed = time.perf_counter() - started
        written = Counter(key for _, kind, key, _ in self._server.requests() if kind == "put" and "/shards/" in key)
        last = self._timings(KILLED)[-1]
        expected, found = (self._digests(name) for name in (UNDISTURBED, KILLED))
        differing = sorted(name for name in {*expected, *found} if expected.get(name) != found.get(name))
        return {
            "shards of the last stage at the kill": there,
            "seconds from the resume to its end": resumed,
            "seconds of the resumed stage": last["stage_seconds"] - last["evaluate_seconds"],
            "shards written": len(written),
            "shards written twice": sum(count > 1 for count in written.values()),
            "objects compared": len(expected),
            "objects that differ": len(differing),
            "same bytes": not differing,
            "differing": differing[:20],
        }

    def _train(self, name: str, clusters: DaskClusters) -> subprocess.Popen[str]:
        first = clusters.addresses[0]
        cluster = self.config.cluster.model_copy(
            update={"scheduler": first, "schedulers": {"act": tuple(clusters.addresses)}}
        )
        preset = self._folder / f"{name}.toml"
        preset.write_text(toml(self.config.model_copy(update={"name": name, "cluster": cluster})), encoding="utf-8")
        return self._start(name, "train", str(preset))

    def _resume(self, clusters: DaskClusters) -> subprocess.Popen[str]:
        where = ["--store", self.config.store, "--scheduler", clusters.addresses[0]]
        where += ["--cluster.schedulers.act", ",".join(clusters.addresses)]
        return self._start(KILLED, "resume", KILLED, *where, "--cluster.gang-seconds", str(self._args.gang_seconds))

    def _start(self, name: str, *arguments: str) -> subprocess.Popen[str]:
        with (self._folder / f"{name}.log").open("a") as log:
            return subprocess.Popen(
                [PENSTOCK, *arguments, "--json"], stdout=log, stderr=log, text=True, start_new_session=True
            )

    def _end(self, flow: subprocess.Popen[str], name: str) -> None:
        if flow.wait():
            said = (self._folder / f"{name}.log").read_text(encoding="utf-8")[-4000:]
            sys.exit(f"{shlex.join(map(str, flow.args))} ended with {flow.returncode}:\n{said}")

    def _timings(self, name: str) -> list[dict[str, Any]]:
        store = open_store(self.config.store).at(name)
        return [json.loads(store.read(file)) for file in store.list("timings/")]

    def _digests(self, name: str) -> dict[str, str]:
        """Return the digest of every object that a run's commits name, by its stored bytes, and of the commits."""
        run = RunFolder(open_store(self.config.store), name)
        newest = run.log.newest()
        stages = range(newest.stage + 1) if newest else range(0)
        commits = [run.log.read(stage) for stage in stages]
        refs: Iterable[Ref] = (
            ref for commit in commits for ref in (*commit.shards, *commit.states, *commit.snapshots, commit.checkpoint)
        )
        of_name = {ref.name: ref for ref in refs}
        with ThreadPoolExecutor(READERS) as threads:
            contents = threads.map(lambda ref: _checked(run, ref), of_name.values())
            stored = dict(zip(of_name, contents, strict=True))
        return stored | {f"commits/{stage}": run.log.digest_of(stage) for stage in stages}


def _checked(run: RunFolder, ref: Ref) -> str:
    """Return the digest of an object's bytes; raises if the object is not what the log says."""
    content = run.store.view(ref.name)
    check_content(content, ref, run.store.url)
    return digest(content)


class Processes:
    """A context manager that keeps the largest memory, threads and open files of this process's descendants.

    It also samples how long the machine's cores were busy.
    """

    def __init__(self) -> None:
        self._seen: dict[int, Counter[str]] = {}
        self._busy: list[tuple[float, float]] = []
        self._done = threading.Event()
        self._looking = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._looking.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._looking.join()

    def most(self, what: str, pids: Iterable[int]) -> int:
        """Return the largest `pss_bytes`, `threads` or `files` of some processes."""
        return max((self._seen[pid][what] for pid in pids if pid in self._seen), default=0)

    def machine_seconds(self, begin: float, end: float) -> float:
        """Return the seconds that all cores were busy between two Unix times, to the next samples."""
        before, after = (min(self._busy, key=lambda sample: abs(sample[0] - moment))[1] for moment in (begin, end))
        return after - before

    def _look(self) -> None:
        own = psutil.Process()
        while not self._done.wait(LOOK_SECONDS):
            spent = psutil.cpu_times()
            self._busy.append((time.time(), sum(spent) - spent.idle - spent.iowait - spent.guest - spent.guest_nice))
            for process in own.children(recursive=True):
                try:
                    now = {
                        "pss_bytes": process_pss_bytes(process.pid),
                        "threads": process.num_threads(),
                        "files": process.num_fds(),
                    }
                except psutil.Error:
                    continue
                seen = self._seen.setdefault(process.pid, Counter())
                for name, value in now.items():
                    seen[name] = max(seen[name], value)


def report(args: argparse.Namespace, compared: dict[str, Any], found: dict[str, Any], raw: dict[str, Any]) -> None:
    rows: list[tuple[str, ...]] = [
        (what, number(mine), number(timed), number(theirs), f"{(timed or mine) / theirs:.2f}")
        for what, (mine, timed, theirs) in compared["pairs"].items()
        if theirs
    ]
    rows.append(("first bottleneck", compared["first bottleneck"], "", "", ""))
    rows.append(FOUND)
    rows += [
        (what, "", "", ("yes" if value else "no") if isinstance(value, bool) else number(value), "")
        for what, value in found.items()
        if not isinstance(value, list)
    ]
    everything = {**compared, "found": found, **raw, "machine": machine(["penstock-rl", "prefect", "distributed"])}
    command = this_command()
    results = args.results or Path(tempfile.mkdtemp())
    print(write_table(results, "two-schedulers", command, rows, everything, head=HEAD))
    if not found["same bytes"]:
        sys.exit(f"{found['objects that differ']} objects differ")


if __name__ == "__main__":
    main()
