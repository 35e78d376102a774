"""Places on a cluster: what Dask's scheduler counts, read and mended where it counts too little.

The functions that take `dask_scheduler` run in the scheduler's process, between its events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distributed import Scheduler
    from distributed.scheduler import WorkerState


def read_places(dask_scheduler: Scheduler) -> list[dict[str, Any]]:
    """For each worker its resources, what is free of them, and the keys of its tasks.

    Counted from the tasks themselves: the scheduler's own count goes wrong when work stealing moves a task.
    """
    return [
        {"all": dict(worker.resources), "free": _free(worker), "tasks": [str(task.key) for task in worker.processing]}
        for worker in dask_scheduler.workers.values()
    ]


def move_blocked(dask_scheduler: Scheduler, topic: str) -> list[str]:
    """Move members of a gang that wait for a place on a full worker to one that has room; their keys.

    When a worker dies, the scheduler assigns its tasks by what other workers have in total, not by what is free. The
    member then waits behind one that waits for it, for ever, while the restarted worker is idle.
    """
    moved = []
    workers = list(dask_scheduler.workers.values())
    for worker in workers:
        if all(amount >= 0 for amount in _free(worker).values()):
            continue
        # The latest that was assigned: those before it run.
        task = next((task for task in reversed(list(worker.processing)) if f" {topic} " in str(task.key)), None)
        if task is None:
            continue
        wanted = task.resource_restrictions or {}
        if any(
            all(_free(other).get(name, 0.0) >= amount for name, amount in wanted.items())
            for other in workers
            if other is not worker
        ):
            dask_scheduler._reschedule(task.key, stimulus_id="penstock-move")  # noqa: SLF001  (there is no public way)
            moved.append(str(task.key))
    return moved


def _free(worker: WorkerState) -> dict[str, float]:
    free = dict(worker.resources)
    for task in worker.processing:
        for name, amount in (task.resource_restrictions or {}).items():
            free[name] = free.get(name, 0.0) - amount
    return free
