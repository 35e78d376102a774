"""Worker slots: reads free resources from Dask's scheduler, and reschedules members that it assigned to full workers.

The functions that take `dask_scheduler` run in the scheduler's process, between its events.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Literal, TypeAlias, TypedDict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from distributed import Scheduler
    from distributed.scheduler import TaskState, WorkerState


SlotKind: TypeAlias = Literal["all", "free"]


class WorkerSlots(TypedDict):
    """A worker's address, its resources by name, all of them and the free ones, and the keys of its tasks.

    A member keeps a thread of its worker, so a role has no more slots there than threads, whatever the resources are.
    """

    address: str
    all: dict[str, float]
    free: dict[str, float]
    threads: int
    tasks: list[str]


class SchedulerLoad(TypedDict):
    """A scheduler's tasks by state, its number of workers, and all and free slots by resource."""

    tasks: dict[str, int]
    workers: int
    slots: dict[str, tuple[float, float]]


def read_slots(dask_scheduler: Scheduler) -> list[WorkerSlots]:
    """Return the slots of each running worker.

    They are counted from the tasks: the scheduler's own count is wrong after work stealing moved a task.
    """
    return [
        {
            "address": worker.address,
            "all": dict(worker.resources),
            "free": _free(worker, worker.processing),
            "threads": worker.nthreads,
            "tasks": [str(task.key) for task in worker.processing],
        }
        for worker in dask_scheduler.running
    ]


def read_load(dask_scheduler: Scheduler) -> SchedulerLoad:
    """Return the load of a scheduler; states without tasks, and resources of no worker, are left out."""
    states = Counter(str(task.state) for task in dask_scheduler.tasks.values())
    slots: dict[str, tuple[float, float]] = {}
    for worker in read_slots(dask_scheduler):
        for name, amount in worker["all"].items():
            total, free = slots.get(name, (0.0, 0.0))
            slots[name] = total + amount, free + worker["free"].get(name, 0.0)
    return {"tasks": dict(states), "workers": len(dask_scheduler.workers), "slots": slots}


def worker_addresses(dask_scheduler: Scheduler) -> list[str]:
    """Return the addresses of all workers."""
    return list(dask_scheduler.workers)


def is_running(dask_scheduler: Scheduler, key: str) -> bool:
    """Return whether a worker runs a task, as of its latest heartbeat."""
    task = dask_scheduler.tasks.get(key)
    worker = task.processing_on if task else None
    return worker is not None and task in worker.executing


def reschedule_blocked(dask_scheduler: Scheduler, topic: str) -> list[str]:
    """Reschedule members of a gang that wait on a full worker while another has room; returns their keys.

    When a worker dies, the scheduler assigns its tasks by the total resources of other workers, not by the free ones.
    The member is then queued behind one that waits for it, a deadlock, while the restarted worker is idle.

    Only a task that cannot be running is rescheduled: its worker's latest heartbeat did not name it, and the tasks that
    the heartbeat named leave no room. A running task cannot be taken back: it would run twice and keep its slot.
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
                dask_scheduler._reschedule(task.key, stimulus_id="penstock-move")  # noqa: SLF001  (there is no public method)
                moved.append(str(task.key))
    return moved


def unschedulable_tasks(dask_scheduler: Scheduler, topic: str) -> list[str]:
    """Return the keys of a gang's members that wait for a slot while no worker has room for them."""
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
    """Return a worker's resources less those of the given tasks."""
    free = dict(worker.resources)
    for task in tasks:
        for name, amount in (task.resource_restrictions or {}).items():
            free[name] = free.get(name, 0.0) - amount
    return free


def _fits(wanted: Mapping[str, float], free: Mapping[str, float]) -> bool:
    return all(free.get(name, 0.0) >= amount for name, amount in wanted.items())
