"""Inject faults between S3 clients and a server: delay, drop, lose, repeat, truncate or refuse requests, or stop.

A late request has reached the server, which has read its head and waits for its body until the test calls `land`.

The faults are those of `faulty.py`, with the HTTP method for the operation and the path below the bucket for the
name. They happen on the wire, so any process meets them, whatever client it uses, and the client's own retries are part
of what is tested.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import threading
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from urllib.parse import unquote, urlsplit

from ..stored.faulty import Call, Result, _State

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from ..stored.faulty import Fault, Kind

METHODS = ("PUT", "GET", "HEAD", "POST", "DELETE")
_SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
_BUCKET = re.compile(r"^/[^/?]*/?")
_HOP_BY_HOP = (b"connection:", b"keep-alive:", b"expect:")
_CONDITION = b"if-none-match:"
_PATIENCE_SECONDS = 150


class S3Proxy:
    """Listens on a port of the loopback, in a thread. A context manager; faults may change at any time.

    Every request is forwarded over a separate connection, unless a fault says otherwise.

    Attributes:
        calls: the requests that came in, in order.
        met: the faults that happened, in order.
    """

    def __init__(self, endpoint: str) -> None:
        self._server_port = urlsplit(endpoint).port
        self._state = _State([])
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="s3-proxy", daemon=True)
        self._listener: asyncio.Server | None = None
        self._connections: set[asyncio.Task[Any]] = set()
        self._late: list[tuple[asyncio.StreamReader, asyncio.StreamWriter, bytes]] = []
        # Bound and never listening: keeps the port while no server listens.
        self._reserved = socket.socket()
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reserved.bind(("127.0.0.1", 0))
        self._port = self._reserved.getsockname()[1]

    def __enter__(self) -> Self:
        self._thread.start()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE_SECONDS)
        self._loop.close()
        self._reserved.close()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def calls(self) -> list[Call]:
        return self._state.calls

    @property
    def met(self) -> list[tuple[Kind, Call]]:
        return self._state.met

    def add(self, *faults: Fault) -> None:
        """Add faults; each counts the requests since it was added."""
        self._state.add(faults)

    def drop(self, fault: Fault) -> None:
        """Remove one fault."""
        self._state.drop(fault)

    def heal(self) -> None:
        """Remove all faults."""
        self._state.heal()

    def land(self) -> list[int]:
        """Let the server have the bodies of late requests, in order; return the statuses of its answers."""
        late, self._late = self._late, []
        return [self._run(self._finish(*request)) for request in late]

    def start(self) -> None:
        """Listen, always on the same port; does nothing while it listens."""
        self._run(self._start())

    def stop(self) -> None:
        """Close the port and every connection. The server behind finishes the requests that it has."""
        self._run(self._stop())

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_PATIENCE_SECONDS)

    async def _start(self) -> None:
        if self._listener is None:
            self._listener = await asyncio.start_server(self._serve, "127.0.0.1", self._port, reuse_address=True)

    async def _stop(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for connection in list(self._connections):
            connection.cancel()
        for _, writer, _ in self._late:
            writer.transport.abort()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
                while await self._serve_one(reader, writer):
                    pass
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; return False if the connection must be closed."""
        head = await _read_head(reader)
        if head.value(b"expect:"):
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await _read_body(reader, head)
        method, target, _ = head.lines[0].decode("latin-1").split(" ", 2)
        faults = self._state.meet(Call(method, _BUCKET.sub("", unquote(target))))
        kinds = {fault.kind for fault in faults}
        await asyncio.sleep(sum(fault.seconds for fault in faults if fault.kind == "delay"))
        if "drop" in kinds:
            return False
        if "refuse" in kinds:
            answer = b"HTTP/1.1 503 Slow Down\r\nContent-Length: %d\r\n\r\n" % len(_SLOW_DOWN)
            writer.write(answer if method == "HEAD" else answer + _SLOW_DOWN)
            return True
        if "forget" in kinds:
            head = _Head([line for line in head.lines if not line.lower().startswith(_CONDITION)])
        if "late" in kinds:
            await self._begin(head, body)
            return False
        request = head.bare() + b"\r\nConnection: close\r\n\r\n" + body
        if "repeat" in kinds:
            await self._forward(request)
        answered, content = await self._forward(request)
        if "lose" in kinds:
            return False
        for fault in faults:
            if fault.kind == "truncate":
                writer.write(answered.bare() + b"\r\n\r\n" + content[: int(len(content) * fault.share)])
                await writer.drain()
                writer.write_eof()
                return False
        writer.write(answered.bare() + b"\r\n\r\n" + content)
        await writer.drain()
        framed = answered.value(b"content-length:") or answered.value(b"transfer-encoding:")
        return bool(framed) or method == "HEAD"

    async def _begin(self, head: _Head, body: bytes) -> None:
        """Send the head of a late request, and wait until the server asks for its body; a refusal ends it."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._server_port)
        writer.write(head.bare() + b"\r\nConnection: close\r\nExpect: 100-continue\r\n\r\n")
        if (await _read_head(reader)).status == 100:
            self._late.append((reader, writer, body))
        else:
            writer.close()

    async def _finish(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes) -> int:
        try:
            writer.write(body)
            while (status := (await _read_head(reader)).status) == 100:  # a server may ask for the body twice
                pass
            return status
        finally:
            writer.close()

    async def _forward(self, request: bytes) -> tuple[_Head, bytes]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._server_port)
        try:
            writer.write(request)
            answered = await _read_head(reader)
            return answered, await reader.read()
        finally:
            writer.close()


class _Head(NamedTuple):
    """The first line and the headers of a request or an answer."""

    lines: list[bytes]

    @property
    def status(self) -> int:
        return int(self.lines[0].split(b" ")[1])

    def value(self, header: bytes) -> bytes:
        found = [line for line in self.lines[1:] if line.lower().startswith(header)]
        return found[0].partition(b":")[2].strip() if found else b""

    def bare(self) -> bytes:
        return b"\r\n".join(line for line in self.lines if not line.lower().startswith(_HOP_BY_HOP))


async def _read_head(reader: asyncio.StreamReader) -> _Head:
    return _Head((await reader.readuntil(b"\r\n\r\n"))[:-4].split(b"\r\n"))


async def _read_body(reader: asyncio.StreamReader, head: _Head) -> bytes:
    if head.value(b"transfer-encoding:").lower() != b"chunked":
        return await reader.readexactly(int(head.value(b"content-length:") or 0))
    parts = []
    while True:
        line = await reader.readline()
        parts += [line, await reader.readexactly(int(line.partition(b";")[0], 16) + 2)]
        if len(parts[-1]) == 2:
            return b"".join(parts)
