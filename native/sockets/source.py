"""Connects to an environment behind a socket by its id, `socket/<name>`, and its address."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any

from gymnasium.vector import AutoresetMode

from penstock.native.adapters.one_array import PLAIN, Encoding
from penstock.native.adapters.vector_env import WrappedSource
from penstock.native.sockets import wire
from penstock.native.sockets.client import ADDRESS_VARIABLE, RefusedError, Request, connect
from penstock.native.sockets.observing import Observing
from penstock.native.sockets.tls import Trust
from penstock.native.sockets.vector import SocketVector

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gymnasium.vector import VectorEnv

PREFIX = "socket/"
REPLY_SECONDS = 60.0
"""Default of the longest wait for one answer."""
RECONNECT_SECONDS = 30.0
"""Default of the time for which connecting is tried again after a loss."""
FIRST_SECONDS = 10.0
"""Longest time for which the first connection is tried: a wrong address is a user's mistake."""
_MOST_SECONDS = 10**8


def socket_source(
    env_id: str,
    num_envs: int,
    num_threads: int,
    max_episode_steps: int | None,
    settings: Mapping[str, Any],
    encoding: Encoding = PLAIN,
) -> WrappedSource:
    """Return the environments of a server, to which this connects.

    Of the settings `address` is its host and port (several are separated by commas), replaced by the variable
    `PENSTOCK_ENVIRONMENT_ADDRESS` if that is set; `reply_seconds` and `reconnect_seconds` are time-outs;
    `tls_certificate` is the path of the certificate that the server must have. The others go to the server, which
    makes its environments with them. `encoding` says whether observations are one array.

    Raises:
        ValueError: No address, or one that is none; a time-out below 0; a certificate that is none; nothing answers
            there; the server has another certificate, or refuses the name, a setting or a limit; or there can be no
            such array.
    """
    if num_threads != 1:
        raise ValueError(f"{env_id} is stepped by its server, which chooses its threads: leave num_threads at 1")
    request = _request(env_id, num_envs, max_episode_steps, settings, encoding)

    def connected() -> Any:
        try:
            return connect(request, min(request.reconnect_seconds, FIRST_SECONDS))
        except wire.WireError as error:
            raise ValueError(
                f"{env_id}: {error}; start its server, such as `penstock serve-env`, or correct environment.address"
            ) from error
        except (RefusedError, TypeError) as error:
            raise ValueError(f"{env_id}: {error}") from error

    ready = [connected()]
    agreed = ready[0].agreement
    try:
        if encoding.structured and agreed.version == wire.PLAIN_VERSION:
            raise ValueError(  # noqa: TRY301  (handled with the errors of the calls)
                "structured = True: the server speaks version 1 of the protocol, which has one array alone: update the "
                "server's copy of Penstock's files (docs/socket.md), or leave structured out"
            )
        Observing(agreed, num_envs, encoding)
    except ValueError as error:
        ready.pop().close()
        raise ValueError(f"{env_id}: {error}") from error

    def build(mode: AutoresetMode) -> VectorEnv[Any, Any, Any]:
        if mode == AutoresetMode.DISABLED:
            while ready:
                ready.pop().close()
            raise ValueError(f"{env_id}: its server resets by itself; autoreset_mode is NextStep or SameStep")
        return SocketVector(request, ready.pop() if ready else connected(), mode, encoding)

    return WrappedSource(env_id, build, agreed.max_episode_steps, agreed.reward_threshold)


def _request(
    env_id: str, num_envs: int, max_episode_steps: int | None, settings: Mapping[str, Any], encoding: Encoding
) -> Request:
    """Take the connection's settings from the environment's, which go to the server; raises ValueError."""
    values = dict(settings)
    if values.pop("render_mode", None) is not None:
        raise ValueError(f"{env_id} is behind a socket and can't be drawn here: leave render_mode out")
    given = os.environ.get(ADDRESS_VARIABLE) or values.pop("address", None)
    values.pop("address", None)
    addresses = _addresses(env_id, given)
    request = Request(
        name=env_id.removeprefix(PREFIX),
        num_envs=num_envs,
        max_episode_steps=max_episode_steps,
        addresses=addresses,
        reply_seconds=_seconds("reply_seconds", values.pop("reply_seconds", None), REPLY_SECONDS),
        reconnect_seconds=_seconds("reconnect_seconds", values.pop("reconnect_seconds", None), RECONNECT_SECONDS),
        trust=_trust(values.pop("tls_certificate", None), addresses),
        settings=values,
        masks=encoding.action_mask == "info",
    )
    if num_envs > wire.MAX_ENVS:
        raise ValueError(f"num_envs is {num_envs}, and a connection has at most {wire.MAX_ENVS}; choose fewer")
    return request


def _addresses(env_id: str, given: Any) -> tuple[str, ...]:
    found = tuple(part.strip() for part in str(given or "").split(",") if part.strip())
    if not found:
        raise ValueError(
            f"{env_id} is behind a socket, and there is no address: expected environment.address (or "
            f"native.make(..., address=...)) as host:port or unix:/path, or the variable {ADDRESS_VARIABLE}"
        )
    for address in found:
        wire.address_parts(address)
    return found


def _trust(certificate: Any, addresses: tuple[str, ...]) -> Trust | None:
    if certificate is None:
        return None
    for address in addresses:
        if wire.address_parts(address)[0] == socket.AF_UNIX:
            raise ValueError(f"address {address!r} never leaves this machine: leave tls_certificate out")
    return Trust(str(certificate))


def _seconds(name: str, value: Any, default: float) -> float:
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= _MOST_SECONDS:
        raise ValueError(f"{name} is {value!r}, expected seconds above 0, at most {_MOST_SECONDS:,}")
    return float(value)
