"""Errors of a gang that a person can act on: what was lost, most likely why, and what to do next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distributed.scheduler import KilledWorker

from penstock.storage.error_places import describe_error
from penstock.storage.errors import GangError, MemberLostError, PenstockError

if TYPE_CHECKING:
    from penstock.tasks.driver.cluster import Cluster

_WHY_WORKERS_DIE = (
    "a worker that keeps dying is often out of memory, or an environment of your own in C++ ends its process "
    "(`penstock check-env` says so)"
)


def gone(cluster: Cluster) -> GangError:
    """Return the error of a cluster that was lost with members of a gang."""
    return GangError(
        f"the Dask scheduler at {cluster.address} was lost, and its members with it. The last commit is intact: "
        f"restart the scheduler and its workers, or name another one, then resume the run"
    )


def lost(names: list[str]) -> MemberLostError:
    """Return the error of a gang whose members synchronise in a round, and which has lost some of them."""
    return MemberLostError(
        f"{', '.join(names)} was lost with the process that ran it, and the members that synchronise with it can't "
        f"continue; {_WHY_WORKERS_DIE}. The last commit is intact: check the worker's log, then resume the run"
    )


def explain(error: BaseException) -> BaseException:
    """Return a readable error for a member's failure; Penstock's own errors stay as they are."""
    if isinstance(error, PenstockError):
        return error
    if isinstance(error, KilledWorker):
        return GangError(
            f"{str(error.task).split(' ', 1)[0]} was lost {error.allowed_failures + 1} times with the process that ran "
            f"it, most recently on {error.last_worker.address}; {_WHY_WORKERS_DIE}. The last commit is intact: check "
            f"the worker's log, then resume the run"
        )
    return GangError(
        f"a member failed with {describe_error(error)}. Of an algorithm or an environment of your own, `penstock "
        f"check-algorithm` and `penstock check-env` say more; correct it, and resume the run: the last commit is intact"
    )
