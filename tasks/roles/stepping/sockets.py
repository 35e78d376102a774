"""A link: a socket between two processes of a gang, for edges that fire every step.

Both ends know the next message and its length, so a step has no header. The listener advertises its address with a
random token, which a connection must send first. Every error names the peer, and every call has a time-out.
"""

from __future__ import annotations

import hmac
import secrets
import select
import socket
import struct
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from penstock.storage.errors import MemberLostError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LINK_SECONDS = 60.0
"""Time-out for one message of a live peer: far more than a step of any environment takes."""

_CHECK_MILLISECONDS = 250
_TOKEN_BYTES = 16
_HELLO = struct.Struct(f"<{_TOKEN_BYTES}sI")
_SIZE = struct.Struct("<Q")
_WELCOME = b"\x01"

GREETING_BYTES, WELCOME_BYTES = _HELLO.size, len(_WELCOME)
"""Lengths of a link's first message, and of the answer."""


@dataclass(frozen=True, slots=True)
class LinkAddress:
    """The address on which a member listens, and the token that it expects."""

    member: str
    host: str
    port: int
    token: str

    def to_json(self) -> dict[str, str | int]:
        """Return a JSON-able form; `from_json` reads it."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> LinkAddress:
        """Decode what `to_json` returned."""
        return cls(**values)


class Link:
    """One end of a link. For one thread at a time.

    Attributes:
        peer: the other end's name, for messages.
        sent_bytes, received_bytes: of all messages, without what TCP adds.
        is_excused: called when nothing came in time; True lets the peer have as long again.
    """

    def __init__(self, connection: socket.socket, peer: str, timeout_seconds: float = LINK_SECONDS) -> None:
        whole, fraction = divmod(timeout_seconds, 1)
        wait = struct.pack("@ll", int(whole), int(fraction * 1e6))
        connection.setblocking(True)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # The kernel's time-outs: Python's would cost one more system call per message.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, wait)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, wait)
        self._socket = connection
        self._timeout_seconds = timeout_seconds
        self.peer = peer
        self.sent_bytes = self.received_bytes = 0
        self.is_excused: Callable[[], bool] = lambda: False

    def fileno(self) -> int:
        """Return the file descriptor, for a selector."""
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
            MemberLostError: the peer is gone, or silent for the link's timeout without an excuse.
        """
        expected, received = message.nbytes, 0
        while received < expected:
            try:
                count = self._socket.recv_into(message[received:], 0, socket.MSG_WAITALL)
            except BlockingIOError:
                if self.is_excused():
                    continue
                raise self._silent(f"sent {received} of {expected} bytes") from None
            except OSError as error:
                raise self._gone(error) from error
            if not count:
                raise self._gone(f"end of stream after {received} of {expected} bytes")
            received += count
        self.received_bytes += expected

    def wait(self, check: Callable[[], None]) -> None:
        """Wait for the peer's next message, however long it takes.

        Args:
            check: called several times a second; raises if the peer will not answer.
        """
        ready = select.poll()
        ready.register(self._socket, select.POLLIN)
        while not ready.poll(_CHECK_MILLISECONDS):
            check()

    def send_sized(self, message: bytes) -> None:
        """Send a message whose length the peer cannot know."""
        self.send(_SIZE.pack(len(message)) + message)

    def receive_sized(self) -> memoryview:
        """Receive a message that `send_sized` sent."""
        size = memoryview(bytearray(_SIZE.size))
        self.receive_into(size)
        message = memoryview(bytearray(_SIZE.unpack(size)[0]))
        self.receive_into(message)
        return message

    def close(self) -> None:
        """Close the link, which the peer notices."""
        self._socket.close()

    def _silent(self, what: str) -> MemberLostError:
        return MemberLostError(
            f"{self.peer} {what} within {self._timeout_seconds:g} s: it hangs, or its machine cannot be reached. See "
            f"its worker's log"
        )

    def _gone(self, why: object) -> MemberLostError:
        return MemberLostError(
            f"the link to {self.peer} broke ({why}): its process has ended, or its gang was given up"
        )


def connect(
    address: LinkAddress,
    channel: int,
    timeout_seconds: float = LINK_SECONDS,
    check: Callable[[], None] | None = None,
) -> Link:
    """Open a link to a listener.

    Args:
        address: as advertised.
        channel: what the link is for, a number that the peer understands.
        timeout_seconds: of this, and of every message later.
        check: as of `Link.wait`; with it a listener that is busy is waited for.

    Raises:
        MemberLostError: no process listens there, or it expects another token.
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
        if check is not None:
            link.wait(check)
        link.receive_into(memoryview(bytearray(len(_WELCOME))))
    except BaseException as error:
        link.close()
        if not isinstance(error, MemberLostError):
            raise
        raise MemberLostError(
            f"{where} did not accept the link: it expects another token, as a member of another gang would, or it has "
            f"ended ({error})"
        ) from error
    return link


class PendingConnection:
    """A connection that has not sent its token yet."""

    def __init__(self, connection: socket.socket, token: bytes) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._token = token
        self._hello = bytearray()

    def fileno(self) -> int:
        """Return the file descriptor, for a selector."""
        return self._socket.fileno()

    def read(self, peer: str, timeout_seconds: float = LINK_SECONDS) -> tuple[Link, int] | None:
        """Continue to read without blocking; returns the link and its channel once the token has arrived, None before.

        Raises:
            PermissionError: it was closed, or its token is wrong; it is closed then.
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
        """Refuse the connection."""
        self._socket.close()


class Listener:
    """Accepts links on one interface, on a free port. Never blocks."""

    def __init__(self, host: str, member: str) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, 0), family=family)
        self._socket.setblocking(False)
        self._token = secrets.token_bytes(_TOKEN_BYTES)
        self.address = LinkAddress(member, host, self._socket.getsockname()[1], self._token.hex())

    def fileno(self) -> int:
        """Return the file descriptor, for a selector."""
        return self._socket.fileno()

    def accept(self) -> PendingConnection | None:
        """Return a pending connection, or None."""
        try:
            connection, _ = self._socket.accept()
        except (BlockingIOError, ConnectionError):
            return None
        return PendingConnection(connection, self._token)

    def close(self) -> None:
        """Stop accepting links."""
        self._socket.close()
