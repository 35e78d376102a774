"""Ends flow runs that an earlier `penstock serve` has left on its own server, whose processes ended with it.

Prefect keeps them as running, and the slots of their deployments' concurrency limits as taken: it counts slots in its
database, but their leases in memory, so that no later server finds them expired.
"""

from __future__ import annotations

import fcntl
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from uuid import UUID

_UNFINISHED = ("PENDING", "RUNNING", "CANCELLING")


@contextmanager
def only_serving(home: Path) -> Iterator[bool]:
    """Yield whether no other process of this machine serves deployments by a server with this home folder of Prefect.

    Until the context ends, no other process does so as the only one.
    """
    with ExitStack() as stack:
        try:
            lock = stack.enter_context((home / ".penstock-serve.lock").open("a"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # held, another user's, or of a file system without locks
            yield False
            return
        yield True


async def end_left_flow_runs(deployments: Sequence[UUID]) -> int:
    """Have unfinished flow runs of deployments crash, before any new one starts, and return their number.

    So what follows a crash follows: a trigger resumes the run, and the deployment's next flow run has its slot.
    """
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter
    from prefect.states import Crashed

    left = {"deployment_id": {"any_": list(deployments)}, "state": {"type": {"any_": _UNFINISHED}}}
    async with get_client() as client:
        found = await client.read_flow_runs(flow_run_filter=FlowRunFilter.model_validate(left))
        for flow_run in found:
            await client.set_flow_run_state(flow_run.id, Crashed(message="`penstock serve`, which ran it, has ended"))
    return len(found)
