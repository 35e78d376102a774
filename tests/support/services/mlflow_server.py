"""Run a real MLflow server, in an environment of its own: it can't be installed next to the versions of the lock."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
import urllib.request
from typing import TYPE_CHECKING, Self

from .own_environment import own_environment

if TYPE_CHECKING:
    from pathlib import Path

START_SECONDS = 180.0
INSTALL_SECONDS = 400.0


class MlflowServer:
    """A server on loopback with its data below `folder`; a context manager that starts it."""

    def __init__(self, folder: Path) -> None:
        """Raises NotInstalledError if it can't be installed."""
        self._command = own_environment("mlflow", INSTALL_SECONDS) / "mlflow"
        self._folder = folder
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the server, or restart it with its data, and wait until it answers."""
        log = self._folder / "server.log"
        data = [
            *("--backend-store-uri", f"sqlite:///{self._folder}/mlflow.db"),
            *("--artifacts-destination", f"{self._folder}/artifacts", "--serve-artifacts"),
        ]
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [
                    str(self._command),
                    "server",
                    "--host",
                    "127.0.0.1",
                    "--port",
                    str(self.port),
                    "--workers",
                    "1",
                    *data,
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"},
                start_new_session=True,
            )
        give_up_at = time.monotonic() + START_SECONDS
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/health", timeout=10):
                return
            assert self._process.poll() is None, f"MLflow ended: {log.read_text()}"
            assert time.monotonic() < give_up_at, f"MLflow did not start: {log.read_text()}"
            time.sleep(0.1)

    def stop(self) -> None:
        """Kill the server and its workers."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(150)
            self._process = None
