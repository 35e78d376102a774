"""Trials of kills.py: commands of a run that are disturbed, and given again as a person would give them."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

import psutil

from penstock.flows.api.prefect_server import PrefectServer
from penstock.storage.refs import parse_snapshot_name
from tests.support.processes.commands import Command
from tests.support.stored.power_disk import NoDiskError, PowerDisk

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from penstock.storage.runs.run import RunFolder

POWER, SERVER = "the power", "Prefect's server"
OPERATIONS = ("verify", "copy", "gc")
LIMIT_SECONDS = 600
MOST_KILLS_OF_A_COMMAND = 4


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
    """Gives commands, kills at random, and counts."""

    def __init__(self, folder: Path, chance: random.Random, *, disk: bool = True) -> None:
        """Start Prefect's server; `disk=False` makes no disk to cut the power of."""
        self.folder, self.random = folder, chance
        self.prefect = Prefect()
        self.kills: Counter[str] = Counter()
        self.during: Counter[str] = Counter()
        self.interventions: list[str] = []
        self.refusals = 0
        """Commands that were refused because Prefect's server was down when they began."""
        self.lost_seconds: list[float] = []
        self._numbers = itertools.count()
        self.disk: PowerDisk | None = None
        if disk:
            (folder / "disk").mkdir()
            try:
                self.disk = PowerDisk(folder / "disk")
            except NoDiskError as error:
                print(f"no power is cut: {error}", file=sys.stderr)

    def close(self) -> None:
        """End the server, and unmount the disk."""
        self.prefect.close()
        if self.disk:
            self.disk.unmount()

    def stores(self) -> dict[str, str]:
        """Return the URLs of the stores that runs are drawn from, by kind."""
        stores = {"folder": f"{self.folder}/runs", "s3": "s3://bench/runs"}
        return stores | ({"disk": f"{self.disk.mounted}/runs"} if self.disk else {})

    def start(self, *arguments: str) -> Command:
        """Start a command with everything imported, in a session of its own."""
        return Command(arguments, {}, self.folder / "commands" / str(next(self._numbers)))

    def kill(self, command: Command, victim: str, during: str) -> bool:
        """Kill what the victim names, if it runs; return whether the command was killed itself."""
        chosen = self._chosen(command, victim)
        if victim == SERVER:
            self.prefect.kill()
        elif victim == POWER:
            assert self.disk is not None
            self.disk.cut()
        elif not chosen:
            return False
        for process in chosen:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        if victim == POWER:
            command.kill_group()
            self.disk.unmount()
            self.disk.mount()
        self.kills[victim] += 1
        self.during[during] += 1
        return victim in ("the flow", "everything", POWER)

    def _chosen(self, command: Command, victim: str) -> list[psutil.Process]:
        """Return the processes that a victim stands for, right now."""
        try:
            own = psutil.Process(command.pid)
            descendants = own.children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        workers = [process for process in descendants if is_worker(process, command.pid)]
        if victim == "a worker" and workers:
            return [self.random.choice(workers)]
        if victim == "several workers" and workers:
            return self.random.sample(workers, self.random.randint(1, len(workers)))
        if victim == "the flow":
            return [own]
        return [own, *descendants] if victim in ("everything", POWER) else []

    def survive(
        self,
        run: RunFolder,
        commands: Mapping[str, tuple[str, ...]],
        seconds: float,
        victims: tuple[str, ...],
        most: int,
        after_each: Callable[[], None] | None = None,
    ) -> None:
        """Train a run, disturb up to `most` of its commands, and give the next one until one ends by itself.

        Args:
            run: of a name that is not used yet.
            commands: `train`, and `resume` for when there is a run.
            seconds: what the training takes if nothing disturbs it.
            victims: what kills are drawn from.
            most: the most commands that are disturbed; how many are, is drawn.
            after_each: called after each of these.
        """
        killed_before, started, ended = sum(self.kills.values()), time.perf_counter(), False
        for _ in range(self.random.randint(1, most)):
            ended = self.disturbed(commands["resume" if run.exists() else "train"], seconds, victims)
            if after_each:
                after_each()
            if ended:
                break
        if not ended:
            arguments = commands["resume" if run.exists() else "train"]
            self.end(self.start(*arguments), arguments)
        if kills := sum(self.kills.values()) - killed_before:
            self.lost_seconds += [(time.perf_counter() - started - seconds) / kills] * kills

    def disturbed(self, arguments: tuple[str, ...], seconds: float, victims: tuple[str, ...]) -> bool:
        """Give a command and kill at random moments; return whether it ended by itself, with success."""
        command, without_server = self.start(*arguments), False
        for _ in range(MOST_KILLS_OF_A_COMMAND):
            moment = time.monotonic() + self.random.uniform(0, seconds)
            while command.running and time.monotonic() < moment:
                time.sleep(0.01)
            if not command.running:
                break
            victim = self.random.choice(victims)
            without_server = without_server or victim == SERVER
            if self.kill(command, victim, arguments[0]):
                command.wait(LIMIT_SECONDS)
                return False
        return self.end(command, arguments, without_server=without_server)

    def end(self, command: Command, arguments: tuple[str, ...], *, without_server: bool = False) -> bool:
        """Wait for a command that is not killed; a failure is a manual intervention.

        A command that began while Prefect's server was down, and so was refused, is given again like a killed one.
        """
        if command.wait(LIMIT_SECONDS) == 0:
            return True
        if without_server and "no Prefect server answers" in command.output:
            self.refusals += 1
            return False
        self.interventions.append(f"penstock {' '.join(arguments)}: {command.output[-2000:]}")
        return False

    def clear(self) -> None:
        """Remove what commands printed."""
        shutil.rmtree(self.folder / "commands", ignore_errors=True)


def is_worker(process: psutil.Process, flow: int) -> bool:
    """Return whether a process is a Dask worker: nannies fork them from a server that the flow has started."""
    try:
        return process.ppid() != flow or any("spawn_main" in word for word in process.cmdline())
    except psutil.Error:
        return False


def content(run: RunFolder) -> dict[str, bytes]:
    """Return every commit, every shard that they name, and the state after the newest one."""
    newest = run.log.newest()
    if newest is None:
        return {}
    names = [f"commits/{stage:08d}.json" for stage in range(newest.stage + 1)]
    names += [ref.name for ref in run.log.shard_refs()]
    names += [ref.name for ref in (*newest.states, *newest.snapshots, newest.checkpoint)]
    return {name: run.store.read(name) for name in names}


def published(run: RunFolder) -> dict[str, bytes]:
    """Return every commit with its shards, and every snapshot and arrival order, committed or not."""
    names = [name for folder in ("snapshots/", "orders/") for name in run.store.list(folder)]
    return content(run) | {name: run.store.read(name) for name in names}


def contradicted(run: RunFolder, seen: dict[str, bytes]) -> list[str]:
    """Return the names of files that are not as they were seen, and of several snapshots of a version that was."""
    stored = set(run.store.list())
    names = {name for name, data in seen.items() if name not in stored or run.store.read(name) != data}
    versions = {parse_snapshot_name(name).version for name in seen if name.startswith("snapshots/")}
    names |= {
        name
        for name in stored - seen.keys()
        if name.startswith("snapshots/") and parse_snapshot_name(name).version in versions
    }
    return [f"{run.store.url}/{name}" for name in sorted(names)]


def differing(run: RunFolder, expected: dict[str, bytes]) -> list[str]:
    """Return the names of files that are not as in the undisturbed run."""
    found = content(run)
    return [f"{run.store.url}/{name}" for name in sorted({*found, *expected}) if found.get(name) != expected.get(name)]
