"""Prefect's own server as a child of this process, on loopback: the single-machine replacement for a shared server.

It keeps its data in Prefect's home folder, so the records of earlier runs remain. It ends with this process,
even when the process is killed.
"""

from __future__ import annotations

import base64
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
import urllib.parse
import urllib.request
from collections import deque
from http import HTTPStatus
from typing import TYPE_CHECKING, Self

from penstock.storage.errors import PenstockError
from penstock.storage.stores.open import without_password

if TYPE_CHECKING:
    from types import TracebackType

_READY_SECONDS = 120.0
_ANSWER_SECONDS = 10.0
_END_SECONDS = 10.0
_PR_SET_PDEATHSIG = 1
_KEPT_LINES = 50


class PrefectServer:
    """Context manager around the server. Create it in the main thread: the child dies with its parent thread."""

    def __init__(self, port: int = 0) -> None:
        self._port = port or _free_port()
        environment = {
            **os.environ,
            "DO_NOT_TRACK": "1",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_LOGGING_SERVER_LEVEL": "WARNING",
            # The address of the API for browsers.
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
        # Read continuously: a server with a full stderr pipe blocks.
        self._said: deque[bytes] = deque(maxlen=_KEPT_LINES)
        self._reader = threading.Thread(target=self._read_errors, name="prefect-errors", daemon=True)
        self._reader.start()

    @property
    def api_url(self) -> str:
        """Address for `PREFECT_API_URL`."""
        return f"http://127.0.0.1:{self._port}/api"

    @property
    def ui_url(self) -> str:
        """Address for a browser."""
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
        """Wait until the server answers.

        Raises:
            PenstockError: the server ended, or did not answer in time.
        """
        deadline = time.monotonic() + _READY_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                self._reader.join(_END_SECONDS)
                said = b"".join(self._said).decode(errors="replace").strip()
                raise PenstockError(
                    f"Prefect's server exited at its start with status {self._process.returncode}: "
                    f"{said.splitlines()[-1] if said else 'no output'}. Try `prefect server start`, or set "
                    f"PREFECT_API_URL to a running server"
                )
            try:
                with urllib.request.urlopen(f"{self.api_url}/health", timeout=2.0):  # noqa: S310  (loopback)
                    return
            except OSError:
                time.sleep(0.1)
        raise PenstockError(
            f"Prefect's server did not answer at {self.api_url} within {_READY_SECONDS:g} s; set PREFECT_API_URL to a "
            f"running server"
        )

    def wait(self) -> None:
        """Wait until the server ends."""
        self._process.wait()

    def _read_errors(self) -> None:
        if self._process.stderr is not None:
            with self._process.stderr as lines:
                self._said.extend(lines)


def require_prefect(api_url: str) -> None:
    """Check that a server answers at a `PREFECT_API_URL`; Prefect judges the answer itself.

    Raises:
        PenstockError: no server answers, or the address is invalid.
    """
    try:
        with urllib.request.urlopen(_health_request(api_url), timeout=_ANSWER_SECONDS):  # noqa: S310  (the user's)
            return
    except urllib.error.HTTPError as error:
        error.close()
        if error.code != HTTPStatus.NOT_FOUND:
            return
        found = "the server there has no Prefect API (404)"
    except urllib.error.URLError as error:
        if isinstance(error.reason, ssl.SSLError):
            return  # Prefect has settings of its own for certificates.
        found = str(error.reason)
    except (OSError, ValueError) as error:
        found = str(error)
    raise PenstockError(
        f"PREFECT_API_URL = {without_password(api_url)}: no Prefect server answers: {found}. Start one (`prefect "
        f"server start`), correct the address (it ends in /api), or unset it: `penstock train` then starts its own"
    )


def _health_request(api_url: str) -> urllib.request.Request:
    """Return the request of a server's health; a name and password in the address become a header."""
    address = urllib.parse.urlsplit(f"{api_url.rstrip('/')}/health")
    request = urllib.request.Request(address._replace(netloc=address.netloc.rpartition("@")[2]).geturl())  # noqa: S310
    if address.username is not None:
        name, password = (urllib.parse.unquote(part or "") for part in (address.username, address.password))
        request.add_header("Authorization", f"Basic {base64.b64encode(f'{name}:{password}'.encode()).decode()}")
    return request


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
