"""A worker that is told to end hands its members' work back, at once and without it counting as a failure.

Kubernetes, Slurm and clouds tell `dask worker` by SIGTERM, and whoever scales a cluster down retires the worker. Dask
then closes the worker while its tasks' threads go on, and counts what it runs as lost with a process that died. So a
plugin that the first member installs asks the scheduler for another place, and tells the members to leave.

A process ends only when its last thread does, and a thread of a member may wait for a host that says nothing any more.
Its nanny would wait with it, and nothing would start a new worker; so a worker that has closed has a time to end in.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import threading
import time
from typing import TYPE_CHECKING

from distributed import WorkerPlugin
from distributed.core import Status

from tasks.mailbox import MAILBOX

if TYPE_CHECKING:
    from distributed import Worker

LEFT = "left"
"""The event by which the flow hears of a member whose worker was told to end."""

END_SECONDS = 20.0
"""What threads of a worker that closed have to come to their end, before its process is ended under them."""

logger = logging.getLogger(__name__)

_NAME = "penstock-notice"
_ENDING = {Status.closing_gracefully, Status.closing, Status.closed}


class _Notice(WorkerPlugin):
    """Called when the worker closes, while it can still be heard."""

    def __init__(self, end_seconds: float) -> None:
        self._end_seconds = end_seconds

    def teardown(self, worker: Worker) -> None:
        # Without a nanny it is a thread among others of somebody's process.
        if worker.nanny:
            timer = threading.Timer(self._end_seconds, _end, (self._end_seconds,))
            timer.daemon = True
            timer.start()
        with worker.active_threads_lock:
            keys = [str(key) for key in worker.active_threads.values()]
        for key in keys:
            member, _, rest = key.partition(" ")
            topic = rest.rpartition(" ")[0]
            if topic.startswith("penstock/"):
                worker.log_event(topic, {"event": LEFT, "member": member})
                worker.batched_send({"op": "reschedule", "key": key, "stimulus_id": f"penstock-left-{time.time()}"})
                MAILBOX.post(topic, {"leave": "its worker was told to end"})


def install(worker: Worker, end_seconds: float = END_SECONDS) -> None:
    """Have a worker hand back what it runs when it is told to end, and end; harmless when done before."""
    worker.loop.add_callback(_install, worker, end_seconds)


async def _install(worker: Worker, end_seconds: float) -> None:
    if _NAME not in worker.plugins:
        await worker.plugin_add(_Notice(end_seconds), _NAME)


def _end(after_seconds: float) -> None:
    logger.warning("this worker closed %g s ago and its threads go on: it ends now, and they are at", after_seconds)
    faulthandler.dump_traceback(all_threads=True)
    os._exit(1)


def is_ending(worker: Worker) -> bool:
    """Whether a worker was told to end."""
    return worker.status in _ENDING
