"""Runs one training of many short stages for hours, and measures whether anything grows that should not.

The run is a user's: `penstock train` as a process, with its own Prefect server, workers on this machine, and a store in
a folder or on an S3 server. A stage takes about a second, since leaks grow with stages rather than with steps, and the
run never ends by itself. Every few seconds a sample is taken of each kind of process (resident memory, open files,
sockets, threads, memory maps, CPU time) and of Prefect's database, the node's cache, temporary files and the stored
run. At the end the run is stopped as Ctrl-C does, and processes that it leaves behind are counted and killed.

    python -m benchmarks.faults.soak --seconds 28800 --results benchmarks/results/<date>-soak
    python -m benchmarks.faults.soak --seconds 3600 --store s3 --results benchmarks/results/<date>-soak-s3

The table has each series' first and last value after the warm-up, and its slope with a 95 % interval (`trends.py`): per
hour, and per 1,000 stages where it grows. Parts may run on other days: each adds itself to the same results, and the
slopes are those that all parts share. With `--folder FOLDER` a part resumes the run of the part before, with its
database. Dask keeps its last 1,000 log records, one for each stage in a worker: the warm-up should have as many stages.

The object server keeps its objects in memory, so `--store s3` is for a few hours. Only its runs use the node's cache.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import fcntl
import json
import math
import os
import shutil
import signal
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from pathlib import Path
from typing import Any

import psutil
import s3fs

from benchmarks.faults.trends import series_of, slopes_table
from benchmarks.peers.measure import machine
from benchmarks.support.object_server import ObjectServer
from penstock.storage.errors import PenstockError
from penstock.storage.runs.run import RunFolder
from penstock.storage.runs.timings import decode_timings
from penstock.storage.stores.open import open_store
from tests.support.processes.commands import Command, is_alive, wait_until

NAME = "soak"
FLOW, SERVER, OTHERS = "flow", "Prefect server", "others"
"""Kinds of process; workers are named by their role. Workers of this machine have their scheduler and nannies in the
flow's process. Others are the process that workers are forked from, and Python's resource trackers."""
BY_DESIGN = ("database_bytes", "stored_bytes", "stored_files")
LIMIT_SECONDS = 300.0  # to the first commit, and to the end after Ctrl-C
CACHE_LIMIT_BYTES = 16 << 20
"""Of the node's cache: full after some hundred stages, so that it evicts."""
FREE_BYTES = 2 << 30
"""The run is stopped when its disk has less."""
FILES_SHARE = 0.05
"""Largest share of the time that is spent on counting the stored files, which are many after some hours."""
PRESET = """
seed = 7
[environment]
num_envs = 8
envs_per_tile = 8
[algorithm]
hidden = [8]
epochs = {epochs}
minibatches = 2
learning_rate = 1e-6
[schedule]
round_steps = 32
rounds_per_stage = 4
max_stages = 1_000_000_000
evaluate_every_stages = 1_000_000_000
"""


class Soak:
    """A run that is sampled while it trains.

    Args:
        args: the command's arguments.
        folder: keeps the run, Prefect's home and the cache.
        temporary: the run's folder for temporary files.
        server: the store, if it is none in `folder`.
    """

    def __init__(self, args: argparse.Namespace, folder: Path, temporary: Path, server: ObjectServer | None) -> None:
        self.args, self.folder, self.temporary, self.server = args, folder, temporary, server
        self.url = "s3://bench/runs" if server else f"{folder}/runs"
        self.run = RunFolder(open_store(self.url), NAME)
        self.samples: list[dict[str, float]] = []
        self.problem = ""
        self._cpu_seconds: dict[psutil.Process, tuple[str, float]] = {}
        self._roles: dict[int, str] = {}
        self._files_measured_from = 0.0

    def measure(self) -> dict[str, Any]:
        """Start, sample and stop the run; return this part's figures."""
        (preset := self.folder / "preset.toml").write_text(PRESET.format(epochs=self.args.epochs))
        given = ("resume", NAME) if self.run.exists() else ("train", str(preset), "--name", NAME)
        earlier = self._stages()
        given += ("--store", self.url, "--cluster.cache-limit-bytes", str(CACHE_LIMIT_BYTES))
        self.command = Command(given, {}, self.temporary.parent / "command", cold=True)
        try:
            wait_until(lambda: self._ended() or self._stages() > earlier, "a first commit", LIMIT_SECONDS, 0.5)
            self._sample_all()
        except KeyboardInterrupt:
            print("the run is stopped early", flush=True)
        except (AssertionError, OSError, psutil.Error, PenstockError) as error:
            self.problem = f"{type(error).__name__}: {error}"  # what was measured until now is kept
        finally:
            ended = self._end()
        return self._part(ended)

    def _ended(self) -> bool:
        """Return whether the run has ended by itself or must end, and keep the reason."""
        if not self.command.running:
            self.problem = f"the run ended by itself: {self.command.output[-2000:]}"
        elif (free := shutil.disk_usage(self.folder).free) < FREE_BYTES:
            self.problem = f"the run was stopped: the disk of {self.folder} has only {free / 2**20:,.0f} MiB left"
        return bool(self.problem)

    def _stages(self) -> int:
        newest = self.run.log.newest() if self.run.exists() else None
        return newest.stage + 1 if newest else 0

    def _sample_all(self) -> None:
        begun = time.monotonic()
        while (elapsed := time.monotonic() - begun) < self.args.seconds and not self._ended():
            self.samples.append(sample := {"hours": elapsed / 3600, **self._sample()})
            memory = sum(value for name, value in sample.items() if name.endswith("rss_bytes"))
            print(f"{elapsed:.0f} s: {sample['stages']:.0f} stages, {memory / 2**20:.0f} MiB", flush=True)
            time.sleep(max(0.0, begun + len(self.samples) * self.args.interval_seconds - time.monotonic()))

    def _sample(self) -> dict[str, float]:
        found: dict[str, float] = defaultdict(float)
        found["stages"] = self._stages()
        for process, kind in self._processes():
            with contextlib.suppress(psutil.Error, OSError):  # it has ended
                figures = process_figures(process)
                spent = process.cpu_times()
                self._cpu_seconds[process] = (kind, spent.user + spent.system)
                found["processes"] += 1
                for name, value in figures.items():
                    found[f"{kind}: {name}"] += value
        for kind, seconds in self._cpu_seconds.values():
            found[f"{kind}: cpu_seconds"] += seconds
        found["database_bytes"], database_files = folder_size(self.folder / "prefect", "prefect.db")
        found["other_prefect_files"] = folder_size(self.folder / "prefect")[1] - database_files
        found["temporary_bytes"], found["temporary_files"] = folder_size(self.temporary)
        found["cache_bytes"], found["cache_files"] = folder_size(self.folder / "cache")
        found["stored_bytes"], found["stored_files"] = self._stored_size()
        if self.server:
            self.server.requests()  # it keeps a record of each until they are fetched
        return dict(found)

    def _stored_size(self) -> tuple[float, float]:
        """Return the bytes and the number of the run's files; NaN if it is too early to count them again."""
        started = time.monotonic()
        if started < self._files_measured_from:
            return math.nan, math.nan
        if self.server:
            files = s3fs.S3FileSystem(use_listings_cache=False).find(f"{self.url}/{NAME}", detail=True)
            found = float(sum(file["size"] for file in files.values())), float(len(files))
        else:
            found = folder_size(Path(self.url) / NAME)
        self._files_measured_from = time.monotonic() + (time.monotonic() - started) / FILES_SHARE
        return found

    def _processes(self) -> list[tuple[psutil.Process, str]]:
        """Return the run's processes and their kinds."""
        try:
            flow = psutil.Process(self.command.pid)
            found = [(flow, FLOW)]
            for process in flow.children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    parent = process.parent()
                    is_server = (parent, SERVER) in found or any("serve_prefect" in part for part in process.cmdline())
                    other = OTHERS if parent == flow else self._role(process.pid)
                    found.append((process, SERVER if is_server else other))
        except psutil.NoSuchProcess:
            return []
        return found

    def _role(self, pid: int) -> str:
        """Return a worker's kind, by the role of its members in the newest stage that has timings."""
        if pid not in self._roles:
            newest = self._stages() - 1
            names = [name for stage in (newest - 1, newest) for name in self.run.store.list(f"timings/{stage:08d}-")]
            for timings in map(decode_timings, map(self.run.store.read, names)):
                for member, place in timings.members.items() if timings else ():
                    self._roles[place.pid] = f"{member.rpartition('-')[0]} worker"
        return self._roles.get(pid, OTHERS)

    def _end(self) -> dict[str, Any]:
        """Stop the run as Ctrl-C does, kill what remains of it, and return how it ended."""
        processes, started = {*self._cpu_seconds, *(process for process, _ in self._processes())}, time.monotonic()
        self.command.send(signal.SIGINT)
        status: int | None = None
        try:
            status = self.command.wait(LIMIT_SECONDS)
        except AssertionError as error:
            self.problem = self.problem or str(error)[-2000:]
        seconds = time.monotonic() - started
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not remaining(processes), "no process", 30.0, 0.5)
        left = remaining(processes)
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        return {"status": status, "seconds": round(seconds, 1), "processes_left": len(left)}

    def _part(self, ended: dict[str, Any]) -> dict[str, Any]:
        """Return the figures of the samples after the warm-up."""
        samples = [sample for sample in self.samples if sample["hours"] * 3600 >= self.args.warm_up_seconds]
        if len(samples) < 3:
            sys.exit(f"{len(samples)} samples after the warm-up are too few: {self.problem or 'give more --seconds'}")
        first, last = samples[0], samples[-1]
        seconds = (last["hours"] - first["hours"]) * 3600
        spent = {name.partition(":")[0]: last[name] - first.get(name, 0.0) for name in last if "cpu_seconds" in name}
        options = ("seconds", "interval_seconds", "warm_up_seconds", "store", "epochs")
        given = [f"--{name.replace('_', '-')} {getattr(self.args, name)}" for name in options]
        given += ["--folder FOLDER"] if self.args.folder else []
        return {
            "command": f"python -m benchmarks.faults.soak {' '.join(given)}",
            "date": dt.datetime.now(tz=dt.UTC).date().isoformat(),
            "measured_seconds": round(seconds),
            "samples": len(samples),
            "first_stage": int(first["stages"]),
            "stages": int(last["stages"] - first["stages"]),
            "cores": {kind: round(cpu_seconds / seconds, 3) for kind, cpu_seconds in spent.items()},
            "ended": ended,
            "problem": self.problem,
            "series": series_of(samples),
            "machine": machine(["penstock-rl", "torch", "prefect", "distributed"]),
        }


def remaining(processes: set[psutil.Process]) -> list[psutil.Process]:
    """Return those that still run."""
    return [process for process in processes if process.is_running() and is_alive(process.pid)]


def process_figures(process: psutil.Process) -> dict[str, float]:
    """Return what a process occupies; raises psutil.Error or OSError if it has ended."""
    descriptors, sockets = list(Path(f"/proc/{process.pid}/fd").iterdir()), 0
    for descriptor in descriptors:
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            sockets += str(descriptor.readlink()).startswith("socket:")
    return {
        "rss_bytes": process.memory_info().rss,
        "open_files": len(descriptors),
        "sockets": sockets,
        "threads": process.num_threads(),
        "memory_maps": Path(f"/proc/{process.pid}/maps").read_bytes().count(b"\n"),
    }


def folder_size(folder: Path, start: str = "") -> tuple[float, float]:
    """Return the bytes and the number of the files below a folder whose names begin so; 0 if it does not exist."""
    nbytes, files, folders = 0.0, 0.0, [str(folder)]
    while folders:
        with contextlib.suppress(FileNotFoundError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif entry.name.startswith(start):
                    with contextlib.suppress(FileNotFoundError):
                        nbytes += entry.stat(follow_symlinks=False).st_size
                        files += 1
    return nbytes, files


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=3600, help="from the first commit on, warm-up included")
    parser.add_argument("--interval-seconds", type=int, default=10, help="between samples")
    parser.add_argument("--warm-up-seconds", type=int, default=120, help="samples before it are left out")
    parser.add_argument("--store", choices=("folder", "s3"), default="folder")
    parser.add_argument("--epochs", type=int, default=64, help="more make a stage longer")
    parser.add_argument("--folder", type=Path, help="keeps run and database, for a later part; default: temporary")
    parser.add_argument("--results", type=Path, help="without suffix; .json and .md are written")
    args = parser.parse_args()
    if args.folder and args.store == "s3":
        parser.error("--folder can't keep what the object server has in memory: leave out --folder or --store s3")
    # A shell that starts this in the background makes it, and so the run, ignore Ctrl-C.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    for name in [name for name in os.environ if name.startswith("PREFECT_")]:
        del os.environ[name]
    with contextlib.ExitStack() as stack:
        own = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-soak-")))
        (temporary := own / "tmp").mkdir()
        (folder := (args.folder or own / "kept").absolute()).mkdir(parents=True, exist_ok=True)
        server = stack.enter_context(ObjectServer()) if args.store == "s3" else None
        if server:
            os.environ |= server.environment
            urllib.request.urlopen(urllib.request.Request(f"{server.endpoint}/bench", method="PUT"), timeout=30).close()
        os.environ |= {"PREFECT_HOME": f"{folder}/prefect", "PENSTOCK_CACHE_DIR": f"{folder}/cache", "COLUMNS": "200"}
        os.environ |= {"PENSTOCK_CONFIG_DIR": f"{folder}/config", "TMPDIR": str(temporary)}
        parts = [Soak(args, folder, temporary, server).measure()]
    if args.results:
        parts = add(args.results, parts[0])
    print(table(parts))


def add(results: Path, part: dict[str, Any]) -> list[dict[str, Any]]:
    """Add a part to the results, a line each, and write the table anew; return all parts."""
    with results.with_suffix(".json").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        parts = [*json.loads(file.read() or "[]"), part]
        file.truncate(0)
        file.write("[\n" + ",\n".join(map(json.dumps, parts)) + "\n]\n")
        commands = "\n".join(f"    {part['command']}" for part in parts)
        results.with_suffix(".md").write_text(f"# A long run of short stages\n\n{commands}\n\n{table(parts)}\n")
    return parts


def table(parts: list[dict[str, Any]]) -> str:
    """Return a table of the parts, one of the series, and what went wrong."""
    lines = ["| part | seconds | stages | cores used | Ctrl-C | processes left |", "|---|---|---|---|---|---|"]
    problems = []
    for number, part in enumerate(parts, 1):
        cores = ", ".join(f"{kind} {used:.2f}" for kind, used in part["cores"].items())
        cells = [
            f"{number}, {part['date']}",
            f"{part['measured_seconds']:,}",
            f"{part['stages']:,} after {part['first_stage']:,}",
            f"{sum(part['cores'].values()):.2f} ({cores})",
            f"status {part['ended']['status']} after {part['ended']['seconds']:g} s",
            str(part["ended"]["processes_left"]),
        ]
        lines.append(f"| {' | '.join(cells)} |")
        if part["problem"]:
            problems.append(f"\nPart {number}: {part['problem']}")
    return "\n".join([*lines, "", *slopes_table([part["series"] for part in parts], BY_DESIGN), *problems])


if __name__ == "__main__":
    main()
