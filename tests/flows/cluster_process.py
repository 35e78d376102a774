"""The program of a process that is a Dask cluster: a scheduler, and nannies whose workers are forked from one process.

That one has imported what workers import, which costs four CPU seconds a worker otherwise, and again whenever one is
killed. It shows nothing of how `dask worker` starts, nor of what a worker has yet to import when a run begins.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import dask
from distributed import Nanny, Scheduler
from distributed.utils import get_mp_context

from tasks.cluster import QUIET

MODULES = ("distributed", "tasks.member", "tasks.membership", "tasks.evaluate", "tasks.context", "tasks.replica")


async def serve(file: Path, workers: list[dict[str, Any]]) -> None:
    """Until it is killed; the file tells the scheduler's address."""
    here = {"host": "127.0.0.1", "dashboard": False, "dashboard_address": "127.0.0.1:0"}
    async with Scheduler(port=0, **here) as scheduler:
        await asyncio.gather(*(Nanny(scheduler.address, memory_limit=0, **here, **worker) for worker in workers))
        await asyncio.to_thread(file.write_text, json.dumps({"address": scheduler.address}))
        await scheduler.finished()


if __name__ == "__main__":
    dask.config.set({**QUIET, "distributed.worker.multiprocessing-method": "forkserver"})
    get_mp_context().set_forkserver_preload(list(MODULES))
    asyncio.run(serve(Path(sys.argv[1]), json.loads(sys.argv[2])))
