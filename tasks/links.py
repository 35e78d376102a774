"""A link: a socket between two processes of a gang, for edges that fire every step.

Both ends know what comes next and how long it is, so a step has no header. Who listens says where, with a random token
that a newcomer has to show first. Whatever goes wrong with a link names the peer, and no call waits for ever.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
from dataclasses import asdict, dataclass
from typing import Any

from storage.errors import MemberLostError

LINK_SECONDS = 60.0
"""Longest wait for one message of a peer that lives: far more than a step of any environment takes."""

_TOKEN_BYTES = 16
_HELLO = struct.Struct(f"<{_TOKEN_BYTES}sI")
_SIZE = struct.Struct("<Q")
_WELCOME = b"\x01"

GREETING_BYTES, WELCOME_BYTES = _HELLO.size, len(_WELCOME)
"""Of a link's first message, and of the answer."""


@dataclass(frozen=True, slots=True)
class LinkAddress:
    """Where a member listens, and what it wants to be shown."""

    member: str
    host: str
    port: int
    token: str

    def to_json(self) -> dict[str, Any]:
        """For the way to a peer."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> LinkAddress:
        """Back from `to_json`."""
        return cls(**values)


class Link:
    """One end of a link. For one thread at a time.

    Attributes:
        peer: the other end's name, for messages.
        sent_bytes, received_bytes: of all messages, without what TCP adds.
    """

    def __init__(self, connection: socket.socket, peer: str, timeout_seconds: float = LINK_SECONDS) -> None:
        whole, fraction = divmod(timeout_seconds, 1)
        wait = struct.pack("@ll", int(whole), int(fraction * 1e6))
        connection.setblocking(True)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # The kernel's own limits: Python's would cost a system call more for every message.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, wait)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, wait)
        self._socket = connection
        self._timeout_seconds = timeout_seconds
        self.peer = peer
        self.sent_bytes = self.received_bytes = 0

    def fileno(self) -> int:
        """For a selector."""
        return self._socket.fileno()

    def send(self, message: bytes | memoryview) -> None:
        """Send a message of a length that the peer knows.

        Raises:
            MemberLostError: the peer is gone, or takes nothing.
        """
        view = memoryview(message)
        try:
            self._socket.sendall(view)
        except BlockingIOError:
            raise self._silent("took nothing") from None
        except OSError as error:
            raise self._gone(error) from error
        self.sent_bytes += view.nbytes

    def receive_into(self, message: memoryview) -> None:
        """Fill a buffer of bytes.

        Raises:
            MemberLostError: the peer is gone, or silent for the link's timeout.
        """
        expected, received = message.nbytes, 0
        while received < expected:
            try:
                count = self._socket.recv_into(message[received:], 0, socket.MSG_WAITALL)
            except BlockingIOError:
                raise self._silent(f"sent {received} of {expected} bytes") from None
            except OSError as error:
                raise self._gone(error) from error
            if not count:
                raise self._gone(f"end of stream after {received} of {expected} bytes")
            received += count
        self.received_bytes += expected

    def send_sized(self, message: bytes) -> None:
        """Send a message whose length the peer cannot know."""
        self.send(_SIZE.pack(len(message)) + message)

    def receive_sized(self) -> memoryview:
        """What `send_sized` sent."""
        size = memoryview(bytearray(_SIZE.size))
        self.receive_into(size)
        message = memoryview(bytearray(_SIZE.unpack(size)[0]))
        self.receive_into(message)
        return message

    def close(self) -> None:
        """Let the peer know that nothing follows."""
        self._socket.close()

    def _silent(self, what: str) -> MemberLostError:
        return MemberLostError(
            f"{self.peer} {what} within {self._timeout_seconds:g} s: it hangs, or its machine cannot be reached. Look "
            f"at its worker's log"
        )

    def _gone(self, why: object) -> MemberLostError:
        return MemberLostError(f"the link to {self.peer} broke ({why}): its process has ended, or was told to leave")


def connect(address: LinkAddress, channel: int, timeout_seconds: float = LINK_SECONDS) -> Link:
    """Open a link to who listens there.

    Args:
        address: as it was announced.
        channel: what the link is for, a number that the peer understands.
        timeout_seconds: of this, and of every message later.

    Raises:
        MemberLostError: nobody listens there, or they do not know the token.
    """
    where = f"{address.member} at {address.host}:{address.port}"
    try:
        connection = socket.create_connection((address.host, address.port), timeout_seconds)
    except OSError as error:
        raise MemberLostError(
            f"no link to {where}: {error}. Its process has ended, or its host cannot be reached from here"
        ) from error
    link = Link(connection, where, timeout_seconds)
    try:
        link.send(_HELLO.pack(bytes.fromhex(address.token), channel))
        link.receive_into(memoryview(bytearray(len(_WELCOME))))
    except MemberLostError as error:
        link.close()
        raise MemberLostError(
            f"{where} did not take the link: it expects another token, as a member of another gang would, or it has "
            f"ended ({error})"
        ) from error
    return link


class Newcomer:
    """A connection that has not said yet who it is."""

    def __init__(self, connection: socket.socket, token: bytes) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._token = token
        self._hello = bytearray()

    def fileno(self) -> int:
        """For a selector."""
        return self._socket.fileno()

    def read(self, peer: str, timeout_seconds: float = LINK_SECONDS) -> tuple[Link, int] | None:
        """Read on, without waiting: the link and its channel once the token was shown, None before.

        Raises:
            PermissionError: it left, or what it showed is not the token; it is closed.
        """
        try:
            piece = self._socket.recv(_HELLO.size - len(self._hello))
        except BlockingIOError:
            return None
        except OSError:
            piece = b""
        self._hello += piece
        if piece and len(self._hello) < _HELLO.size:
            return None
        token, channel = _HELLO.unpack(self._hello) if piece else (b"", 0)
        if not hmac.compare_digest(token, self._token):
            self.close()
            raise PermissionError("a connection without the token was refused")
        link = Link(self._socket, peer, timeout_seconds)
        link.send(_WELCOME)
        return link, channel

    def close(self) -> None:
        """Refuse it."""
        self._socket.close()


class Listener:
    """Takes links on one interface, on a port of its own. Never blocks."""

    def __init__(self, host: str, member: str) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, 0), family=family)
        self._socket.setblocking(False)
        self._token = secrets.token_bytes(_TOKEN_BYTES)
        self.address = LinkAddress(member, host, self._socket.getsockname()[1], self._token.hex())

    def fileno(self) -> int:
        """For a selector."""
        return self._socket.fileno()

    def accept(self) -> Newcomer | None:
        """Who knocks, if anybody does."""
        try:
            connection, _ = self._socket.accept()
        except (BlockingIOError, ConnectionError):
            return None
        return Newcomer(connection, self._token)

    def close(self) -> None:
        """Take no more links."""
        self._socket.close()
