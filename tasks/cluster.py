"""The Dask cluster of a run: one that exists, or workers on this machine.

Local workers are ordinary Dask workers with the resources that policies ask for: act processes and one learn process.
Their nannies live in the flow's process and restart a worker that dies; they die with the flow.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import dask
from distributed import Client, Nanny, Scheduler, SpecCluster

from storage.errors import GangRefusedError
from tasks.replica import warm_up

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tasks.config import RunConfig

_CONNECT_SECONDS = 15

_DASK = {
    # A gang's tasks are long and few: moving them could only hurt.
    "distributed.scheduler.work-stealing": False,
    "distributed.scheduler.allowed-failures": 5,
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.comm.timeouts.connect": "10s",
}

_started: dict[tuple[int, int], SpecCluster] = {}
_starting = threading.Lock()


def start_configured_cluster(config: RunConfig) -> None:
    """Start local workers if that is what is configured."""
    if not config.cluster.scheduler:
        start_local_cluster(*_local_size(config))


def _local_size(config: RunConfig) -> tuple[int, int]:
    """Act workers and act tasks of a run that brings its own workers."""
    act_tasks = config.placement.act_tasks
    return (config.cluster.act_workers or act_tasks, act_tasks) if config.acts else (0, 0)


def start_local_cluster(act_workers: int, act_tasks: int) -> SpecCluster:
    """Workers on this machine, one more than `act_workers`; the one for the learner is alone in its process.

    Called ahead of the flow it saves time: the flow finds what was started here. Thread-safe.
    """
    with _starting:
        key = (act_workers, act_tasks)
        if key not in _started:
            _started[key] = _start(act_workers, act_tasks)
        return _started[key]


def _start(act_workers: int, act_tasks: int) -> SpecCluster:
    threads = -(-act_tasks // max(1, act_workers))
    workers = {f"act-{index}": _worker(threads, {"actor": float(threads)}) for index in range(act_workers)}
    workers["learn-0"] = _worker(1, {"learner": 1.0})
    with dask.config.set(_DASK):
        return SpecCluster(
            workers=workers,
            scheduler={
                "cls": Scheduler,
                "options": {"host": "127.0.0.1", "port": 0, "dashboard": False, "dashboard_address": "127.0.0.1:0"},
            },
            name="penstock",
            silence_logs=40,
        )


def _worker(threads: int, resources: dict[str, float]) -> dict[str, Any]:
    options = {
        "host": "127.0.0.1",
        "nthreads": threads,
        "resources": resources,
        "memory_limit": 0,
        "dashboard": False,
        # Dask serves metrics in any case, on all interfaces unless told otherwise.
        "dashboard_address": "127.0.0.1:0",
        "config": _DASK,
        "silence_logs": 40,
        "env": {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    }
    return {"cls": Nanny, "options": options}


@contextmanager
def connected(config: RunConfig) -> Iterator[Client]:
    """A client of the configured cluster; local workers end with it.

    Raises:
        GangRefusedError: nobody answers at `cluster.scheduler`.
    """
    settings = config.cluster
    if settings.scheduler:
        try:
            client = Client(settings.scheduler, timeout=_CONNECT_SECONDS, name="penstock", set_as_default=False)
        except (TimeoutError, OSError, ValueError) as error:
            raise GangRefusedError(
                f"no Dask scheduler answered at cluster.scheduler = '{settings.scheduler}' within {_CONNECT_SECONDS} s "
                f"({error}); start one with `dask scheduler`, or leave the setting empty for workers on this machine"
            ) from error
        with client:
            yield client
        return
    act_workers, act_tasks = _local_size(config)
    cluster = start_local_cluster(act_workers, act_tasks)
    try:
        with Client(cluster, name="penstock", set_as_default=False) as client:
            client.run(warm_up, wait=False)
            yield client
    finally:
        with _starting:
            _started.pop((act_workers, act_tasks), None)
        cluster.close()
