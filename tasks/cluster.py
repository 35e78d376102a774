"""The Dask clusters of a run: those that exist, and workers on this machine.

Local workers are ordinary Dask workers with the resources that the run's policy asks for.
Their nannies live in the flow's process and restart a worker that dies; they die with the flow. They are forked from
one process that has imported what they need: seconds less for each, at the start and after each loss.
"""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing import forkserver
from typing import TYPE_CHECKING, Any, TypeAlias

import dask
from distributed import Client, Nanny, Scheduler, SpecCluster
from distributed.utils import get_mp_context

from storage.errors import GangRefusedError
from tasks.replica import warm_up

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tornado.ioloop import IOLoop

    from tasks.config import RunConfig

_CONNECT_SECONDS = 15

Workers: TypeAlias = tuple[tuple[str, int, tuple[tuple[str, float], ...]], ...]

QUIET = {
    # For Dask's dashboard alone, which is off here, every event loop is looked at fifty times a second, and what a
    # worker does a hundred times, for which it has to stop: a sixth of a core where three workers are idle.
    "distributed.admin.tick.interval": "500ms",
    "distributed.admin.system-monitor.interval": "10s",
    "distributed.worker.profile.enabled": False,
}
"""What keeps an idle cluster idle."""

_DASK = {
    # A gang's tasks are long and few: moving them could only hurt.
    "distributed.scheduler.work-stealing": False,
    "distributed.scheduler.allowed-failures": 5,
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.comm.timeouts.connect": "10s",
    **QUIET,
}

# Imports torch and all that members run, and starts no thread of Python's and no device.
_WORKERS_IMPORT = ["distributed", "tasks.member", "tasks.membership", "tasks.evaluate"]


@dataclass(frozen=True, slots=True, eq=False)
class Cluster:
    """A Dask cluster, whatever its names are, and a client of it."""

    client: Client
    scheduler: str
    """Which one it is, wherever it is asked from."""
    address: str
    """Of the scheduler, as it tells it."""
    is_here: bool = False
    """Whether it was started for the run, in this process."""


@dataclass(frozen=True, slots=True)
class Clusters:
    """All clusters of a run. Their clients have one event loop."""

    by_role: Mapping[str, tuple[Cluster, ...]]
    """Where a role's members may be."""

    @property
    def every(self) -> tuple[Cluster, ...]:
        """Each once."""
        return tuple(dict.fromkeys(cluster for clusters in self.by_role.values() for cluster in clusters))


_started: dict[Workers, SpecCluster] = {}
_starting = threading.Lock()


def start_configured_cluster(config: RunConfig) -> None:
    """Start local workers if that is what is configured."""
    if workers := local_workers(config):
        start_local_cluster(workers)


def local_workers(config: RunConfig) -> Workers:
    """The workers that a run's policy needs on this machine, each with its name, its threads and its resources.

    A member that holds `learn` or `sync` is alone in its process; others share one if `cluster.act_workers` says so.
    """
    workers: list[tuple[str, int, tuple[tuple[str, float], ...]]] = []
    for role in config.policy.roles:
        if config.cluster.schedulers_of(role.name) != (None,):
            continue
        alone = bool(role.fragments & {"learn", "sync"})
        processes = role.replicas if alone else config.cluster.act_workers or role.replicas
        places = -(-role.replicas // processes)
        resources = tuple((name, amount * places) for name, amount in role.resources)
        workers += [(f"{role.name}-{index}", places, resources) for index in range(processes)]
    return tuple(workers)


def start_local_cluster(workers: Workers) -> SpecCluster:
    """Workers on this machine, each a process.

    Called ahead of the flow it saves time: the flow finds what was started here. Thread-safe.
    """
    with _starting:
        if workers not in _started:
            _started[workers] = _start(workers)
        return _started[workers]


def _start(places: Workers) -> SpecCluster:
    _fork_workers()
    # Where Dask is told to refuse anything else, as by deploy/tls/dask.yaml, it has certificates as well.
    protocol = "tls://" if dask.config.get("distributed.comm.require-encryption") else "tcp://"
    workers = {name: _worker(threads, dict(resources), protocol) for name, threads, resources in places}
    with dask.config.set(_DASK):
        return SpecCluster(
            workers=workers,
            scheduler={
                "cls": Scheduler,
                "options": {
                    "protocol": protocol,
                    "host": "127.0.0.1",
                    "port": 0,
                    "dashboard": False,
                    "dashboard_address": "127.0.0.1:0",
                },
            },
            name="penstock",
            silence_logs=40,
        )


def _fork_workers() -> None:
    """Let nannies of this process fork their workers, from a process that is started now unless it runs."""
    dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"})
    get_mp_context().set_forkserver_preload(_WORKERS_IMPORT)
    # What Dask sets before it starts a worker, and no module from the folder that the run was started in. Nothing is
    # taken away again: another thread may be copying the environment.
    before = os.environ.get("PYTHONSAFEPATH", "")
    for name, value in dask.config.get("distributed.nanny.pre-spawn-environ").items():
        os.environ[name] = str(value)
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        forkserver.ensure_running()
    finally:
        os.environ["PYTHONSAFEPATH"] = before


def _worker(threads: int, resources: dict[str, float], protocol: str) -> dict[str, Any]:
    options = {
        "protocol": protocol,
        "host": "127.0.0.1",
        "nthreads": threads,
        "resources": resources,
        "memory_limit": 0,
        "dashboard": False,
        # Dask serves metrics in any case, on all interfaces unless told otherwise.
        "dashboard_address": "127.0.0.1:0",
        "config": _DASK,
        "silence_logs": 40,
        # The process that it is forked from may have begun with another environment.
        "env": {
            **os.environ,
            **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
        },
    }
    return {"cls": Nanny, "options": options}


@contextmanager
def connected(config: RunConfig) -> Iterator[Clusters]:
    """Clients of all clusters that the roles name; local workers end with them.

    Raises:
        GangRefusedError: nobody answers at an address.
    """
    where = {role.name: config.cluster.schedulers_of(role.name) for role in config.policy.roles}
    addresses = {address for named in where.values() for address in named}
    found: dict[str | None, Cluster] = {}
    loop: IOLoop | None = None
    with ExitStack() as stack:
        # This machine's first: its cluster brings the event loop, which must outlast all clients.
        for address in sorted(addresses, key=lambda address: address or ""):
            client = stack.enter_context(_connected_here(config) if address is None else connected_to(address, loop))
            loop = client.loop
            told = client.scheduler_info(n_workers=0)
            same = (cluster for cluster in found.values() if cluster.scheduler == told["id"])
            found[address] = next(same, None) or Cluster(
                client, str(told["id"]), str(told["address"]), is_here=address is None
            )
        yield Clusters(
            {role: tuple(dict.fromkeys(found[address] for address in named)) for role, named in where.items()}
        )


@contextmanager
def connected_to(address: str, loop: IOLoop | None = None) -> Iterator[Client]:
    """A client of a scheduler that exists, in an event loop that runs, or in its own.

    Raises:
        GangRefusedError: nobody answers there.
    """
    try:
        client = Client(address, timeout=_CONNECT_SECONDS, name="penstock", set_as_default=False, loop=loop)
    except TypeError as error:  # Dask's, of tls:// without certificates
        raise GangRefusedError(
            f"the Dask scheduler at '{address}' can't be spoken to ({error}); tls:// needs certificates: name the "
            f"folder of deploy/tls/dask.yaml in DASK_CONFIG"
        ) from error
    except (TimeoutError, OSError, ValueError) as error:
        raise GangRefusedError(
            f"no Dask scheduler answered at '{address}' within {_CONNECT_SECONDS} s ({error}); start one with `dask "
            f"scheduler`, or leave cluster.scheduler and cluster.schedulers empty for workers on this machine"
        ) from error
    with client:
        yield client


@contextmanager
def _connected_here(config: RunConfig) -> Iterator[Client]:
    workers = local_workers(config)
    cluster = start_local_cluster(workers)
    try:
        with Client(cluster, name="penstock", set_as_default=False) as client:
            client.run(warm_up, wait=False)
            yield client
    finally:
        with _starting:
            _started.pop(workers, None)
        cluster.close()
