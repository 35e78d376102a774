"""Preemption: a worker that is asked to end hands back its members' work at once, which does not count as a failure.

Kubernetes, Slurm and clouds send SIGTERM to `dask worker`, and scaling a cluster down retires the worker. Dask then
closes the worker while its tasks' threads continue, and counts its tasks as lost with a dead process. So a plugin,
which the first member installs, asks the scheduler to reschedule the members and makes them leave.

A process ends only with its last thread, and a member's thread may wait for a host that does not answer. Its nanny
would wait with it, and nothing would start a new worker; so a closed worker has a deadline.
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

from penstock.tasks.runtime.assignment import TOPIC_PREFIX
from penstock.tasks.runtime.events import Preempted, encode_event
from penstock.tasks.runtime.mailbox import MAILBOX

if TYPE_CHECKING:
    from distributed import Worker

END_SECONDS = 20.0
"""Deadline for the threads of a closed worker, after which its process is ended."""

logger = logging.getLogger(__name__)

_NAME = "penstock-preemption"
_ENDING = {Status.closing_gracefully, Status.closing, Status.closed}


class _Preemption(WorkerPlugin):
    """Runs when the worker closes, while it can still send messages."""

    def __init__(self, end_seconds: float) -> None:
        self._end_seconds = end_seconds

    def teardown(self, worker: Worker) -> None:
        # Without a nanny, the worker is a thread of another program's process.
        if worker.nanny:
            timer = threading.Timer(self._end_seconds, _end, (self._end_seconds,))
            timer.daemon = True
            timer.start()
        with worker.active_threads_lock:
            keys = [str(key) for key in worker.active_threads.values()]
        for key in keys:
            member, _, rest = key.partition(" ")
            topic = rest.rpartition(" ")[0]
            if topic.startswith(TOPIC_PREFIX):
                worker.log_event(topic, encode_event(Preempted(member, worker.address)))
                worker.batched_send({"op": "reschedule", "key": key, "stimulus_id": f"penstock-left-{time.time()}"})
                MAILBOX.post(topic, {"leave": "its worker was preempted"})


def install(worker: Worker, end_seconds: float = END_SECONDS) -> None:
    """Let a worker hand back its tasks when it is preempted, and end; idempotent."""
    worker.loop.add_callback(_install, worker, end_seconds)


async def _install(worker: Worker, end_seconds: float) -> None:
    if _NAME not in worker.plugins:
        await worker.plugin_add(_Preemption(end_seconds), _NAME)


def _end(after_seconds: float) -> None:
    logger.warning("this worker closed %g s ago and its threads still run: ending it; stacks follow", after_seconds)
    faulthandler.dump_traceback(all_threads=True)
    os._exit(1)


def is_ending(worker: Worker) -> bool:
    """Return whether a worker was preempted."""
    return worker.status in _ENDING
