"""Admission: a gang gets all its worker slots at once, waits for them, or is refused with the reason.

Each cluster has one lock that serialises admissions, and its holder waits for free slots; so gangs of several runs
take turns stage by stage, and none ever holds half of its slots. A gang on several clusters takes their locks in an
order that all gangs share. The lock is Dask's own, and is freed when its holder dies.
"""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from distributed import Lock

from penstock.storage.errors import GangRefusedError
from penstock.tasks.driver.worker_slots import read_slots

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from penstock.tasks.driver.cluster import Cluster, Clusters
    from penstock.tasks.driver.worker_slots import SlotKind, WorkerSlots
    from penstock.tasks.setup.distribution.policies import DistributionPolicy, Role

logger = logging.getLogger(__name__)

_LOCK = "penstock-admission"
_POLL_SECONDS = 0.1
_RESTART_SECONDS = 10.0
_RETRY_SECONDS = 1.0
_THREADS = "worker threads"  # no resource's name, as these have no blanks

Allocation: TypeAlias = dict[str, list["Cluster"]]
"""By role, the cluster of each of its members."""
_Answer = TypeVar("_Answer")


@contextmanager
def admitted(
    clusters: Clusters,
    policy: DistributionPolicy,
    run: str,
    admission_seconds: float,
    *,
    was_large_enough: bool = False,
) -> Iterator[Allocation]:
    """Hold the clusters' admission locks, with free slots for the whole gang, while it is submitted and reports.

    Yields the cluster of each member.

    Args:
        clusters: all clusters of the run.
        policy: the roles that need slots.
        run: name of the run, for errors.
        admission_seconds: the longest wait.
        was_large_enough: whether the run has had its slots here before, so that missing workers may return.

    Raises:
        GangRefusedError: the clusters are too small for the gang, were not free in time, were lost, or have workers
            without Penstock; names the runs that hold their slots.
    """
    every = clusters.every
    deadline = time.monotonic() + admission_seconds
    short_since: float | None = None
    warned = False
    while True:
        with ExitStack() as stack:
            for cluster in sorted(every, key=lambda cluster: cluster.scheduler):
                if not stack.enter_context(_locked(cluster, deadline)):
                    raise _refusal(clusters, policy, run, admission_seconds)
            while True:
                slots = [_slots(cluster) for cluster in every]
                allocation = _allocation_of(clusters, policy, slots)
                found = allocation("free")
                if not found.lacking:
                    _require_penstock(clusters, policy, slots)
                    yield {role: [every[index] for index in taken] for role, taken in found.by_role.items()}
                    return
                short = allocation("all").lacking
                now = time.monotonic()
                short_since = (short_since or now) if short else None
                # A nanny takes seconds to restart a worker that died; a cluster that stays small is too small.
                stays = short_since is not None and now - short_since > _RESTART_SECONDS
                if stays and was_large_enough and now < deadline:
                    break
                if short and (stays or now > deadline):
                    raise GangRefusedError(
                        f"run '{run}' needs {'; '.join(short)} on {_name(every)}, even when it is idle. Start workers "
                        f"with `--resources`, and with a thread for each slot (`--nthreads`), or configure fewer "
                        f"tasks; then resume the run"
                    )
                if now > deadline:
                    raise _refusal(clusters, policy, run, admission_seconds)
                time.sleep(_POLL_SECONDS)
        # The locks are free during the pause, so that other runs may start a stage.
        if not warned:
            logger.warning("run=%s waits for workers: %s on %s", run, "; ".join(short), _name(every))
        warned = True
        time.sleep(_RETRY_SECONDS)


@contextmanager
def _locked(cluster: Cluster, deadline: float) -> Iterator[bool]:
    """Hold a cluster's lock; yields False if it was not free in time."""
    client = cluster.client
    lock = Lock(_LOCK, scheduler_rpc=client.scheduler, loop=client.loop)
    held = rpc(cluster, lambda: lock.acquire(timeout=max(0.0, deadline - time.monotonic())))
    try:
        yield held
    finally:
        if held:
            try:
                lock.release()
            except OSError as error:  # the cluster was lost, and the lock with it
                logger.debug("could not release lock=%s address=%s error=%s", _LOCK, cluster.address, error)
        # What renews the lock runs, and keeps it, until it is stopped: one more with each stage.
        renewal = getattr(lock, "refresh_callback", None)
        if renewal is not None and client.loop is not None:
            client.loop.add_callback(renewal.stop)


@dataclass(frozen=True, slots=True)
class AllocationResult:
    """An allocation of worker slots to the members of a gang, and the shortages that remain."""

    by_role: dict[str, list[int]]
    """The cluster of each member."""
    lacking: list[str]
    """One line for each role that lacks slots; empty if the gang fits."""


def allocated(
    roles: Sequence[Role],
    may_use: Mapping[str, Sequence[int]],
    slots: Sequence[Sequence[WorkerSlots]],
    kind: SlotKind,
    names: Sequence[str] = (),
) -> AllocationResult:
    """Allocate slots to a gang's members: each on the cluster where its role has the fewest, of those with room.

    A role gets as many slots as are available, up to its replicas. It lacks slots if it gets fewer than it needs.

    Args:
        roles: the roles that need slots.
        may_use: the clusters of each role, in order of preference.
        slots: the workers of every cluster.
        kind: `all`, or `free` to leave out occupied slots.
        names: names of the clusters, for the lines about shortages.
    """
    # Workers with the fewest kinds of resources come first, and last the roles that need the fewest.
    left = [sorted((_room(worker, kind) for worker in workers), key=len) for workers in slots]
    demanding = sorted(roles, key=lambda role: -len(role.resources))
    by_role: dict[str, list[int]] = {role.name: [] for role in roles}
    for role in demanding:
        _take(left, by_role[role.name], role, may_use[role.name], role.needed)
    lacking = []
    for role in roles:
        found = len(by_role[role.name])
        if found < role.needed:
            resources = ", ".join(f"{name}={amount:g}" for name, amount in role.resources)
            there = f"found {found}"
            if len(names) > 1:
                there += f" at {' and '.join(names[cluster] for cluster in may_use[role.name])}"
            lacking.append(f"{role.needed} slots with {resources} for '{role.name}', {there}")
    # No role gets more than it needs before all roles have what they need.
    for role in demanding:
        _take(left, by_role[role.name], role, may_use[role.name], role.replicas)
    return AllocationResult(by_role, lacking)


def _room(worker: WorkerSlots, kind: SlotKind) -> dict[str, float]:
    """Return a worker's resources, and its threads as one more: each role may take so many of its slots.

    Roles are not counted together, as then it would depend on their order on which workers they are.
    """
    return {**worker[kind], _THREADS: worker["threads"]}


def _take(
    left: list[list[dict[str, float]]], taken: list[int], role: Role, may_use: Sequence[int], replicas: int
) -> None:
    """Take slots for a role until it has `replicas`, or there are no more."""
    with_room = list(may_use)
    threads = f"{_THREADS} of {role.name}"
    wanted = [*role.resources, (threads, 1.0)]
    while with_room and len(taken) < replicas:
        cluster = min(with_room, key=taken.count)
        for worker in left[cluster]:
            worker.setdefault(threads, worker[_THREADS])
            if all(worker.get(name, 0.0) >= amount for name, amount in wanted):
                for name, amount in wanted:
                    worker[name] -= amount
                taken.append(cluster)
                break
        else:
            with_room.remove(cluster)


def shortages(policy: DistributionPolicy, slots: Sequence[WorkerSlots], kind: SlotKind) -> list[str]:
    """Return the slots that a policy lacks on the workers of one cluster, one line a role; empty if its gang fits."""
    return allocated(policy.roles, {role.name: [0] for role in policy.roles}, [slots], kind).lacking


def rpc(cluster: Cluster, call: Callable[[], _Answer]) -> _Answer:
    """Return the result of a call to a cluster.

    Raises:
        GangRefusedError: the cluster was lost.
    """
    try:
        return call()
    except (OSError, TimeoutError) as error:
        raise GangRefusedError(
            f"the Dask scheduler at {cluster.address} no longer answers ({type(error).__name__}: {error}). The last "
            f"commit is intact: restart the scheduler and its workers, or name another one, then resume the run"
        ) from error


def _slots(cluster: Cluster) -> list[WorkerSlots]:
    return rpc(cluster, lambda: cluster.client.run_on_scheduler(read_slots))


def _allocation_of(
    clusters: Clusters, policy: DistributionPolicy, slots: Sequence[Sequence[WorkerSlots]]
) -> Callable[[SlotKind], AllocationResult]:
    """Return the allocation by kind of slot, for the slots of all clusters."""
    every = clusters.every
    may_use = {role: [every.index(cluster) for cluster in used] for role, used in clusters.by_role.items()}
    return lambda kind: allocated(policy.roles, may_use, slots, kind, [cluster.address for cluster in every])


def _require_penstock(clusters: Clusters, policy: DistributionPolicy, slots: Sequence[Sequence[WorkerSlots]]) -> None:
    """Ask the workers that members may get, and no others: a cluster may have workers for other programs."""
    for cluster, workers in zip(clusters.every, slots, strict=True):
        wanted = [role.resources for role in policy.roles if cluster in clusters.by_role[role.name]]
        may_get = [
            worker["address"]
            for worker in workers
            if any(all(worker["all"].get(name, 0.0) >= amount for name, amount in each) for each in wanted)
        ]
        cluster.require_penstock(may_get)


def _refusal(clusters: Clusters, policy: DistributionPolicy, run: str, waited_seconds: float) -> GangRefusedError:
    slots = [_slots(cluster) for cluster in clusters.every]
    tasks = (task for workers in slots for worker in workers for task in worker["tasks"])
    holders = sorted({task.split("/")[1] for task in tasks if " penstock/" in task})
    lacking = "; ".join(_allocation_of(clusters, policy, slots)("free").lacking) or "its turn"
    return GangRefusedError(
        f"run '{run}' waited {waited_seconds:g} s for {lacking}. "
        f"The slots on {_name(clusters.every)} are occupied by: {', '.join(holders) or 'tasks of other programs'}. "
        f"Wait for these, add workers, or raise cluster.admission_seconds; then resume the run"
    )


def _name(clusters: Sequence[Cluster]) -> str:
    """Return, for example, `the cluster at tcp://10.0.0.1:8786`."""
    *others, last = (cluster.address for cluster in clusters)
    return f"the clusters at {', '.join(others)} and {last}" if others else f"the cluster at {last}"
