"""Checks in seconds that something listens at an address, before the retries of clients take longer."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

from penstock.storage.errors import StoreError

CONNECT_SECONDS = 4.0
_DEFAULT_PORTS = {"http": 80, "https": 443}


def why_unreachable(host: str, port: int) -> str | None:
    """Return why no connection to a host and port can be opened within 4 s; None if one was."""
    try:
        socket.create_connection((host, port), CONNECT_SECONDS).close()
    except TimeoutError:
        return f"no answer within {CONNECT_SECONDS:g} s"
    except OSError as error:
        return error.strerror or str(error)
    return None


def require_endpoint(store: str) -> None:
    """Check that an S3 service of the user's own listens at its endpoint.

    Folders, other services, and S3 at its public address are not checked: proxies may be in between.

    Args:
        store: address of a store.

    Raises:
        StoreError: nothing listens there.
    """
    scheme = store.partition("://")[0].partition("+")[0]
    if scheme not in {"s3", "s3a"}:
        return
    from penstock.storage.stores.s3_credentials import configured_endpoint  # noqa: PLC0415  (needs botocore)

    endpoint = configured_endpoint()
    if endpoint is None:
        return
    address = urlsplit(endpoint)
    try:
        port = address.port or _DEFAULT_PORTS.get(address.scheme)
    except ValueError:
        return  # The client's own message names the mistake in the address.
    if not address.hostname or port is None or _has_proxy(address.scheme):
        return
    problem = why_unreachable(address.hostname, port)
    if problem is not None:
        raise StoreError(
            f"the store '{store}' can't be reached: its endpoint, {address.scheme}://{address.hostname}:{port}: "
            f"{problem}; check AWS_ENDPOINT_URL, and that the service runs"
        )


def _has_proxy(scheme: str) -> bool:
    from urllib.request import getproxies  # noqa: PLC0415  (imports much)

    return scheme in getproxies()
