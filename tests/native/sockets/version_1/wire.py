"""The frames of the environment protocol, version 1, for both ends; needs Python and NumPy alone, as `server.py` does.

A frame is a header of 8 bytes, little-endian (u32 bytes of the body, u16 kind, u16 zero), and its body. A receiver
knows the largest body that it may get, and allocates nothing for a larger one. docs/socket.md describes every body.
"""

from __future__ import annotations

import socket
import struct
import time
from typing import Any

VERSION = 1
MAGIC = b"PENSTOCK"
HEADER = struct.Struct("<IHH")
HELLO_HEAD = struct.Struct("<8sIIqIII")
"""Magic, version, num_envs, max_episode_steps (0: the environment's own, -1: none), bytes of token, name, settings."""
WELCOME_HEAD = struct.Struct("<IIII")
"""Version, num_envs, bytes of one observation, bytes of one action; JSON follows."""
HELLO, WELCOME, RESET, OBSERVED, STEP, STEPPED, FAILED, CLOSE = range(1, 9)
MAX_TEXT_BYTES = 1 << 20
"""Largest body of HELLO, WELCOME and FAILED."""
MAX_ENVS = 1 << 16
MAX_FRAME_BYTES = 1 << 30
"""Largest body of all others, which both ends know once they have agreed on sizes."""


class WireError(ConnectionError):
    """The other end is gone, silent for too long, or sent what is no frame of the protocol."""


def address_parts(address: str) -> tuple[int, Any]:
    """Return the family of an address and what `socket.connect` takes: `host:port`, `[v6]:port` or `unix:/path`.

    Raises:
        ValueError: It is none of these.
    """
    if address.startswith("unix:") and len(address) > len("unix:"):
        return socket.AF_UNIX, address.removeprefix("unix:")
    host, colon, port = address.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    is_v6 = host.startswith("[") and host.endswith("]")
    if not colon or not bare or not port.isascii() or not port.isdigit() or not 0 <= int(port) < 1 << 16:
        raise ValueError(f"address {address!r}: expected host:port, [v6 address]:port or unix:/path")
    if ":" in bare and not is_v6:
        raise ValueError(f"address {address!r}: expected an IPv6 address in brackets, as [::1]:7000")
    return (socket.AF_INET6 if is_v6 else socket.AF_INET), (bare, int(port))


def send_frame(connection: socket.socket, kind: int, *parts: bytes | memoryview) -> None:
    """Send one frame, whose body is the parts one after the other.

    Raises:
        WireError: The other end is gone or takes nothing within the socket's time-out.
    """
    views = [memoryview(part).cast("B") for part in parts if len(part)]
    body = b"".join([HEADER.pack(sum(view.nbytes for view in views), kind, 0), *views])
    try:
        connection.sendall(body)
    except OSError as error:
        raise WireError(f"sending failed ({error})") from error


def receive_frame(connection: socket.socket, most: int, seconds: float | None) -> tuple[int, memoryview]:
    """Receive one frame; returns its kind and body.

    Args:
        connection: Connected socket.
        most: Largest body in bytes that is accepted. Texts (WELCOME, FAILED) may have `MAX_TEXT_BYTES` in any case.
        seconds: Longest wait for the whole frame; None waits for as long as the connection lives.

    Raises:
        WireError: The connection ended or was silent, or the frame is larger than it may be.
    """
    deadline = None if seconds is None else time.monotonic() + seconds
    head = memoryview(bytearray(HEADER.size))
    _fill(connection, head, deadline, seconds)
    size, kind, zero = HEADER.unpack(head)
    allowed = max(most, MAX_TEXT_BYTES) if kind in {WELCOME, FAILED} else most
    if zero or size > allowed or not HELLO <= kind <= CLOSE:
        raise WireError(
            f"received kind {kind} with {size} bytes, expected a frame of the protocol of at most {allowed} bytes"
        )
    body = memoryview(bytearray(size))
    _fill(connection, body, deadline, seconds)
    return kind, body


def _fill(connection: socket.socket, part: memoryview, deadline: float | None, seconds: float | None) -> None:
    received = 0
    while received < part.nbytes:
        try:
            if deadline is not None:
                # At least a millisecond: zero would mean not to wait, and what has arrived is taken all the same.
                connection.settimeout(max(deadline - time.monotonic(), 1e-3))
            count = connection.recv_into(part[received:])
        except TimeoutError:
            raise WireError(f"no reply within {seconds:g} s") from None
        except OSError as error:
            raise WireError(f"receiving failed ({error})") from error
        if not count:
            raise WireError("the connection was closed")
        received += count
