"""Starts Dask clusters of several processes for a benchmark: schedulers, and nodes of workers, each with a cache.

A scheduler is a process of its own, and so are its CPU seconds. The workers of a node are forked from a process that
has imported everything, as on a local cluster.

    python -m benchmarks.cluster.dask_clusters schedule FILE            # for DaskClusters, which starts these
    python -m benchmarks.cluster.dask_clusters work ADDRESS WORKERS
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import dask
from distributed import Client, Nanny, Scheduler

from benchmarks.support.programs import ROOT, own_program
from penstock.tasks.driver.cluster import QUIET
from penstock.tasks.roles.worker.fork_server import start_fork_server

if TYPE_CHECKING:
    from collections.abc import Sequence

ON_LOOPBACK = {"host": "127.0.0.1", "dashboard": False, "dashboard_address": "127.0.0.1:0"}
READY_SECONDS = 180.0
END_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Node:
    """Worker processes of one scheduler that share a cache."""

    scheduler: int
    kind: str
    """The resource that they have, `actor` or `learner`."""
    processes: int
    slots: int
    """Members that a process has room for, each in a thread."""


class DaskClusters:
    """A context manager for schedulers and nodes.

    Args:
        folder: for files that they write; each node's cache is in it.
        nodes: of all schedulers, numbered from 0.

    Attributes:
        addresses: of the schedulers.
        scheduler_pids: of their processes.
        tallies: the files in which `scheduler_tally.py` writes each scheduler's messages when it ends.
    """

    def __init__(self, folder: Path, nodes: Sequence[Node]) -> None:
        self._folder, self._nodes = folder, nodes
        self._schedulers: list[subprocess.Popen[bytes]] = []
        self._workers: list[subprocess.Popen[bytes]] = []
        self.addresses: list[str] = []
        self.tallies: list[Path] = []

    @property
    def scheduler_pids(self) -> list[int]:
        """Return the pids of the schedulers."""
        return [process.pid for process in self._schedulers]

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True)
        try:
            for number in range(1 + max(node.scheduler for node in self._nodes)):
                self._start_scheduler(number)
            for number, node in enumerate(self._nodes):
                self._start_node(number, node)
            self._wait_for_workers()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        # Schedulers last: each writes what it has counted.
        for processes in (self._workers, self._schedulers):
            for process in processes:
                process.terminate()
            for process in processes:
                try:
                    process.wait(END_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def _start_scheduler(self, number: int) -> None:
        told, tally = self._folder / f"scheduler-{number}.txt", self._folder / f"scheduler-{number}.jsonl"
        self.tallies.append(tally)
        environment = {
            "PENSTOCK_SCHEDULER_TALLY": str(tally),
            "DASK_DISTRIBUTED__SCHEDULER__PRELOAD": json.dumps([str(Path(__file__).with_name("scheduler_tally.py"))]),
        }
        process = self._start(f"scheduler-{number}", ["schedule", str(told)], environment)
        self._schedulers.append(process)
        give_up_at = time.monotonic() + READY_SECONDS
        while not told.exists():
            if process.poll() is not None or time.monotonic() > give_up_at:
                raise RuntimeError(f"scheduler {number} did not start: {self._said()}")
            time.sleep(0.05)
        self.addresses.append(told.read_text(encoding="utf-8"))

    def _start_node(self, number: int, node: Node) -> None:
        workers = [
            {"name": f"node-{number}-{index}", "nthreads": node.slots, "resources": {node.kind: float(node.slots)}}
            for index in range(node.processes)
        ]
        arguments = ["work", self.addresses[node.scheduler], json.dumps(workers)]
        environment = {"PENSTOCK_CACHE_DIR": str(self._folder / f"cache-{number}")}
        self._workers.append(self._start(f"node-{number}", arguments, environment))

    def _start(self, name: str, arguments: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
        with (self._folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                own_program("cluster.dask_clusters", *arguments),
                env={**os.environ, **environment},
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _wait_for_workers(self) -> None:
        for number, address in enumerate(self.addresses):
            expected = sum(node.processes for node in self._nodes if node.scheduler == number)
            with Client(address, set_as_default=False) as client:
                try:
                    client.wait_for_workers(expected, timeout=READY_SECONDS)
                except TimeoutError as error:
                    raise RuntimeError(f"not all workers of scheduler {number} started: {self._said()}") from error

    def _said(self) -> str:
        return "\n".join(log.read_text(encoding="utf-8")[-2000:] for log in sorted(self._folder.glob("*.log")))


async def until_terminated() -> None:
    """Wait for SIGTERM."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()


async def schedule(file: Path) -> None:
    """Run a scheduler, whose address the file gets."""
    async with Scheduler(port=0, **ON_LOOPBACK) as scheduler:
        partial = file.with_suffix(".part")
        partial.write_text(scheduler.address, encoding="utf-8")
        partial.rename(file)
        await until_terminated()


async def work(address: str, workers: list[dict[str, Any]]) -> None:
    """Run workers, each a process that its nanny restarts."""
    nannies = await asyncio.gather(*(Nanny(address, memory_limit=0, **ON_LOOPBACK, **worker) for worker in workers))
    await until_terminated()
    await asyncio.gather(*(nanny.close() for nanny in nannies))


def main() -> None:
    what, *arguments = sys.argv[1:]
    dask.config.set({**QUIET, "distributed.worker.multiprocessing-method": "forkserver"})
    if what == "schedule":
        asyncio.run(schedule(Path(arguments[0])))
    else:
        start_fork_server()
        asyncio.run(work(arguments[0], json.loads(arguments[1])))


if __name__ == "__main__":
    main()
