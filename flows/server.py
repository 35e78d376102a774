"""Prefect's own server as a child of this process, on loopback: what a laptop has where a team has a server.

It keeps its data in Prefect's home folder, so what earlier runs reported is still there. It ends with this process,
even if that is killed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from http import HTTPStatus
from typing import TYPE_CHECKING, Self

from storage.errors import PenstockError

if TYPE_CHECKING:
    from types import TracebackType

_READY_SECONDS = 120.0
_ANSWER_SECONDS = 10.0
_END_SECONDS = 10.0
_PR_SET_PDEATHSIG = 1
_KEPT_LINES = 50


class PrefectServer:
    """A context manager around the server. Make it in the main thread: the child dies with the thread that made it."""

    def __init__(self, port: int = 0) -> None:
        self._port = port or _free_port()
        environment = {
            **os.environ,
            "DO_NOT_TRACK": "1",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_LOGGING_SERVER_LEVEL": "WARNING",
            # The address under which a browser finds the API.
            "PREFECT_UI_API_URL": self.api_url,
        }
        environment.pop("PREFECT_API_URL", None)
        command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(self._port)]
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=_die_with_parent,  # noqa: PLW1509  (one system call, and no other thread runs yet)
        )
        # Read on and on: a server that can't write down its errors stands still.
        self._said: deque[bytes] = deque(maxlen=_KEPT_LINES)
        self._reader = threading.Thread(target=self._read_errors, name="prefect-errors", daemon=True)
        self._reader.start()

    @property
    def api_url(self) -> str:
        """For `PREFECT_API_URL`."""
        return f"http://127.0.0.1:{self._port}/api"

    @property
    def ui_url(self) -> str:
        """For a browser."""
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(_END_SECONDS)

    def wait_ready(self) -> None:
        """Wait until it answers.

        Raises:
            PenstockError: it ended, or did not answer in time.
        """
        deadline = time.monotonic() + _READY_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                self._reader.join(_END_SECONDS)
                said = b"".join(self._said).decode(errors="replace").strip()
                raise PenstockError(
                    f"Prefect's server ended at its start with {self._process.returncode}: "
                    f"{said.splitlines()[-1] if said else 'it said nothing'}. Try `prefect server start`, or set "
                    f"PREFECT_API_URL to a server that runs"
                )
            try:
                with urllib.request.urlopen(f"{self.api_url}/health", timeout=2.0):  # noqa: S310  (loopback)
                    return
            except OSError:
                time.sleep(0.1)
        raise PenstockError(
            f"Prefect's server did not answer at {self.api_url} within {_READY_SECONDS:g} s; set PREFECT_API_URL to a "
            f"server that runs"
        )

    def wait(self) -> None:
        """Until it ends."""
        self._process.wait()

    def _read_errors(self) -> None:
        if self._process.stderr is not None:
            with self._process.stderr as lines:
                self._said.extend(lines)


def require_prefect(api_url: str) -> None:
    """See that something answers at a `PREFECT_API_URL`; whatever it answers, Prefect will say what it thinks of it.

    Raises:
        PenstockError: nothing answers, or it is no address.
    """
    try:
        with urllib.request.urlopen(f"{api_url.rstrip('/')}/health", timeout=_ANSWER_SECONDS):  # noqa: S310  (the user's)
            return
    except urllib.error.HTTPError as error:
        error.close()
        if error.code != HTTPStatus.NOT_FOUND:
            return
        found = "what answers there is no Prefect API (404)"
    except urllib.error.URLError as error:
        if isinstance(error.reason, ssl.SSLError):
            return  # Prefect has settings of its own for certificates.
        found = str(error.reason)
    except (OSError, ValueError) as error:
        found = str(error)
    raise PenstockError(
        f"PREFECT_API_URL = {api_url}: no Prefect server there: {found}. Start one (`prefect server start`), correct "
        f"the address (it ends in /api), or unset it: `penstock train` then starts a server of its own"
    )


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
