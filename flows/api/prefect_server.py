"""Prefect's own server as a child of this process, on loopback: the single-machine replacement for a shared server.

It keeps its data in Prefect's home folder, so the records of earlier runs remain. It ends with this process,
even when the process is killed. Every request needs the user's auth string: other users of the machine reach the port.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections import deque
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

from penstock.flows.api.migrated_database import copy_database, has_own_database, keep_database
from penstock.flows.api.prefect_answers import CLIENT_AUTH
from penstock.flows.api.serve_prefect import STACKS_SIGNAL
from penstock.storage.errors import ConfigError, PenstockError
from penstock.storage.user_config import user_secret

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

logger = logging.getLogger(__name__)

_READY_SECONDS = 120.0
_ANSWER_SECONDS = 10.0
_END_SECONDS = 10.0
_STACKS_SECONDS = 1.0
_KEPT_LINES = 200
_POLL_SECONDS = 0.03
_SILENT_SECONDS = 2.0
_STARTS = 3
_OF_DATABASE = "sqlite3.OperationalError"
_EXCEPTION = re.compile(r"[\w.]*(Error|Exception)\b")
_SERVER_AUTH = "PREFECT_SERVER_API_AUTH_STRING"
_ONCE = (
    "PREFECT_SERVER_DATABASE_MIGRATE_ON_START",
    "PREFECT_SERVER_REGISTER_BLOCKS_ON_START",
    "PREFECT_SERVER_MEMOIZE_BLOCK_AUTO_REGISTRATION",
)
"""Settings that migrate a database and record Prefect's block types in it, or look whether that is necessary."""


class PrefectServer:
    """Context manager around the server. Create it in a thread that outlasts it: the child dies with that thread.

    Its auth string is `PREFECT_SERVER_API_AUTH_STRING`, otherwise this user's own, which a file keeps.

    Args:
        port: on loopback; 0 chooses a free one.

    Attributes:
        home: Prefect's home folder, which has the server's database.

    Raises:
        ConfigError: the auth string can't be kept in the user's configuration folder.
        PenstockError: the port can't be had.
    """

    def __init__(self, port: int = 0) -> None:
        self.auth_string, self._kept_in = _auth_string()
        self._turn = ExitStack()
        self._turn.enter_context(_turn_to_start())
        try:
            listener = _bound(port)
        except PenstockError:
            self._turn.close()
            raise
        self._port = int(listener.getsockname()[1])
        environment = {
            **os.environ,
            "DO_NOT_TRACK": "1",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_LOGGING_SERVER_LEVEL": "WARNING",
            # The address of the API for browsers.
            "PREFECT_UI_API_URL": self.api_url,
            _SERVER_AUTH: self.auth_string,
            # The server's own services are its clients.
            CLIENT_AUTH: self.auth_string,
        }
        environment.pop("PREFECT_API_URL", None)
        self._environment = environment
        self.home = _home()
        self._is_new = not has_own_database(self.home)
        if self._is_new and copy_database(self.home):
            # Another start with this home does what these leave out.
            self._environment = {**dict.fromkeys(_ONCE, "false"), **environment}
        self._starts_left = _STARTS
        self._start(listener)

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
        os.environ[CLIENT_AUTH] = self.auth_string

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._turn.close()
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
                # A server that was not started by Penstock may have had the database at the same moment.
                if _OF_DATABASE in said and self._starts_left:
                    self._start(_bound(self._port))
                    continue
                raise PenstockError(
                    f"Prefect's server exited at its start with status {self._process.returncode}: "
                    f"{start_failure(said)}. Try `prefect server start`, or set PREFECT_API_URL to a running server"
                )
            try:
                with urllib.request.urlopen(f"{self.api_url}/health", timeout=2.0):  # noqa: S310  (loopback)
                    if self._is_new:
                        keep_database(self.home)
                    self._turn.close()
                    return
            except OSError:
                time.sleep(_POLL_SECONDS)
        raise PenstockError(
            f"Prefect's server did not answer at {self.api_url} within {_READY_SECONDS:g} s; set PREFECT_API_URL to a "
            f"running server"
        )

    def wait(self) -> None:
        """Wait until the server ends."""
        self._process.wait()

    def answers(self) -> bool:
        """Return whether the server answers within ten seconds."""
        try:
            with urllib.request.urlopen(f"{self.api_url}/health", timeout=_ANSWER_SECONDS):  # noqa: S310  (loopback)
                return True
        except OSError:
            return False

    @property
    def exit_status(self) -> int | None:
        """Exit status of the server, negative for a signal; None while it runs."""
        return self._process.poll()

    def restart(self) -> str:
        """Kill the server, unless it has ended, and start it on the same port; return what it said last.

        One that is killed says first what its threads were doing. `wait_ready` is not necessary afterwards.

        Raises:
            PenstockError: something else has the port.
        """
        if self._process.poll() is None:
            self._process.send_signal(STACKS_SIGNAL)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_STACKS_SECONDS)
            self._process.kill()
            self._process.wait()
        self._reader.join(_END_SECONDS)
        said = b"".join(self._said).decode(errors="replace").strip()
        listener = _bound(self._port)
        listener.listen()  # Who asks meanwhile waits, where a refusal would be taken for the end of the server.
        self._start(listener)
        return said

    def _start(self, listener: socket.socket) -> None:
        """Start the server, which listens on a socket that is bound; this process keeps no copy of it."""
        self._starts_left -= 1
        # -P: no module of the working directory is imported.
        program = [sys.executable, "-P", "-m", "penstock.flows.api.serve_prefect", str(os.getpid())]
        # A copy here would take connections for a server that has ended.
        with listener:
            self._process = subprocess.Popen(
                [*program, str(listener.fileno())],
                pass_fds=[listener.fileno()],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                # Ctrl-C does not reach it. It stays in the session, as where Linux shares out time by session, a server
                # with one of its own would take half of it.
                process_group=0,
            )
        # Read continuously: a server with a full stderr pipe blocks.
        self._said: deque[bytes] = deque(maxlen=_KEPT_LINES)
        self._reader = threading.Thread(target=self._read_errors, name="prefect-errors", daemon=True)
        self._reader.start()

    def _read_errors(self) -> None:
        if self._process.stderr is not None:
            with self._process.stderr as lines:
                self._said.extend(lines)


def start_failure(said: str) -> str:
    """Return the reason in what a server said before it exited: its last exception, otherwise its last line."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    reasons = [line for line in lines if _EXCEPTION.match(line)]
    return (reasons or lines or ["no output"])[-1]


@contextmanager
def _turn_to_start() -> Iterator[None]:
    """Wait until no other server of Penstock's starts on Prefect's home folder: two would create one database."""
    home = _home()
    began, said = time.monotonic(), False
    with ExitStack() as stack:
        _require_home(home)
        try:
            path = home / ".penstock-start.lock"
            try:
                lock = stack.enter_context(path.open("a"))
            except PermissionError:
                lock = stack.enter_context(path.open())  # another user's, in a folder that several share
            while time.monotonic() < began + _READY_SECONDS:
                with suppress(BlockingIOError):
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                if not said and time.monotonic() > began + _SILENT_SECONDS:
                    said = True
                    logger.warning("another command starts Prefect's server on %s; waiting for it", home)
                time.sleep(_POLL_SECONDS)
        except OSError:
            pass  # No lock is to be had here: two servers that start at once are rare.
        yield


def require_folders() -> None:
    """Raise ConfigError if a server could not use Prefect's folder, or this user's configuration folder."""
    _auth_string()
    _require_home(_home())


def _require_home(home: Path) -> None:
    """Make Prefect's home folder unless it is there; ConfigError if it can't be written."""
    try:
        home.mkdir(parents=True, exist_ok=True)
        if not os.access(home, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise ConfigError(
            f"Prefect's folder '{home}' can't be used ({error}); set PREFECT_HOME to a folder that this user can write"
        ) from error


def _home() -> Path:
    """Return Prefect's home folder."""
    return Path(os.environ.get("PREFECT_HOME") or Path.home() / ".prefect").expanduser()


def _auth_string() -> tuple[str, str]:
    """Return the auth string for a server, and the place that a person finds it in."""
    if given := os.environ.get(_SERVER_AUTH):
        return given, _SERVER_AUTH
    secret, path = user_secret("prefect-auth")
    return secret, str(path)


def _bound(port: int) -> socket.socket:
    """Return a socket that has a port of loopback, 0 for a free one, from now on.

    A port that is only looked up may be another process's by the time at which the server has imported what it needs.
    """
    listener = socket.socket()
    try:
        # Connections of a server that has ended may still wait for their end, which blocks the port if theirs lacks it.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
    except OSError as error:
        listener.close()
        raise PenstockError(
            f"port {port} of 127.0.0.1 can't be had for Prefect's server: {error}; choose another port, or end what "
            f"listens there"
        ) from None
    return listener
