"""Admission: a gang gets all its places on the cluster at once, or waits for them, or is refused by name.

One lock for the cluster serialises admissions, and who holds it waits for free places; so gangs of several runs take
turns stage by stage, and none ever sits on half of its places. The lock is Dask's own, and is freed when its holder
dies.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from distributed import Lock

from storage.errors import GangRefusedError
from tasks.places import read_places

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distributed import Client

    from tasks.policies import DistributionPolicy

_LOCK = "penstock-admission"
_LOOK_SECONDS = 0.1
_RESTART_SECONDS = 10.0


@contextmanager
def admitted(client: Client, policy: DistributionPolicy, run: str, admission_seconds: float) -> Iterator[None]:
    """Hold the cluster's admission lock, with free places for the whole gang, while the gang is submitted and reports.

    Raises:
        GangRefusedError: the cluster is too small for the gang, or was not free in time; says who takes its places.
    """
    deadline = time.monotonic() + admission_seconds
    lock = Lock(_LOCK, scheduler_rpc=client.scheduler, loop=client.loop)
    if not lock.acquire(timeout=admission_seconds):
        raise _refusal(client, policy, run, admission_seconds)
    try:
        short_since: float | None = None
        while shortages(policy, places := _places(client), "free"):
            short = shortages(policy, places, "all")
            short_since = (short_since or time.monotonic()) if short else None
            # A nanny takes seconds to bring a worker back that died; a cluster that stays small is too small.
            late = time.monotonic() > deadline
            if short_since is not None and (late or time.monotonic() - short_since > _RESTART_SECONDS):
                raise GangRefusedError(
                    f"run '{run}' needs {'; '.join(short)} on the cluster at {_address(client)}, even when it is "
                    f"idle. Start workers with `--resources`, or place fewer tasks"
                )
            if late:
                raise _refusal(client, policy, run, admission_seconds)
            time.sleep(_LOOK_SECONDS)
        yield
    finally:
        lock.release()


def shortages(policy: DistributionPolicy, places: list[dict[str, Any]], kind: str) -> list[str]:
    """What a policy lacks on the given workers, a line a resource; empty if its gang fits.

    Args:
        policy: whose roles want places.
        places: for each worker, `all` and `free` resources by name.
        kind: `all` or `free`.
    """
    lines = []
    left = [dict(place[kind]) for place in places]
    for role in policy.roles:
        placed = 0
        for worker in left:
            while placed < role.replicas and all(worker.get(name, 0.0) >= amount for name, amount in role.resources):
                for name, amount in role.resources:
                    worker[name] -= amount
                placed += 1
        if placed < role.replicas:
            wanted = ", ".join(f"{name}={amount:g}" for name, amount in role.resources)
            lines.append(f"{role.replicas} places with {wanted} for '{role.name}', and there are {placed}")
    return lines


def _places(client: Client) -> list[dict[str, Any]]:
    places: list[dict[str, Any]] = client.run_on_scheduler(read_places)
    return places


def _refusal(client: Client, policy: DistributionPolicy, run: str, waited_seconds: float) -> GangRefusedError:
    places = _places(client)
    holders = sorted({task.split("/")[1] for place in places for task in place["tasks"] if " penstock/" in task})
    return GangRefusedError(
        f"run '{run}' waited {waited_seconds:g} s for {'; '.join(shortages(policy, places, 'free')) or 'its turn'}. "
        f"The cluster at {_address(client)} is taken by: {', '.join(holders) or 'tasks of somebody else'}. "
        f"Wait for these, add workers, or raise cluster.admission_seconds; then resume the run"
    )


def _address(client: Client) -> str:
    return str(client.scheduler_info(n_workers=0)["address"])
