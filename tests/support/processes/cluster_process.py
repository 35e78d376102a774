"""Run a Dask cluster in one process: a scheduler, and nannies whose workers are forked from a fork server.

Further schedulers are separate processes, so that one can be lost alone.

The fork server has imported what workers import, which takes four CPU seconds a worker otherwise, and again after each
kill. So these workers do not test how `dask worker` starts, nor the imports of a new worker.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dask
from distributed import Nanny, Scheduler
from distributed.utils import get_mp_context

from penstock.tasks.driver.cluster import QUIET

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

MODULES = (
    "distributed",
    "penstock.tasks.roles.worker.member",
    "penstock.tasks.runtime.membership",
    "penstock.tasks.analysis.evaluation",
    "penstock.tasks.runtime.run_context",
    "penstock.tasks.roles.worker.entrypoint",
)


HERE = {"host": "127.0.0.1", "dashboard": False, "dashboard_address": "127.0.0.1:0"}


async def serve(file: Path, workers: list[dict[str, Any]]) -> None:
    """Serve until killed; the file gets the addresses of all schedulers, and the pids of all but the first."""
    which = [worker.pop("scheduler", 0) for worker in workers]
    others = await asyncio.to_thread(lambda: [start_scheduler() for _ in range(max(which))])
    async with Scheduler(port=0, **HERE) as scheduler:
        addresses = [scheduler.address, *(address for _, address in others)]
        await asyncio.gather(
            *(
                Nanny(addresses[index], memory_limit=0, **HERE, **worker)
                for index, worker in zip(which, workers, strict=True)
            )
        )
        found = {"address": scheduler.address, "addresses": addresses, "pids": [pid for pid, _ in others]}
        await asyncio.to_thread(file.write_text, json.dumps(found))
        await scheduler.finished()


def start_scheduler() -> tuple[int, str]:
    """Start a scheduler in its own process and return its pid and address."""
    context = get_mp_context()
    here, there = context.Pipe()
    process = context.Process(target=schedule, args=(there,), daemon=True)
    process.start()
    return process.pid, here.recv()


def schedule(parent: Connection) -> None:
    """Run a scheduler until the process is killed, and send its address first."""

    async def run() -> None:
        async with Scheduler(port=0, **HERE) as scheduler:
            parent.send(scheduler.address)
            await scheduler.finished()

    asyncio.run(run())


if __name__ == "__main__":
    dask.config.set({**QUIET, "distributed.worker.multiprocessing-method": "forkserver"})
    get_mp_context().set_forkserver_preload(list(MODULES))
    asyncio.run(serve(Path(sys.argv[1]), json.loads(sys.argv[2])))
