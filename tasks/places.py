"""Places on a cluster: what Dask's scheduler counts, read and mended where it counts too little.

The functions that take `dask_scheduler` run in the scheduler's process, between its events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from distributed import Scheduler
    from distributed.scheduler import TaskState, WorkerState


def read_places(dask_scheduler: Scheduler) -> list[dict[str, Any]]:
    """For each worker that is not about to end its resources, what is free of them, and the keys of its tasks.

    Counted from the tasks themselves: the scheduler's own count goes wrong when work stealing moves a task.
    """
    return [
        {
            "all": dict(worker.resources),
            "free": _free(worker, worker.processing),
            "tasks": [str(task.key) for task in worker.processing],
        }
        for worker in dask_scheduler.running
    ]


def worker_addresses(dask_scheduler: Scheduler) -> list[str]:
    """Of the workers that are there."""
    return list(dask_scheduler.workers)


def move_blocked(dask_scheduler: Scheduler, topic: str) -> list[str]:
    """Move members of a gang that wait for a place on a full worker to one that has room; their keys.

    When a worker dies, the scheduler assigns its tasks by what other workers have in total, not by what is free. The
    member then waits behind one that waits for it, for ever, while the restarted worker is idle.

    Only a task that cannot be running is moved: one that its worker's latest heartbeat did not name, while those that
    it named leave no room. A task that runs cannot be taken back; moved, it would run twice and keep its place.
    """
    moved = []
    workers = list(dask_scheduler.workers.values())
    for worker in workers:
        running = worker.processing & worker.executing.keys()
        room = _free(worker, running)
        for task in worker.processing - running:
            wanted = task.resource_restrictions or {}
            if f" {topic} " not in str(task.key) or _fits(wanted, room):
                continue
            others = (other for other in dask_scheduler.running if other is not worker)
            if any(_fits(wanted, _free(other, other.processing)) for other in others):
                dask_scheduler._reschedule(task.key, stimulus_id="penstock-move")  # noqa: SLF001  (no public way)
                moved.append(str(task.key))
    return moved


def placeless(dask_scheduler: Scheduler, topic: str) -> list[str]:
    """Keys of members of a gang that wait for a place while no worker has room for them."""
    running = {
        task for worker in dask_scheduler.workers.values() for task in worker.processing & worker.executing.keys()
    }
    rooms = [_free(worker, worker.processing & running) for worker in dask_scheduler.running]
    return [
        str(task.key)
        for task in dask_scheduler.tasks.values()
        if f" {topic} " in str(task.key)
        and task.state in {"no-worker", "queued", "waiting", "processing"}
        and task not in running
        and not any(_fits(task.resource_restrictions or {}, room) for room in rooms)
    ]


def _free(worker: WorkerState, tasks: Iterable[TaskState]) -> dict[str, float]:
    """What these of its tasks leave of a worker's resources."""
    free = dict(worker.resources)
    for task in tasks:
        for name, amount in (task.resource_restrictions or {}).items():
            free[name] = free.get(name, 0.0) - amount
    return free


def _fits(wanted: Mapping[str, float], free: Mapping[str, float]) -> bool:
    return all(free.get(name, 0.0) >= amount for name, amount in wanted.items())
