"""Recovery from a lost Dask scheduler: distinguishes it from other failures, and waits for a new one.

A scheduler's state of the gang is lost with it, and its workers end; the service that started them restarts them.
Stored data remains, so the flow then continues as any resumed run does.
"""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from penstock.storage.errors import GangError, GangRefusedError, PenstockError, SchedulerLostError
from penstock.tasks.driver.admission import allocated
from penstock.tasks.driver.cluster import connected_to
from penstock.tasks.driver.worker_slots import read_slots

if TYPE_CHECKING:
    from distributed import Client, Scheduler

    from penstock.storage.runs.run import RunFolder
    from penstock.tasks.driver.cluster import Cluster, Clusters
    from penstock.tasks.setup.config.cluster import ClusterSettings
    from penstock.tasks.setup.distribution.policies import DistributionPolicy

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.5


def lost_schedulers(clusters: Clusters, error: BaseException) -> list[str]:
    """Return the addresses of schedulers that were lost or replaced, if that may have failed a stage.

    The exception that Dask raises depends on the operation in progress, so each scheduler is asked for its id. Errors
    of Penstock other than a `GangError` have another cause. A scheduler in this process ends with it.
    """
    if isinstance(error, PenstockError) and not isinstance(error, GangError):
        return []
    return [cluster.address for cluster in clusters.every if not cluster.is_here and _is_lost(cluster)]


def _is_lost(cluster: Cluster) -> bool:
    try:
        return str(cluster.client.run_on_scheduler(_id)) != cluster.scheduler
    except Exception:  # noqa: BLE001  (no answer, for which Dask raises many kinds of errors)
        return True


def wait_for_clusters(run: RunFolder, policy: DistributionPolicy, cluster: ClusterSettings) -> None:
    """Wait until a scheduler answers at each address that a role names, with slots for the gang, taken or free.

    Raises:
        SchedulerLostError: not within `cluster.admission_seconds`; names what is lacking.
    """
    where = {role.name: [address for address in cluster.schedulers_of(role.name) if address] for role in policy.roles}
    roles = [role for role in policy.roles if where[role.name]]
    named = sorted({address for addresses in where.values() for address in addresses})
    may_use = {role.name: [named.index(address) for address in where[role.name]] for role in roles}
    seconds = cluster.admission_seconds
    logger.warning(
        "run=%s lost a Dask scheduler; waiting for a scheduler with its workers at %s, at most %g s, to resume from "
        "the last commit",
        run.name,
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
                    slots = [client.run_on_scheduler(read_slots) for client in clients]
                    short = allocated(roles, may_use, slots, "all", named).lacking
                    if not short:
                        return
                    lacking = "; ".join(short)
                    time.sleep(_POLL_SECONDS)
            except (GangRefusedError, OSError):
                time.sleep(_POLL_SECONDS)
    raise SchedulerLostError(
        f"run '{run.name}' lost a Dask scheduler and waited {seconds:g} s for {lacking}. The last commit is intact: "
        f"start a scheduler and workers, or name others; then `{run.command('resume')}`"
    )


def _id(dask_scheduler: Scheduler) -> str:
    return str(dask_scheduler.id)
