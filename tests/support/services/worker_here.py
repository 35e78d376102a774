"""A Dask worker in the test's own process, whose tasks the test can see and hold."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import dask
from distributed import Client, Scheduler, SpecCluster, Worker

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE_SECONDS = 150.0


@contextmanager
def worker_here(**options: Any) -> Iterator[Client]:
    """Start a scheduler and a worker with these options, such as `nthreads`, and yield their client."""
    here = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
    worker = {"cls": Worker, "options": {**here, **options}}
    scheduler = {"cls": Scheduler, "options": {**here, "protocol": "inproc://"}}
    with (
        dask.config.set({"distributed.admin.system-monitor.gil.enabled": False}),
        SpecCluster(workers={0: worker}, scheduler=scheduler, silence_logs=50) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        client.wait_for_workers(1, timeout=PATIENCE_SECONDS)
        yield client
