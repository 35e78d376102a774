"""A worker that is told to end hands its members' work back, at once and without it counting as a failure.

Kubernetes, Slurm and clouds tell `dask worker` by SIGTERM, and whoever scales a cluster down retires the worker. Dask
then closes the worker while its tasks' threads go on, and counts what it runs as lost with a process that died. So a
plugin that the first member installs asks the scheduler for another place, and tells the members to leave.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from distributed import WorkerPlugin
from distributed.core import Status

from tasks.mailbox import MAILBOX

if TYPE_CHECKING:
    from distributed import Worker

LEFT = "left"
"""The event by which the flow hears of a member whose worker was told to end."""

_NAME = "penstock-notice"
_ENDING = {Status.closing_gracefully, Status.closing, Status.closed}


class _Notice(WorkerPlugin):
    """Called when the worker closes, while it can still be heard."""

    def teardown(self, worker: Worker) -> None:
        with worker.active_threads_lock:
            keys = [str(key) for key in worker.active_threads.values()]
        for key in keys:
            member, _, rest = key.partition(" ")
            topic = rest.rpartition(" ")[0]
            if topic.startswith("penstock/"):
                worker.log_event(topic, {"event": LEFT, "member": member})
                worker.batched_send({"op": "reschedule", "key": key, "stimulus_id": f"penstock-left-{time.time()}"})
                MAILBOX.post(topic, {"leave": "its worker was told to end"})


def install(worker: Worker) -> None:
    """Have a worker hand back what it runs when it is told to end; harmless when done before."""
    worker.loop.add_callback(_install, worker)


async def _install(worker: Worker) -> None:
    if _NAME not in worker.plugins:
        await worker.plugin_add(_Notice(), _NAME)


def is_ending(worker: Worker) -> bool:
    """Whether a worker was told to end."""
    return worker.status in _ENDING
