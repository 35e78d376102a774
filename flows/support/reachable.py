"""Checks that a run's Dask schedulers listen and its store is shared, before any server is started for it."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from penstock.storage.errors import ConfigError
from penstock.storage.stores.reachable import why_unreachable

if TYPE_CHECKING:
    from penstock.tasks.setup.config.cluster import ClusterSettings

_CHECKED = {"tcp", "tls", "ws", "wss"}


def require_schedulers(cluster: ClusterSettings) -> None:
    """Check that something listens at each scheduler's address, within 4 s for each; Dask itself asks who it is.

    Raises:
        ConfigError: an address is none of a scheduler's, or nothing listens there.
    """
    named = [cluster.scheduler, *(each for several in cluster.schedulers.values() for each in several)]
    for address in dict.fromkeys(filter(None, named)):
        _require(address)


def require_shared(store: str) -> None:
    """Refuse a store that other processes, and so a run's workers, can't reach.

    Raises:
        ConfigError: it is in this process's memory.
    """
    if store.startswith("memory://"):
        raise ConfigError(
            f"store = '{store}' is in the memory of one process, and a run has several; expected a folder or an "
            f"address that all of them reach"
        )


def _require(address: str) -> None:
    parts = urlsplit(address if "://" in address else f"tcp://{address}")
    if parts.scheme not in _CHECKED:
        return  # A protocol that Dask may know by a plugin, or of this process alone.
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or port is None:
        raise ConfigError(
            f"'{address}' is no address of a Dask scheduler, expected one with a port such as tcp://127.0.0.1:8786"
        )
    problem = why_unreachable(host, port)
    if problem is not None:
        raise ConfigError(
            f"no Dask scheduler answers at '{address}': {problem}. Start one with `dask scheduler`, or leave "
            f"cluster.scheduler and cluster.schedulers empty for workers on this machine"
        )
