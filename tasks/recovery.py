"""A Dask scheduler that goes away under a run: told from other failures, and waited for.

With it goes all that it knew of the gang, and its workers end with it; whatever started them starts them again. What is
stored stays, so the flow then goes on as any run that is resumed.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from storage.errors import GangError, GangRefusedError, PenstockError, SchedulerLostError
from tasks.admission import shortages
from tasks.cluster import connected_to
from tasks.places import read_places

if TYPE_CHECKING:
    from distributed import Scheduler

    from tasks.cluster import Clusters
    from tasks.config import RunConfig

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.5


def is_lost(config: RunConfig, clusters: Clusters, error: BaseException) -> bool:
    """Whether a stage failed because the scheduler at `cluster.scheduler` is there no more, or is another one.

    What Dask raises then depends on what was under way, so the scheduler is asked who it is. Errors that have nothing
    to do with the cluster are what they say. A run on several clusters can go on without one of them, which is for
    people to say; and one in this process ends with it.
    """
    if isinstance(error, PenstockError) and not isinstance(error, GangError):
        return False
    if not config.cluster.scheduler or config.cluster.schedulers:
        return False
    (cluster,) = clusters.every
    try:
        return str(cluster.client.run_on_scheduler(_id)) != cluster.scheduler
    except Exception:  # noqa: BLE001  (nobody answers, and Dask has many ways to say so)
        return True


def wait_for_cluster(config: RunConfig) -> None:
    """Until a scheduler answers at `cluster.scheduler` and has places for the whole gang, taken or free.

    Raises:
        SchedulerLostError: not within `cluster.admission_seconds`; says what is lacking.
    """
    settings = config.cluster
    logger.warning(
        "run=%s lost the Dask scheduler at %s; it goes on from the last commit when one answers there and has its "
        "workers, and waits at most %g s for that",
        config.name,
        settings.scheduler,
        settings.admission_seconds,
    )
    deadline = time.monotonic() + settings.admission_seconds
    lacking = "no scheduler answers there"
    while time.monotonic() < deadline:
        try:
            with connected_to(str(settings.scheduler)) as client:
                while short := shortages(config.policy, client.run_on_scheduler(read_places), "all"):
                    lacking = f"it lacks {'; '.join(short)}"
                    if time.monotonic() >= deadline:
                        break
                    time.sleep(_LOOK_SECONDS)
                else:
                    return
        except (GangRefusedError, OSError):
            time.sleep(_LOOK_SECONDS)
    raise SchedulerLostError(
        f"the Dask scheduler at {settings.scheduler} was lost, and within {settings.admission_seconds:g} s {lacking}. "
        f"The last commit stands: start it and its workers, then `penstock resume {config.name}`"
    )


def _id(dask_scheduler: Scheduler) -> str:
    return str(dask_scheduler.id)
