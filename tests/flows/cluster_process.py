"""The program of a process that is a Dask cluster: a scheduler, and nannies whose workers are forked from one process.

More schedulers beside it, for workers that name them, are processes of their own, so that one can be lost alone.

That one has imported what workers import, which costs four CPU seconds a worker otherwise, and again whenever one is
killed. It shows nothing of how `dask worker` starts, nor of what a worker has yet to import when a run begins.
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

from tasks.cluster import QUIET

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

MODULES = ("distributed", "tasks.member", "tasks.membership", "tasks.evaluate", "tasks.context", "tasks.replica")


HERE = {"host": "127.0.0.1", "dashboard": False, "dashboard_address": "127.0.0.1:0"}


async def serve(file: Path, workers: list[dict[str, Any]]) -> None:
    """Until it is killed; the file tells the addresses of all schedulers, and the pids of those beside the first."""
    which = [worker.pop("scheduler", 0) for worker in workers]
    beside = await asyncio.to_thread(lambda: [start_beside() for _ in range(max(which))])
    async with Scheduler(port=0, **HERE) as scheduler:
        addresses = [scheduler.address, *(address for _, address in beside)]
        await asyncio.gather(
            *(
                Nanny(addresses[index], memory_limit=0, **HERE, **worker)
                for index, worker in zip(which, workers, strict=True)
            )
        )
        told = {"address": scheduler.address, "addresses": addresses, "pids": [pid for pid, _ in beside]}
        await asyncio.to_thread(file.write_text, json.dumps(told))
        await scheduler.finished()


def start_beside() -> tuple[int, str]:
    """A scheduler in a process of its own: its pid and address."""
    context = get_mp_context()
    here, there = context.Pipe()
    process = context.Process(target=schedule, args=(there,), daemon=True)
    process.start()
    return process.pid, here.recv()


def schedule(tell: Connection) -> None:
    """What such a process does, until it is killed."""

    async def run() -> None:
        async with Scheduler(port=0, **HERE) as scheduler:
            tell.send(scheduler.address)
            await scheduler.finished()

    asyncio.run(run())


if __name__ == "__main__":
    dask.config.set({**QUIET, "distributed.worker.multiprocessing-method": "forkserver"})
    get_mp_context().set_forkserver_preload(list(MODULES))
    asyncio.run(serve(Path(sys.argv[1]), json.loads(sys.argv[2])))
