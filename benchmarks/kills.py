"""Kills runs at random moments and compares every byte that they end with to undisturbed runs.

Each run has a policy and a store, drawn by a seed, and is killed several times: its flow, one worker, several workers,
everything, or Prefect's server, which is started again. A command that was killed is given again as a person would
do: `penstock resume`, or `penstock train` where there was no run yet. Then `verify`, `copy` and `gc` are killed and
repeated on it. A command that ends with an error without having been killed counts as a manual intervention.

    python benchmarks/kills.py --kills 1000 --results benchmarks/results/<date>-kills
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))
from measure import machine
from object_server import ObjectServer

from penstock.flows.cli.prefect_server import PrefectServer
from penstock.storage.runs.run import RunFolder
from penstock.storage.stores.open import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator

PENSTOCK = Path(sys.executable).with_name("penstock")
BUCKET = "bench"
POLICIES = {
    "single_learner_coarse": ("--act-tasks", "2"),
    "single_learner_fine": ("--env-tasks", "2"),
    "multiple_learners": ("--learn-tasks", "2"),
    "gpu_only": ("--learn-tasks", "2"),
    "environments": ("--env-tasks", "2", "--learn-tasks", "2"),
    "central": ("--learn-tasks", "2"),
}
VICTIMS = ("the flow", "a worker", "several workers", "everything", "Prefect's server")
OPERATIONS = ("verify", "copy", "gc")
PRESET = """
seed = 7
[environment]
num_envs = 12
envs_per_tile = 4
[algorithm]
hidden = [8]
epochs = 1
minibatches = 2
[schedule]
round_steps = 8
rounds_per_stage = 40
max_stages = 4
evaluation_episodes = 2
[cluster]
lease_seconds = 6.0
"""
LIMIT_SECONDS = 600


class Prefect:
    """A Prefect server that can be killed, and is then started again at the same port."""

    def __init__(self) -> None:
        self._start(0)

    def _start(self, port: int) -> None:
        self._server = PrefectServer(port)
        self._server.wait_ready()
        self._server.direct_here()

    def kill(self) -> None:
        """Kill the server's process, and start another."""
        port = int(self._server.ui_url.rpartition(":")[2])
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
                psutil.Process(connection.pid).kill()
        self._server.__exit__(None, None, None)
        self._start(port)

    def close(self) -> None:
        """End the server."""
        self._server.__exit__(None, None, None)


class Trial:
    """Runs commands, kills them, and counts."""

    def __init__(self, folder: Path, prefect: Prefect, seed: int) -> None:
        self.folder, self.prefect, self.random = folder, prefect, random.Random(seed)
        self.kills: Counter[str] = Counter()
        self.during: Counter[str] = Counter()
        self.interventions: list[str] = []
        self.lost_seconds: list[float] = []

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a command in a session of its own."""
        log = (self.folder / "command.log").open("wb")
        return subprocess.Popen([str(PENSTOCK), *arguments], stdout=log, stderr=log, start_new_session=True)

    def said(self) -> str:
        """Return the end of what the newest command printed."""
        return (self.folder / "command.log").read_text(errors="replace")[-2000:]

    def kill(self, command: subprocess.Popen[bytes], victim: str, during: str) -> bool:
        """Kill what the victim names, if it runs; returns whether the command was killed itself."""
        own = psutil.Process(command.pid)
        descendants = own.children(recursive=True)
        workers = [process for process in descendants if process.ppid() != command.pid]
        chosen = {
            "the flow": [own],
            "a worker": workers and [self.random.choice(workers)],
            "several workers": self.random.sample(workers, self.random.randint(1, len(workers))) if workers else [],
            "everything": [own, *descendants],
            "Prefect's server": [],
        }[victim]
        if victim == "Prefect's server":
            self.prefect.kill()
        elif not chosen:
            return False
        for process in chosen:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self.kills[victim] += 1
        self.during[during] += 1
        return own in chosen

    def disturbed(self, arguments: tuple[str, ...], seconds: float, victims: tuple[str, ...]) -> bool:
        """Give a command, kill at a random moment within `seconds`; return whether it ended by itself, with success."""
        command, during = self.start(*arguments), arguments[0]
        try:
            command.wait(self.random.uniform(0, seconds))
        except subprocess.TimeoutExpired:
            try:
                if self.kill(command, self.random.choice(victims), during):
                    command.wait(LIMIT_SECONDS)
                    return False
            except psutil.NoSuchProcess:
                pass
        return self.end(command, arguments)

    def end(self, command: subprocess.Popen[bytes], arguments: tuple[str, ...]) -> bool:
        """Wait for a command that is not killed; a failure is a manual intervention."""
        if command.wait(LIMIT_SECONDS) == 0:
            return True
        self.interventions.append(f"penstock {' '.join(arguments)}: {self.said()}")
        return False


def content(run: RunFolder) -> dict[str, bytes]:
    """Return every commit, every shard that they name, and the state after the newest one."""
    newest = run.log.newest()
    assert newest is not None
    names = [f"commits/{stage:08d}.json" for stage in range(newest.stage + 1)]
    names += [ref.name for ref in run.log.shard_refs()]
    names += [ref.name for ref in (*newest.states, *newest.snapshots, newest.checkpoint)]
    return {name: run.store.read(name) for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--results", type=Path, help="without suffix; .json and .md are written")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-kills-") as name, ObjectServer() as server:
        folder = Path(name)
        (preset := folder / "preset.toml").write_text(PRESET)
        os.environ |= {"PREFECT_HOME": f"{folder}/prefect", "COLUMNS": "200", **server.environment}
        urllib.request.urlopen(urllib.request.Request(f"{server.endpoint}/{BUCKET}", method="PUT"), timeout=30).close()
        prefect = Prefect()
        try:
            report(args, *measure(args, Trial(folder, prefect, args.seed), str(preset)))
        finally:
            prefect.close()


def measure(args: argparse.Namespace, trial: Trial, preset: str) -> tuple[Trial, int, list[str]]:
    """Kill until there were enough kills; return the trial, the number of runs, and the differences."""
    expected: dict[str, dict[str, bytes]] = {}
    seconds: dict[str, float] = {}
    differences: list[str] = []
    runs = 0
    for runs in counting():
        policy, store = trial.random.choice(sorted(POLICIES)), trial.random.choice(("folder", "s3"))
        if policy not in expected:
            expected[policy], seconds[policy] = undisturbed(trial, preset, policy)
        url = f"{trial.folder}/runs" if store == "folder" else f"s3://{BUCKET}/runs"
        run = RunFolder(open_store(url), f"run-{runs}")
        train = ("train", preset, "--name", run.name, "--store", url, "--policy", policy, *POLICIES[policy])
        resume = ("resume", run.name, "--store", url)
        killed_before, started = sum(trial.kills.values()), time.perf_counter()
        for _ in range(trial.random.randint(1, 5)):
            if trial.disturbed(resume if run.exists() else train, seconds[policy], VICTIMS):
                break
        newest = run.log.newest() if run.exists() else None
        if newest is None or not newest.finished:
            arguments = resume if run.exists() else train
            trial.end(trial.start(*arguments), arguments)
        if kills := sum(trial.kills.values()) - killed_before:
            trial.lost_seconds += [(time.perf_counter() - started - seconds[policy]) / kills] * kills
        differences += differing(run, expected[policy])
        for operation in OPERATIONS:
            differences += operate(trial, run, url, operation, expected[policy])
        total = sum(trial.kills.values())
        print(f"run {runs}: {policy}, {store}; {total} kills, {len(differences)} differences, "
              f"{len(trial.interventions)} interventions", flush=True)  # fmt: skip
        shutil.rmtree(trial.folder / "copies", ignore_errors=True)
        run.store.delete(run.store.list())
        if total >= args.kills:
            break
    return trial, runs, differences


def counting() -> Iterator[int]:
    number = 0
    while True:
        number += 1
        yield number


def undisturbed(trial: Trial, preset: str, policy: str) -> tuple[dict[str, bytes], float]:
    """Return the content of a run that nothing disturbs, and the seconds of its command."""
    url, started = f"{trial.folder}/undisturbed", time.perf_counter()
    name = policy.replace("_", "-")
    command = trial.start("train", preset, "--name", name, "--store", url, "--policy", policy, *POLICIES[policy])
    if command.wait(LIMIT_SECONDS):
        sys.exit(f"the undisturbed run of {policy} failed: {trial.said()}")
    return content(RunFolder(open_store(url), name)), time.perf_counter() - started


def operate(trial: Trial, run: RunFolder, url: str, operation: str, expected: dict[str, bytes]) -> list[str]:
    """Kill a command on a finished run, give it again, and return what differs then."""
    copies = f"{trial.folder}/copies"
    arguments = (operation, run.name, *((copies,) if operation == "copy" else ()), "--store", url)
    if not trial.disturbed(arguments, 2.0, ("the flow",)):
        trial.end(trial.start(*arguments), arguments)
    return differing(RunFolder(open_store(copies), run.name) if operation == "copy" else run, expected)


def differing(run: RunFolder, expected: dict[str, bytes]) -> list[str]:
    found = content(run)
    return [f"{run.store.url}/{name}" for name in sorted({*found, *expected}) if found.get(name) != expected.get(name)]


def report(args: argparse.Namespace, trial: Trial, runs: int, differences: list[str]) -> None:
    """Print the table, and write it where it was asked for."""
    command = "python benchmarks/kills.py " + " ".join(f"--{name} {getattr(args, name)}" for name in ("kills", "seed"))
    result: dict[str, Any] = {
        "command": command,
        "runs": runs,
        "kills": sum(trial.kills.values()),
        "of": dict(trial.kills),
        "during": dict(trial.during),
        "differences": differences,
        "manual_interventions": trial.interventions,
        "lost_seconds_per_kill": median(trial.lost_seconds) if trial.lost_seconds else None,
        "machine": machine(["penstock-rl", "torch", "prefect", "distributed"]),
    }
    lost = result["lost_seconds_per_kill"]
    rows = {
        "runs": runs,
        "kills": result["kills"],
        "kills of": ", ".join(f"{name} {count}" for name, count in trial.kills.most_common()),
        "kills during": ", ".join(f"{name} {count}" for name, count in trial.during.most_common()),
        "files that differ from the undisturbed run": len(differences),
        "manual interventions": len(trial.interventions),
        "seconds lost per kill of a run, median": "-" if lost is None else f"{lost:.1f}",
    }
    table = "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])
    print(table)
    for intervention in trial.interventions:
        print(intervention)
    if args.results:
        args.results.with_suffix(".json").write_text(json.dumps(result, indent=2) + "\n")
        args.results.with_suffix(".md").write_text(f"# Kills\n\n    {command}\n\n{table}\n")


if __name__ == "__main__":
    main()
