"""Admission: a gang gets all its places at once, or waits for them, or is refused by name.

One lock a cluster serialises admissions, and who holds it waits for free places; so gangs of several runs take turns
stage by stage, and none ever sits on half of its places. A gang on several clusters takes their locks in one order,
the same for everybody. The lock is Dask's own, and is freed when its holder dies.
"""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from distributed import Lock

from storage.errors import GangRefusedError
from tasks.places import read_places

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tasks.cluster import Cluster, Clusters
    from tasks.policies import DistributionPolicy, Role

logger = logging.getLogger(__name__)

_LOCK = "penstock-admission"
_LOOK_SECONDS = 0.1
_RESTART_SECONDS = 10.0
_AGAIN_SECONDS = 1.0

Places: TypeAlias = list[dict[str, Any]]
"""For each worker of a cluster, `all` and `free` resources by name."""
Seats: TypeAlias = dict[str, list["Cluster"]]
"""By role, the cluster of each of its members."""


@contextmanager
def admitted(
    clusters: Clusters,
    policy: DistributionPolicy,
    run: str,
    admission_seconds: float,
    *,
    was_large_enough: bool = False,
) -> Iterator[Seats]:
    """Hold the clusters' admission locks, with free places for the whole gang, while it is submitted and reports.

    Gives the cluster of each member.

    Args:
        clusters: where.
        policy: whose roles want places.
        run: for errors.
        admission_seconds: the longest wait.
        was_large_enough: whether the run has had its places here, so that who is missing now may come again.

    Raises:
        GangRefusedError: the clusters are too small for the gang, were not free in time, or are gone; says who takes
            their places.
    """
    every = clusters.every
    deadline = time.monotonic() + admission_seconds
    short_since: float | None = None
    told = False
    while True:
        with ExitStack() as stack:
            for cluster in sorted(every, key=lambda cluster: cluster.scheduler):
                if not stack.enter_context(_locked(cluster, deadline)):
                    raise _refusal(clusters, policy, run, admission_seconds)
            while True:
                look = _look(clusters, policy)
                found = look("free")
                if not found.lacking:
                    yield {role: [every[index] for index in taken] for role, taken in found.seats.items()}
                    return
                short = look("all").lacking
                now = time.monotonic()
                short_since = (short_since or now) if short else None
                # A nanny takes seconds to bring a worker back that died; a cluster that stays small is too small.
                stays = short_since is not None and now - short_since > _RESTART_SECONDS
                if stays and was_large_enough and now < deadline:
                    break
                if short and (stays or now > deadline):
                    raise GangRefusedError(
                        f"run '{run}' needs {'; '.join(short)} on {_name(every)}, even when it is idle. Start workers "
                        f"with `--resources`, or place fewer tasks"
                    )
                if now > deadline:
                    raise _refusal(clusters, policy, run, admission_seconds)
                time.sleep(_LOOK_SECONDS)
        # Others may begin a stage meanwhile.
        if not told:
            logger.warning("run=%s waits for workers: %s on %s", run, "; ".join(short), _name(every))
        told = True
        time.sleep(_AGAIN_SECONDS)


@contextmanager
def _locked(cluster: Cluster, deadline: float) -> Iterator[bool]:
    """Hold a cluster's lock; False if it was not free in time."""
    client = cluster.client
    lock = Lock(_LOCK, scheduler_rpc=client.scheduler, loop=client.loop)
    held = asked(cluster, lambda: lock.acquire(timeout=max(0.0, deadline - time.monotonic())))
    try:
        yield held
    finally:
        if held:
            try:
                lock.release()
            except OSError as error:  # the cluster is gone, and the lock with it
                logger.debug("could not release lock=%s address=%s error=%s", _LOCK, cluster.address, error)


@dataclass(frozen=True, slots=True)
class Seating:
    """Where the members of a gang find places, and what is lacking."""

    seats: dict[str, list[int]]
    """By role, the cluster of each member."""
    lacking: list[str]
    """A line a role; empty if the gang fits."""


def seated(
    roles: Sequence[Role],
    may_use: Mapping[str, Sequence[int]],
    places: Sequence[Places],
    kind: str,
    names: Sequence[str] = (),
) -> Seating:
    """Share out a gang's members among clusters: each goes where its role has the fewest, of those that have room.

    A role gets as many places as there are, up to its replicas; lacking is what no stage begins without.

    Args:
        roles: those that want places.
        may_use: the clusters of a role, in order of preference.
        places: of every cluster.
        kind: `all` or `free`: whether what is taken now counts.
        names: of the clusters, to say where something is lacking.
    """
    left = [[dict(place[kind]) for place in workers] for workers in places]
    seats: dict[str, list[int]] = {role.name: [] for role in roles}
    for role in roles:
        _take(left, seats[role.name], role, may_use[role.name], role.needed)
    lacking = []
    for role in roles:
        found = len(seats[role.name])
        if found < role.needed:
            told = ", ".join(f"{name}={amount:g}" for name, amount in role.resources)
            there = f"there are {found}"
            if len(names) > 1:
                there += f" at {' and '.join(names[cluster] for cluster in may_use[role.name])}"
            lacking.append(f"{role.needed} places with {told} for '{role.name}', and {there}")
    # Only when every role has what it needs does one get more.
    for role in roles:
        _take(left, seats[role.name], role, may_use[role.name], role.replicas)
    return Seating(seats, lacking)


def _take(
    left: list[list[dict[str, float]]], seats: list[int], role: Role, may_use: Sequence[int], replicas: int
) -> None:
    """Take places for a role until it has so many, or there are no more."""
    with_room = list(may_use)
    while with_room and len(seats) < replicas:
        cluster = min(with_room, key=seats.count)
        for worker in left[cluster]:
            if all(worker.get(name, 0.0) >= amount for name, amount in role.resources):
                for name, amount in role.resources:
                    worker[name] -= amount
                seats.append(cluster)
                break
        else:
            with_room.remove(cluster)


def shortages(policy: DistributionPolicy, places: Places, kind: str) -> list[str]:
    """What a policy lacks on the workers of one cluster, a line a role; empty if its gang fits."""
    return seated(policy.roles, {role.name: [0] for role in policy.roles}, [places], kind).lacking


def asked(cluster: Cluster, question: Callable[[], Any]) -> Any:
    """What a cluster answers.

    Raises:
        GangRefusedError: it is gone.
    """
    try:
        return question()
    except (OSError, TimeoutError) as error:
        raise GangRefusedError(
            f"the Dask scheduler at {cluster.address} does not answer any more ({type(error).__name__}: {error}). The "
            f"last commit stands: start it and its workers again, or name another one, then resume the run"
        ) from error


def _places(cluster: Cluster) -> Places:
    places: Places = asked(cluster, lambda: cluster.client.run_on_scheduler(read_places))
    return places


def _look(clusters: Clusters, policy: DistributionPolicy) -> Callable[[str], Seating]:
    """Look at all clusters once; gives the seating by kind of place."""
    every = clusters.every
    places = [_places(cluster) for cluster in every]
    may_use = {role: [every.index(cluster) for cluster in used] for role, used in clusters.by_role.items()}
    return lambda kind: seated(policy.roles, may_use, places, kind, [cluster.address for cluster in every])


def _refusal(clusters: Clusters, policy: DistributionPolicy, run: str, waited_seconds: float) -> GangRefusedError:
    tasks = (task for cluster in clusters.every for place in _places(cluster) for task in place["tasks"])
    holders = sorted({task.split("/")[1] for task in tasks if " penstock/" in task})
    lacking = "; ".join(_look(clusters, policy)("free").lacking) or "its turn"
    return GangRefusedError(
        f"run '{run}' waited {waited_seconds:g} s for {lacking}. "
        f"What there is on {_name(clusters.every)} is taken by: {', '.join(holders) or 'tasks of somebody else'}. "
        f"Wait for these, add workers, or raise cluster.admission_seconds; then resume the run"
    )


def _name(clusters: Sequence[Cluster]) -> str:
    """`the cluster at tcp://10.0.0.1:8786`."""
    *others, last = (cluster.address for cluster in clusters)
    return f"the clusters at {', '.join(others)} and {last}" if others else f"the cluster at {last}"
