"""Dask schedulers that go away under a run: told from other failures, and waited for.

With one goes all that it knew of the gang, and its workers end with it; whatever started them starts them again. What
is stored stays, so the flow then goes on as any run that is resumed.
"""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from storage.errors import GangError, GangRefusedError, PenstockError, SchedulerLostError
from tasks.admission import seated
from tasks.cluster import connected_to
from tasks.places import read_places

if TYPE_CHECKING:
    from distributed import Client, Scheduler

    from tasks.cluster import Cluster, Clusters
    from tasks.config import RunConfig

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.5


def lost_schedulers(clusters: Clusters, error: BaseException) -> list[str]:
    """Addresses of the schedulers that are there no more, or are other ones, if that may be why a stage failed.

    What Dask raises then depends on what was under way, so each scheduler is asked who it is. Errors that have nothing
    to do with a cluster are what they say. A scheduler in this process ends with it.
    """
    if isinstance(error, PenstockError) and not isinstance(error, GangError):
        return []
    return [cluster.address for cluster in clusters.every if not cluster.is_here and _is_lost(cluster)]


def _is_lost(cluster: Cluster) -> bool:
    try:
        return str(cluster.client.run_on_scheduler(_id)) != cluster.scheduler
    except Exception:  # noqa: BLE001  (nobody answers, and Dask has many ways to say so)
        return True


def wait_for_clusters(config: RunConfig) -> None:
    """Until a scheduler answers at each address that a role names, with places for the gang, taken or free.

    Raises:
        SchedulerLostError: not within `cluster.admission_seconds`; says what is lacking.
    """
    where = {
        role.name: [address for address in config.cluster.schedulers_of(role.name) if address]
        for role in config.policy.roles
    }
    roles = [role for role in config.policy.roles if where[role.name]]
    named = sorted({address for addresses in where.values() for address in addresses})
    may_use = {role.name: [named.index(address) for address in where[role.name]] for role in roles}
    seconds = config.cluster.admission_seconds
    logger.warning(
        "run=%s lost a Dask scheduler; it goes on from the last commit when there is one at %s and they have their "
        "workers, and waits at most %g s for that",
        config.name,
        " and ".join(named),
        seconds,
    )
    deadline, lacking = time.monotonic() + seconds, ""
    while time.monotonic() < deadline:
        clients: list[Client] = []
        with ExitStack() as stack:
            try:
                for address in named:
                    lacking = f"a Dask scheduler at {address}"
                    clients.append(stack.enter_context(connected_to(address, clients[0].loop if clients else None)))
                while time.monotonic() < deadline:
                    places = [client.run_on_scheduler(read_places) for client in clients]
                    short = seated(roles, may_use, places, "all", named).lacking
                    if not short:
                        return
                    lacking = "; ".join(short)
                    time.sleep(_LOOK_SECONDS)
            except (GangRefusedError, OSError):
                time.sleep(_LOOK_SECONDS)
    raise SchedulerLostError(
        f"run '{config.name}' lost a Dask scheduler and waited {seconds:g} s for {lacking}. The last commit stands: "
        f"start scheduler and workers, or name others; then `penstock resume {config.name}`"
    )


def _id(dask_scheduler: Scheduler) -> str:
    return str(dask_scheduler.id)
