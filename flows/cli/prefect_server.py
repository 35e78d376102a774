"""Prefect's own server as a child of this process, on loopback: the single-machine replacement for a shared server.

It keeps its data in Prefect's home folder, so the records of earlier runs remain. It ends with this process,
even when the process is killed. Every request needs the user's auth string: other users of the machine reach the port.
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
from penstock.storage.user_config import user_secret

if TYPE_CHECKING:
    from types import TracebackType

_READY_SECONDS = 120.0
_ANSWER_SECONDS = 10.0
_END_SECONDS = 10.0
_PR_SET_PDEATHSIG = 1
_KEPT_LINES = 50
_SERVER_AUTH = "PREFECT_SERVER_API_AUTH_STRING"
_CLIENT_AUTH = "PREFECT_API_AUTH_STRING"
_REFUSED = {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}


class PrefectServer:
    """Context manager around the server. Create it in the main thread: the child dies with its parent thread.

    Its auth string is `PREFECT_SERVER_API_AUTH_STRING`, otherwise this user's own, which a file keeps.

    Args:
        port: on loopback; 0 chooses a free one.

    Raises:
        ConfigError: the auth string can't be kept in the user's configuration folder.
    """

    def __init__(self, port: int = 0) -> None:
        self._port = port or _free_port()
        self.auth_string, self._kept_in = _auth_string()
        environment = {
            **os.environ,
            "DO_NOT_TRACK": "1",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_LOGGING_SERVER_LEVEL": "WARNING",
            # The address of the API for browsers.
            "PREFECT_UI_API_URL": self.api_url,
            _SERVER_AUTH: self.auth_string,
            # The server's own services are its clients.
            _CLIENT_AUTH: self.auth_string,
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

    @property
    def sign_in(self) -> str:
        """Address for a browser, and how to sign in there."""
        return f"{self.ui_url}  (its auth string is in {self._kept_in})"

    def direct_here(self) -> None:
        """Make this process's clients of Prefect, and those of processes that it starts, use this server."""
        os.environ["PREFECT_API_URL"] = self.api_url
        os.environ[_CLIENT_AUTH] = self.auth_string

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
    """Check that a server answers at a `PREFECT_API_URL` and takes `PREFECT_API_AUTH_STRING`, if that is set.

    Raises:
        PenstockError: no server answers, it wants another auth string, or the address is invalid.
    """
    try:
        for path in ("health", "admin/version"):
            with urllib.request.urlopen(_request(api_url, path), timeout=_ANSWER_SECONDS):  # noqa: S310  (the user's)
                pass
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in _REFUSED and "PREFECT_API_KEY" not in os.environ:
            raise PenstockError(
                f"PREFECT_API_URL = {without_password(api_url)}: the server there refused this user ({error.code}); "
                f"set {_CLIENT_AUTH} to its auth string. That of a server which `penstock` started is in the file "
                f"that it named at its start"
            ) from None
        # Prefect's client judges any other answer itself.
        if error.code != HTTPStatus.NOT_FOUND:
            return
        found = "the server there has no Prefect API (404)"
    except urllib.error.URLError as error:
        if isinstance(error.reason, ssl.SSLError):
            return  # Prefect has settings of its own for certificates.
        found = str(error.reason)
    except (OSError, ValueError) as error:
        found = str(error)
    else:
        return
    raise PenstockError(
        f"PREFECT_API_URL = {without_password(api_url)}: no Prefect server answers: {found}. Start one (`prefect "
        f"server start`), correct the address (it ends in /api), or unset it: `penstock train` then starts its own"
    )


def _request(api_url: str, path: str) -> urllib.request.Request:
    """Return a request to the API with the header that Prefect's client sends.

    A name and password in the address become a header as well, unless there is an auth string.
    """
    address = urllib.parse.urlsplit(f"{api_url.rstrip('/')}/{path}")
    request = urllib.request.Request(address._replace(netloc=address.netloc.rpartition("@")[2]).geturl())  # noqa: S310
    credentials = os.environ.get(_CLIENT_AUTH)
    if credentials is None and address.username is not None:
        credentials = ":".join(urllib.parse.unquote(part or "") for part in (address.username, address.password))
    if credentials is not None:
        request.add_header("Authorization", f"Basic {base64.b64encode(credentials.encode()).decode()}")
    return request


def _auth_string() -> tuple[str, str]:
    """Return the auth string for a server, and the place that a person finds it in."""
    if given := os.environ.get(_SERVER_AUTH):
        return given, _SERVER_AUTH
    secret, path = user_secret("prefect-auth")
    return secret, str(path)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
