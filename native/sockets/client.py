"""The client's end of a connection: connecting within a time, the agreement on sizes, requests and their answers."""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.spaces import Box, Discrete

from penstock.native.sockets import wire
from penstock.native.sockets.server import TOKEN_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

ADDRESS_VARIABLE = "PENSTOCK_ENVIRONMENT_ADDRESS"
"""Environment variable that, where it is set, replaces the address of every environment behind a socket."""

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.05, 2.0
_DTYPES = ("float32", "float64", "float16", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64")


class RefusedError(RuntimeError):
    """The server answered with a failure: connecting again would not help."""


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

    @property
    def where(self) -> str:
        """Return the addresses for messages."""
        return ", ".join(self.addresses)


@dataclass(frozen=True, slots=True)
class Agreement:
    """The server's description of one environment."""

    observation_space: Box
    action_space: Discrete | Box
    max_episode_steps: int | None
    reward_threshold: float | None


class Connection:
    """One connection whose environments exist: `ask` sends a request and returns the answer's body."""

    def __init__(self, connection: socket.socket, request: Request, address: str) -> None:
        """Say hello over a connected socket, which is closed if that fails.

        Raises:
            WireError: The server is gone, or speaks another protocol.
            RefusedError: It refuses the environments, or its description is none.
        """
        self._socket, self._seconds, self.address = connection, request.reply_seconds, address
        try:
            self._socket.settimeout(self._seconds)
            if connection.family != socket.AF_UNIX:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.agreement = self._greet(request)
        except BaseException:
            self.close()
            raise

    def ask(self, kind: int, answer: int, most: int, *parts: bytes | memoryview) -> memoryview:
        """Send a request and return the body of the answer, of at most `most` bytes.

        Raises:
            WireError: The connection is lost, or the answer is none that was asked for.
            RefusedError: The server reports a failure.
        """
        self._socket.settimeout(self._seconds)
        wire.send_frame(self._socket, kind, *parts)
        found, body = wire.receive_frame(self._socket, most, self._seconds)
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

    def _greet(self, request: Request) -> Agreement:
        limit = request.max_episode_steps or 0
        token, name = os.environ.get(TOKEN_VARIABLE, "").encode(), request.name.encode()
        settings = json.dumps(dict(request.settings), allow_nan=False).encode()
        head = wire.HELLO_HEAD.pack(
            wire.MAGIC, wire.VERSION, request.num_envs, limit, len(token), len(name), len(settings)
        )
        body = self.ask(wire.HELLO, wire.WELCOME, wire.MAX_TEXT_BYTES, head, token, name, settings)
        if len(body) < wire.WELCOME_HEAD.size:
            raise wire.WireError("the answer to HELLO is too short")
        version, num_envs, *sizes = wire.WELCOME_HEAD.unpack(body[: wire.WELCOME_HEAD.size])
        try:
            described = json.loads(bytes(body[wire.WELCOME_HEAD.size :]))
            agreement = _agreement(described)
            name = described["name"]
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise RefusedError(
                f"the server at {self.address} describes its environment otherwise than the protocol does "
                f"({type(error).__name__}: {error})"
            ) from error
        if version != wire.VERSION or num_envs != request.num_envs or name != request.name:
            raise RefusedError(
                f"the server at {self.address} gives {num_envs} environments {name!r} in version {version} of the "
                f"protocol, expected {request.num_envs} of {request.name!r} in version {wire.VERSION}"
            )
        expected = [_row_bytes(agreement.observation_space), _row_bytes(agreement.action_space)]
        if sizes != expected:
            raise RefusedError(
                f"the server at {self.address} announces rows of {sizes} bytes, and describes rows of {expected}"
            )
        if request.num_envs * (2 * expected[0] + expected[1] + 16) > wire.MAX_FRAME_BYTES:
            raise RefusedError(f"{request.num_envs} observations of {expected[0]} bytes are too many for one frame")
        asked = None if request.max_episode_steps == -1 else request.max_episode_steps
        if request.max_episode_steps is not None and agreement.max_episode_steps != asked:
            raise RefusedError(
                f"the server at {self.address} limits episodes to {agreement.max_episode_steps} steps, expected {asked}"
            )
        return agreement


def connect(request: Request, seconds: float) -> Connection:
    """Connect to the first address that answers; tries again for so many seconds.

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
                return Connection(_connected(address, request.reply_seconds), request, address)
            except (OSError, wire.WireError) as error:
                said[address] = str(error)
        tries += 1
        if time.monotonic() + pause > deadline:
            reasons = "; ".join(f"{address}: {reason}" for address, reason in said.items())
            raise wire.WireError(f"no environment answers ({reasons}) in {tries} tries within {seconds:g} s")
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def _connected(address: str, seconds: float) -> socket.socket:
    family, where = wire.address_parts(address)
    if family != socket.AF_UNIX:
        return socket.create_connection(where, seconds)
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.settimeout(seconds)
        connection.connect(where)
    except OSError:
        connection.close()
        raise
    return connection


def _agreement(described: Any) -> Agreement:
    """Return the spaces of a description; raises KeyError, TypeError or ValueError where it is none."""
    observation, action = described["observation"], described["action"]
    limit, threshold = described.get("max_episode_steps"), described.get("reward_threshold")
    if limit is not None and (type(limit) is not int or limit < 1):
        raise ValueError(f"max_episode_steps is {limit!r}")
    actions: Discrete | Box
    if action["kind"] == "discrete":
        if type(action["n"]) is not int or not 1 <= action["n"] < 1 << 31:
            raise ValueError(f"n is {action['n']!r}")
        actions = Discrete(action["n"])
    else:
        actions = _box(action)
        if actions.dtype.kind != "f":
            raise ValueError(f"actions are {actions.dtype}")
    return Agreement(_box(observation), actions, limit, None if threshold is None else float(threshold))


def _box(described: Any) -> Box:
    shape, dtype = tuple(described["shape"]), described["dtype"]
    if dtype not in _DTYPES or not shape or any(type(size) is not int or size < 1 for size in shape):
        raise ValueError(f"a space of {dtype!r} with the shape {shape!r}")
    if math.prod(shape) * np.dtype(dtype).itemsize > wire.MAX_FRAME_BYTES:
        raise ValueError(f"a space of {dtype!r} with the shape {shape!r} is too large")
    kind = np.dtype(dtype)
    least, most = (-np.inf, np.inf) if kind.kind == "f" else (np.iinfo(kind).min, np.iinfo(kind).max)
    low, high = (
        np.asarray(
            [unbounded if part is None else part for part in (given if isinstance(given, list) else [given])]
        ).astype(kind)
        for given, unbounded in ((described.get("low"), least), (described.get("high"), most))
    )
    full = [
        np.broadcast_to(part if part.size > 1 else part[0], math.prod(shape)).reshape(shape) for part in (low, high)
    ]
    return Box(full[0], full[1], dtype=kind.type)


def _row_bytes(space: Box | Discrete) -> int:
    return 8 if isinstance(space, Discrete) else math.prod(space.shape) * np.dtype(space.dtype).itemsize
