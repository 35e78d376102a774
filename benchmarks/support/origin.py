"""Serves an origin with a known cost: a fixed time per request, and one pipe for all bodies in both directions.

It implements the part of S3 for reading and writing whole objects. Every object has the same content. Written bodies
are counted and dropped, so 512 bodies of 16 MB use the memory of one. Bodies pass through the pipe in the order of
their requests, a few at a time. For equal sizes this gives the smallest mean latency that the bandwidth allows:
with n at once, `request_seconds + (n + 1) / 2 * body_bytes / bytes_per_second`.

The server has no users and checks no signatures, so it listens on loopback only. `Origin` starts and ends it.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

AT_ONCE = 4
"""Concurrent bodies; with several, one slow client does not leave the pipe idle."""

_PIECE_BYTES = 1 << 18


class Origin:
    """A context manager for the server, in its own process, and the environment variables of its clients."""

    def __init__(self, content: bytes, request_seconds: float, bytes_per_second: float) -> None:
        self._settings = (content, request_seconds, bytes_per_second)

    def __enter__(self) -> Self:
        spawn = multiprocessing.get_context("spawn")
        self._channel, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_serve, args=(theirs, *self._settings), daemon=True)
        self._process.start()
        self.environment = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._channel.recv()}",
            "AWS_ACCESS_KEY_ID": "nobody",
            "AWS_SECRET_ACCESS_KEY": "nothing",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.join()

    def requests(self) -> Counter[str]:
        """Return the requests per object since the last call: `GET /bucket/name`."""
        self._channel.send("requests")
        counted: Counter[str] = self._channel.recv()
        return counted


class _Pipe:
    def __init__(self, bytes_per_second: float) -> None:
        self._bytes_per_second = bytes_per_second
        self._free_at = 0.0
        self._under_way = 0
        self._order = threading.Lock()
        self._queue: list[threading.Event] = []

    def carry(self, nbytes: int, move: Callable[[], None]) -> None:
        """Move a body in its turn, at most at the given bandwidth."""
        turn = threading.Event()
        with self._order:
            if self._under_way < AT_ONCE:
                self._under_way += 1
                turn.set()
            else:
                self._queue.append(turn)
        turn.wait()
        try:
            with self._order:
                starts = max(time.monotonic(), self._free_at)
                self._free_at = ends = starts + nbytes / self._bytes_per_second
            _sleep_until(starts)
            move()
            _sleep_until(ends)
        finally:
            with self._order:
                if self._queue:
                    self._queue.pop(0).set()
                else:
                    self._under_way -= 1


def _sleep_until(moment: float) -> None:
    remaining = moment - time.monotonic()
    if remaining > 0:
        time.sleep(remaining)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, content: bytes, request_seconds: float, bytes_per_second: float) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.content = content
        self.request_seconds = request_seconds
        self.pipe = _Pipe(bytes_per_second)
        self.counting = threading.Lock()
        self.counted: Counter[str] = Counter()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnected."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def do_GET(self) -> None:
        self._begin()
        content = self.server.content
        # The last byte leaves when the pipe has carried the body; the client then has all of it.
        self.server.pipe.carry(len(content), lambda: self._answer(content))

    def do_HEAD(self) -> None:
        self._begin()
        self._answer(b"", len(self.server.content))

    def do_PUT(self) -> None:
        self._begin()
        nbytes = int(self.headers["Content-Length"])
        self.server.pipe.carry(nbytes, lambda: self._drop(nbytes))
        self._answer(b"")

    def handle_expect_100(self) -> bool:
        """Defer the answer: `_drop` requests the body when the pipe is free."""
        return True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (the base class's name)
        """Print nothing; requests are counted."""

    def _begin(self) -> None:
        with self.server.counting:
            self.server.counted[f"{self.command} {self.path.partition('?')[0]}"] += 1
        time.sleep(self.server.request_seconds)

    def _drop(self, nbytes: int) -> None:
        if self.headers.get("Expect", "").lower() == "100-continue":
            self.connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        piece = memoryview(bytearray(_PIECE_BYTES))
        while nbytes:
            read = self.rfile.readinto(piece[: min(nbytes, _PIECE_BYTES)])  # type: ignore[attr-defined]
            if not read:
                raise ConnectionError("the client left")
            nbytes -= read

    def _answer(self, content: bytes, nbytes: int | None = None) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(content) if nbytes is None else nbytes))
        self.send_header("ETag", '"0"')
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.end_headers()
        self.connection.sendall(content)


def _serve(channel: Connection, content: bytes, request_seconds: float, bytes_per_second: float) -> None:
    server = _Server(content, request_seconds, bytes_per_second)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    channel.send(server.server_port)
    while channel.recv() == "requests":
        with server.counting:
            counted, server.counted = server.counted, Counter()
        channel.send(counted)
