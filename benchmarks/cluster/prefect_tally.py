"""A proxy between a run and Prefect's server that counts requests, and events over WebSockets."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from typing import Self

_REQUEST = re.compile(rb"(GET|POST|PUT|PATCH|DELETE) (/\S*) HTTP/1\.1\r\n")
_UPGRADE = re.compile(rb"upgrade: websocket", re.IGNORECASE)
_PIECE_BYTES = 1 << 16
_DATA_FRAMES = {1, 2}


class PrefectTally:
    """A context manager that listens on loopback and forwards everything to a port of this machine.

    Attributes:
        seen: Unix time and kind of every request and event: `POST /api/logs/`, `event`.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self.seen: list[tuple[float, str]] = []

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.api_url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/api"
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._port))
                threading.Thread(target=self._pass_on, args=(near, far, True), daemon=True).start()
                threading.Thread(target=self._pass_on, args=(far, near, False), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, asks: bool) -> None:
        frames: bytearray | None = None
        with contextlib.suppress(OSError):
            while piece := source.recv(_PIECE_BYTES):
                target.sendall(piece)
                if asks and frames is not None:
                    frames += piece
                    self._read_frames(frames)
                elif asks:
                    for method, path in _REQUEST.findall(piece):
                        self.seen.append((time.time(), f"{method.decode()} {path.decode().partition('?')[0]}"))
                    if _UPGRADE.search(piece):
                        frames = bytearray()
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _read_frames(self, frames: bytearray) -> None:
        """Remove complete frames of a client, which are masked, from the front."""
        while len(frames) >= 2:
            kind, nbytes, head = frames[0] & 0x0F, frames[1] & 0x7F, 6
            if nbytes >= 126:
                width = 2 if nbytes == 126 else 8
                nbytes, head = int.from_bytes(frames[2 : 2 + width], "big"), 6 + width
            if len(frames) < head + nbytes:
                return
            del frames[: head + nbytes]
            if kind in _DATA_FRAMES:
                self.seen.append((time.time(), "event"))
