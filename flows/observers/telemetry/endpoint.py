"""Says whether a run's metrics are asked for, and serves a registry to Prometheus over HTTP, at /metrics."""

from __future__ import annotations

import os
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

from prometheus_client import start_http_server

from penstock.storage.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import CollectorRegistry

    from penstock.tasks.setup.config.cluster import ClusterSettings

_ENDPOINTS = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
)


def wants_metrics(cluster: ClusterSettings) -> bool:
    """Return whether a run's metrics are asked for, by its settings or by the environment."""
    return cluster.metrics_port is not None or wants_opentelemetry()


def wants_opentelemetry() -> bool:
    """Return whether the environment asks for OpenTelemetry."""
    is_off = os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    return not is_off and any(os.environ.get(name) for name in _ENDPOINTS)


def check_port(cluster: ClusterSettings) -> None:
    """Refuse a port for metrics that can't be listened on now.

    Raises:
        ConfigError: names the reason.
    """
    if not cluster.metrics_port:
        return
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            cluster.metrics_host, cluster.metrics_port, type=socket.SOCK_STREAM
        )[0]
        with socket.socket(family, kind, protocol) as listening:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen()
    except OSError as error:
        raise _refusal(cluster, error) from error


@contextmanager
def served(registry: CollectorRegistry, cluster: ClusterSettings) -> Iterator[str]:
    """Serve a registry until the context ends; yields its URL.

    Raises:
        ConfigError: the port can't be listened on.
    """
    try:
        server, thread = start_http_server(cluster.metrics_port or 0, cluster.metrics_host, registry)
    except OSError as error:
        raise _refusal(cluster, error) from error
    try:
        host = f"[{cluster.metrics_host}]" if ":" in cluster.metrics_host else cluster.metrics_host
        yield f"http://{host}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _refusal(cluster: ClusterSettings, error: OSError) -> ConfigError:
    return ConfigError(
        f"cluster.metrics_port = {cluster.metrics_port}: can't listen on {cluster.metrics_host}:{cluster.metrics_port} "
        f"({error.strerror or error}); choose another port, 0 for a free one, or leave it out"
    )
