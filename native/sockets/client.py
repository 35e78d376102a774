"""The client's end of a connection: connecting within a time, the agreement on sizes, requests and their answers."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.native.sockets import wire
from penstock.native.sockets.agreement import Agreement, read_welcome
from penstock.native.sockets.server import TOKEN_VARIABLE
from penstock.native.sockets.tls import UntrustedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.native.sockets.tls import Trust

ADDRESS_VARIABLE = "PENSTOCK_ENVIRONMENT_ADDRESS"
"""Environment variable that, where it is set, replaces the address of every environment behind a socket."""

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.05, 2.0
_OLDER = ("the server speaks version 1 of the protocol", "of the protocol, the server 1")
"""Ends of the texts with which servers of version 1 alone refuse a later one, in C and in Python."""


class RefusedError(RuntimeError):
    """The server answered with a failure: connecting again would not help."""


class OlderServerError(RefusedError):
    """The server speaks an older version of the protocol."""


@dataclass(frozen=True, slots=True)
class Request:
    """The environments that a client asks for, and its patience."""

    name: str
    """The server's name must be this."""
    num_envs: int
    max_episode_steps: int | None
    """As `native.make` takes it."""
    settings: Mapping[str, Any]
    """Sent to the server, which makes the environments with them."""
    addresses: tuple[str, ...]
    """Each `host:port`, `[v6]:port` or `unix:/path`: the first that answers is taken, beginning with any."""
    reply_seconds: float
    """Longest wait for one answer."""
    reconnect_seconds: float
    """Time for which connecting is tried again after a loss."""
    masks: bool = False
    """True if the server puts the mask of allowed choices among its infos in front of each observation."""
    trust: Trust | None = None
    """The certificate that connections are encrypted with; None leaves them plain."""

    @property
    def where(self) -> str:
        """Return the addresses for messages."""
        return ", ".join(self.addresses)


class Connection:
    """One connection whose environments exist: `ask` sends a request and returns the answer's body."""

    def __init__(self, connection: socket.socket, request: Request, address: str, version: int = wire.VERSION) -> None:
        """Say hello over a connected socket, which is closed if that fails.

        Raises:
            WireError: The server is gone, or speaks another protocol.
            OlderServerError: It speaks an older version than this one.
            RefusedError: It refuses the environments, or its description is none.
        """
        self._socket, self._seconds, self.address = connection, request.reply_seconds, address
        try:
            self._socket.settimeout(self._seconds)
            if connection.family != socket.AF_UNIX:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.agreement = self._greet(request, version)
        except BaseException:
            self.close()
            raise

    def ask(self, kind: int, answer: int, most: int, *parts: bytes | memoryview) -> memoryview:
        """Send a request and return the body of the answer, of at most `most` bytes.

        Raises:
            WireError: The connection is lost, or the answer is none that was asked for.
            RefusedError: The server reports a failure.
        """
        if self._socket.fileno() < 0:
            raise wire.WireError("an earlier request was given up")
        try:
            self._socket.settimeout(self._seconds)
            wire.send_frame(self._socket, kind, *parts)
            found, body = wire.receive_frame(self._socket, most, self._seconds)
        except BaseException:
            self._socket.close()  # after Ctrl-C too: the next request would take this one's answer for its own
            raise
        if found == wire.FAILED:
            raise RefusedError(f"the server at {self.address} reports: {bytes(body).decode(errors='replace')}")
        if found != answer:
            raise wire.WireError(f"received kind {found}, expected {answer}")
        return body

    def close(self) -> None:
        """End the connection, and with it the environments."""
        with contextlib.suppress(OSError, wire.WireError):
            self._socket.settimeout(min(self._seconds, 1.0))
            wire.send_frame(self._socket, wire.CLOSE)
        self._socket.close()

    def _greet(self, request: Request, version: int) -> Agreement:
        limit = request.max_episode_steps or 0
        token, name = os.environ.get(TOKEN_VARIABLE, "").encode(), request.name.encode()
        settings = json.dumps(dict(request.settings), allow_nan=False).encode()
        wishes, sizes = wire.MASKS if request.masks else 0, (len(token), len(name), len(settings))
        head = wire.HELLO_HEAD.pack(wire.MAGIC, version, wishes, request.num_envs, limit, *sizes)
        try:
            body = self.ask(wire.HELLO, wire.WELCOME, wire.MAX_TEXT_BYTES, head, token, name, settings)
        except RefusedError as error:
            if version != wire.PLAIN_VERSION and str(error).endswith(_OLDER):
                raise OlderServerError(str(error)) from error
            raise
        if len(body) < wire.WELCOME_HEAD.size:
            raise wire.WireError("the answer to HELLO is too short")
        try:
            return read_welcome(
                body, request.name, request.num_envs, request.max_episode_steps, version, masks=request.masks
            )
        except ValueError as error:
            raise RefusedError(f"the server at {self.address} {error}") from error


def connect(request: Request, seconds: float, version: int | None = None) -> Connection:
    """Connect to the first address that answers; tries again for so many seconds.

    `version` is the protocol's; None takes the newest that the server speaks.

    Raises:
        WireError: None answered in that time; says what each last said.
        RefusedError: A server refuses.
    """
    deadline = time.monotonic() + seconds
    pause, tries = _FIRST_PAUSE_SECONDS, 0
    said: dict[str, str] = {}
    start = os.getpid() % len(request.addresses)  # so that several actors use several servers
    while True:
        for address in (*request.addresses[start:], *request.addresses[:start]):
            try:
                return _greeted(address, request, version)
            except (OSError, wire.WireError) as error:
                said[address] = str(error)
        tries += 1
        if time.monotonic() + pause > deadline:
            reasons = "; ".join(f"{address}: {reason}" for address, reason in said.items())
            raise wire.WireError(f"no environment answers ({reasons}) in {tries} tries within {seconds:g} s")
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def _greeted(address: str, request: Request, version: int | None) -> Connection:
    """Return a connection in a version of the protocol, or in the newest that the server speaks."""
    try:
        return Connection(_connected(address, request), request, address, version or wire.VERSION)
    except OlderServerError as error:
        if version is not None:
            raise
        older = f"the server at {address} speaks version {wire.PLAIN_VERSION} of the protocol"
        update = "update its copy of Penstock's files (docs/socket.md)"
        if request.masks:
            raise RefusedError(
                f"{older}, which has no masks: {update}, or leave environment.action_mask out"
            ) from error
        try:
            return Connection(_connected(address, request), request, address, wire.PLAIN_VERSION)
        except RefusedError as refusal:
            raise RefusedError(f"{refusal}; {older}, so if that is about its spaces {update}") from refusal


def _connected(address: str, request: Request) -> socket.socket:
    family, where = wire.address_parts(address)
    if family != socket.AF_UNIX:
        connection = socket.create_connection(where, request.reply_seconds)
        return connection if request.trust is None else _encrypted(connection, address, where[0], request.trust)
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.settimeout(request.reply_seconds)
        connection.connect(where)
    except OSError:
        connection.close()
        raise
    return connection


def _encrypted(connection: socket.socket, address: str, host: str, trust: Trust) -> socket.socket:
    try:
        return trust.wrapped(connection, host)
    except UntrustedError as error:
        raise RefusedError(f"the server at {address} {error}") from error
    finally:
        connection.close()  # where it is wrapped, it is no longer this object's
