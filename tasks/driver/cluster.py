"""The Dask clusters of a run: existing ones, and local workers on this machine.

Local workers are ordinary Dask workers with the resources that the run's policy asks for. Their nannies live in the
flow's process, restart a worker that dies, and die with the flow. Workers are forked from one process that has
already imported their modules, which saves seconds for each at the start and after each loss. They and the flow accept
only each other: TLS with a key that is made for the run and kept in memory, since whoever may connect to a Dask
scheduler may run code as its owner.
"""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, TypeAlias

import dask
import distributed.utils
from distributed import Client, Nanny, Scheduler, SpecCluster
from distributed.core import rpc
from distributed.security import Security

from penstock.storage.errors import GangRefusedError
from penstock.tasks.roles.worker import entrypoint
from penstock.tasks.roles.worker.fork_server import start_fork_server

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tornado.ioloop import IOLoop

    from penstock.tasks.setup.config.cluster import ClusterSettings
    from penstock.tasks.setup.distribution.policies import DistributionPolicy

_CONNECT_SECONDS = 15
_PROTOCOL = "tls://"
_PACKAGE = "penstock-rl"
_SHOWN_WORKERS = 5
_ASK_SECONDS = 3.0

Workers: TypeAlias = tuple[tuple[str, int, tuple[tuple[str, float], ...]], ...]

QUIET = {
    # Only for its dashboard, which is off here, Dask polls every event loop 50 times a second, and samples the stacks
    # of a worker, which must pause for each sample, 100 times: a sixth of a core for three idle workers.
    "distributed.admin.tick.interval": "500ms",
    "distributed.admin.system-monitor.interval": "10s",
    "distributed.worker.profile.enabled": False,
    # Workers keep a log record for each stage: by default 10,000 of them, which are 30 MiB.
    "distributed.admin.log-length": 1000,
}
"""Settings that keep an idle cluster idle, and a long run's small."""

_DASK = {
    # A gang's tasks are long and few: work stealing could only hurt.
    "distributed.scheduler.work-stealing": False,
    "distributed.scheduler.allowed-failures": 5,
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.comm.timeouts.connect": "10s",
    **QUIET,
}


@dataclass(frozen=True, slots=True, eq=False)
class Cluster:
    """A Dask cluster and a client of it."""

    client: Client
    scheduler: str
    """The scheduler's id: the same from every client."""
    address: str
    """The scheduler's address, as it reports it."""
    is_here: bool = False
    """True if it was started for the run, in this process."""
    checked: set[str] = field(default_factory=set)
    """Addresses of the workers that have been asked for their version of Penstock."""

    def require_penstock(self, workers: Iterable[str]) -> None:
        """Do as the function of this name, once for each worker."""
        if not self.is_here and (new := set(workers) - self.checked):
            require_penstock(self.client, self.address, new)
            self.checked.update(new)


@dataclass(frozen=True, slots=True)
class Clusters:
    """All clusters of a run. Their clients share one event loop."""

    by_role: Mapping[str, tuple[Cluster, ...]]
    """The clusters that a role's members may run on."""

    @property
    def every(self) -> tuple[Cluster, ...]:
        """Return each cluster once."""
        return tuple(dict.fromkeys(cluster for clusters in self.by_role.values() for cluster in clusters))


def require_penstock(client: Client, scheduler: str, workers: Iterable[str]) -> None:
    """Refuse workers in whose environment Penstock is not installed.

    A worker that can't import what it is sent closes without a word to the flow, which would wait for its members. One
    that does not answer within some seconds passes: it may be busy, or suspended for a while, and a run must not wait
    for it here.

    Args:
        client: of the workers' scheduler.
        scheduler: the scheduler's address, for the error.
        workers: addresses of the workers.

    Raises:
        GangRefusedError: some have no Penstock; names them.
    """
    answers: dict[str, object] = {}

    def ask() -> None:
        with suppress(Exception):  # the cluster was lost, as the next call to it will say
            answers.update(client.run(version, _PACKAGE, workers=sorted(workers), on_error="return"))

    # Dask waits for the last of the workers, however long that takes.
    asking = threading.Thread(target=ask, name="ask-for-penstock", daemon=True)
    asking.start()
    asking.join(_ASK_SECONDS)
    without = [worker for worker, answer in list(answers.items()) if isinstance(answer, PackageNotFoundError)]
    if without:
        shown = ", ".join(without[:_SHOWN_WORKERS])
        more = f" and {len(without) - _SHOWN_WORKERS} more" if len(without) > _SHOWN_WORKERS else ""
        raise GangRefusedError(
            f"Penstock is not installed in the environment of these workers of the Dask scheduler at {scheduler}: "
            f"{shown}{more}. Install {_PACKAGE} {version(_PACKAGE)} there and restart them; then resume the run"
        )


_started: dict[Workers, SpecCluster] = {}
_starting = threading.Lock()


def start_configured_cluster(policy: DistributionPolicy, cluster: ClusterSettings) -> None:
    """Start local workers if the settings ask for any."""
    if workers := local_workers(policy, cluster):
        start_local_cluster(workers)


def local_workers(policy: DistributionPolicy, cluster: ClusterSettings) -> Workers:
    """Return the workers that a run's policy needs on this machine: name, threads and resources of each.

    A member that holds `learn` or `sync` is alone in its process; others share one if `cluster.act_workers` says so.
    """
    workers: list[tuple[str, int, tuple[tuple[str, float], ...]]] = []
    for role in policy.roles:
        if cluster.schedulers_of(role.name) != (None,):
            continue
        alone = bool(role.fragments & {"learn", "sync"})
        processes = role.replicas if alone else cluster.act_workers or role.replicas
        slots = -(-role.replicas // processes)
        resources = tuple((name, amount * slots) for name, amount in role.resources)
        workers += [(f"{role.name}-{index}", slots, resources) for index in range(processes)]
    return tuple(workers)


def start_local_cluster(workers: Workers) -> SpecCluster:
    """Start workers on this machine, each a process, unless they run already; thread-safe.

    Called ahead of the flow it saves time, because the flow uses the workers that were started here.
    """
    with _starting:
        if workers not in _started:
            _started[workers] = _start(workers)
        return _started[workers]


def stop_local_clusters() -> None:
    """Stop workers that were started ahead of a flow which did not begin."""
    with _starting:
        clusters = list(_started.values())
        _started.clear()
    for cluster in clusters:
        cluster.close()


def _start(wanted: Workers) -> SpecCluster:
    _fork_workers()
    # A configuration that requires encryption, such as deploy/tls/dask.yaml, names certificates as well.
    encrypted = dask.config.get("distributed.comm.require-encryption")
    security = Security() if encrypted else Security.temporary()
    workers = {name: _worker(threads, dict(resources), security) for name, threads, resources in wanted}
    with dask.config.set(_DASK):
        return SpecCluster(
            workers=workers,
            scheduler={
                "cls": Scheduler,
                "options": {
                    "protocol": _PROTOCOL,
                    "security": security,
                    "host": "127.0.0.1",
                    "port": 0,
                    "dashboard": False,
                    "dashboard_address": "127.0.0.1:0",
                },
            },
            security=security,
            name="penstock",
            silence_logs=40,
        )


def _fork_workers() -> None:
    """Make nannies of this process fork their workers from its fork server."""
    dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"})
    # Otherwise Dask imports here what it would have a fork server import, pandas too where it is installed (30 MB).
    distributed.utils._forkserver_preload_set = True  # noqa: SLF001  (there is no public way)
    start_fork_server()


def _worker(threads: int, resources: dict[str, float], security: Security) -> dict[str, object]:
    options = {
        "protocol": _PROTOCOL,
        "security": security,
        "host": "127.0.0.1",
        "nthreads": threads,
        "resources": resources,
        "preload": entrypoint.__name__,
        "memory_limit": 0,
        "dashboard": False,
        # Dask serves metrics in any case, on all interfaces unless configured otherwise.
        "dashboard_address": "127.0.0.1:0",
        "config": _DASK,
        "silence_logs": 40,
        # The fork server may have started with another environment.
        "env": {
            **os.environ,
            **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
        },
    }
    return {"cls": Nanny, "options": options}


@contextmanager
def connected(policy: DistributionPolicy, cluster: ClusterSettings) -> Iterator[Clusters]:
    """Connect to all clusters that the roles name; local workers end with the context.

    Raises:
        GangRefusedError: no scheduler answers at an address.
    """
    where = {role.name: cluster.schedulers_of(role.name) for role in policy.roles}
    addresses = {address for named in where.values() for address in named}
    found: dict[str | None, Cluster] = {}
    loop: IOLoop | None = None
    with ExitStack() as stack:
        # The local cluster comes first: it owns the event loop, which must outlast all clients.
        for address in sorted(addresses, key=lambda address: address or ""):
            client = stack.enter_context(
                _connected_here(policy, cluster) if address is None else connected_to(address, loop)
            )
            loop = client.loop
            info = client.scheduler_info(n_workers=0)
            same = (one for one in found.values() if one.scheduler == info["id"])
            found[address] = next(same, None) or Cluster(
                client, str(info["id"]), str(info["address"]), is_here=address is None
            )
        yield Clusters(
            {role: tuple(dict.fromkeys(found[address] for address in named)) for role, named in where.items()}
        )


@contextmanager
def connected_to(address: str, loop: IOLoop | None = None) -> Iterator[Client]:
    """Connect a client to an existing scheduler, in a running event loop or in its own.

    Raises:
        GangRefusedError: no scheduler answers there, or it runs in an environment without Penstock.
    """
    try:
        with ThreadPoolExecutor(1, "probe") as threads:  # in a notebook, this thread has an event loop already
            threads.submit(asyncio.run, _answer_of(address)).result()
        client = Client(address, timeout=_CONNECT_SECONDS, name="penstock", set_as_default=False, loop=loop)
    except TypeError as error:  # raised by Dask for tls:// without certificates
        raise GangRefusedError(
            f"can't connect to the Dask scheduler at '{address}' ({error}); tls:// needs certificates: set DASK_CONFIG "
            f"to the folder of deploy/tls/dask.yaml"
        ) from error
    # Another service's answer is read as the size of a message, for which no memory is found.
    except (TimeoutError, OSError, ValueError, MemoryError) as error:
        raise GangRefusedError(
            f"no Dask scheduler answered at '{address}' within {_CONNECT_SECONDS} s "
            f"({str(error) or type(error).__name__}); start one with `dask scheduler`, or leave cluster.scheduler and "
            f"cluster.schedulers empty for workers on this machine"
        ) from error
    with client:
        try:
            client.run_on_scheduler(version, _PACKAGE)
        except PackageNotFoundError as error:
            raise GangRefusedError(
                f"Penstock is not installed in the environment of the Dask scheduler at '{address}': install "
                f"{_PACKAGE} {version(_PACKAGE)} there, and restart it"
            ) from error
        yield client


async def _answer_of(address: str) -> None:
    """Wait for a scheduler's answer. A client does not end its own attempts where another kind of server listens."""
    async with rpc(address, connection_args=Security().get_connection_args("client")) as server:
        await asyncio.wait_for(server.identity(), _CONNECT_SECONDS)


@contextmanager
def _connected_here(policy: DistributionPolicy, settings: ClusterSettings) -> Iterator[Client]:
    workers = local_workers(policy, settings)
    cluster = start_local_cluster(workers)
    try:
        with Client(cluster, name="penstock", set_as_default=False) as client:
            # A worker that is lost meanwhile is restarted by its nanny, and imports when it gets a task.
            client.run(entrypoint.warm_up, wait=False, on_error="ignore")
            yield client
    finally:
        with _starting:
            _started.pop(workers, None)
        cluster.close()
