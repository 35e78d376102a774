"""Start commands with everything imported: forked from one process per test session.

A cold start of `penstock` takes four CPU seconds or more for its imports, a warm one none. It is a real process, with
its own pid, session, process group, environment, folder and standard files; signals, child processes and exit status
are those of the start script.

A warm start does not test the following; tests of them ask for `cold=True`:

- the start script, and the order in which a command imports modules;
- how an interpreter frees its modules: a process ends after its exit handlers;
- an embedded Prefect server, without `PREFECT_API_URL`: such commands are always started cold;
- settings that are read at import. A command whose environment differs from the first one's in anything but
  `READ_LATE` is started cold;
- that bytes do not depend on the hashes of strings: all forked commands share their seed. Dask workers have other
  seeds than commands, and runs that were started cold are compared with warm ones.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import IO

READ_LATE = (
    "AWS_",
    "PENSTOCK_",
    "PYTEST_",
    "PYTHONPATH",
    "PREFECT_API_URL",
    "PREFECT_HOME",
    "DO_NOT_TRACK",
    "COLUMNS",
)
PENSTOCK = Path(sys.executable).with_name("penstock")
PROGRAM = Path(__file__).with_name("warm_process.py")


class Started(Protocol):
    """The interface of a process, as `subprocess.Popen` has it."""

    pid: int

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int) -> None: ...


class Forked:
    """A process whose exit status its parent reports: minus the signal's number if a signal ended it."""

    def __init__(self, status: int) -> None:
        self._pipe = open(status, "rb", buffering=0)  # noqa: SIM115  (closed at the process's end)
        self._status: int | None = None
        self.pid = self._read()

    def _read(self) -> int:
        line = self._pipe.readline()
        if not line:
            self._pipe.close()
            raise RuntimeError("the process that commands are forked from has ended")
        return int(line)

    def poll(self) -> int | None:
        """Return the exit status, or None while the process runs."""
        if self._status is None and select.select([self._pipe], [], [], 0)[0]:
            self.wait()
        return self._status

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit status."""
        if self._status is None:
            if not select.select([self._pipe], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("penstock", timeout or 0.0)
            self._status = self._read()
            self._pipe.close()
        return self._status

    def send_signal(self, sig: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, sig)


class WarmProcess:
    """The process that commands are forked from."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the process)
        self._control, inherited = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with inherited:
            self._process = subprocess.Popen(
                [sys.executable, str(PROGRAM), str(inherited.fileno())],
                env={**environment, "DO_NOT_TRACK": "1", "PREFECT_SERVER_ANALYTICS_ENABLED": "false"},
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=[inherited.fileno()],
                start_new_session=True,
            )

    def fits(self, environment: Mapping[str, str]) -> bool:
        """Return whether a command with this environment behaves as if it were started cold."""
        differing = {name for name, _ in environment.items() ^ self._environment.items()}
        return all(name.startswith(READ_LATE) for name in differing)

    def start(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        cwd: Path | None,
        out: IO[bytes],
        err: IO[bytes],
    ) -> Forked:
        """Start `penstock` in a new session, with nothing on its standard input."""
        order = {"arguments": list(arguments), "environment": dict(environment), "cwd": str(cwd) if cwd else None}
        status, report = os.pipe()
        try:
            descriptors = [out.fileno(), err.fileno(), report]
            socket.send_fds(self._control, [json.dumps(order).encode()], descriptors)
        finally:
            os.close(report)
        try:
            return Forked(status)
        except RuntimeError as error:
            self._log.seek(0)
            raise RuntimeError(f"{error}:\n{self._log.read().decode()}") from None

    def close(self) -> None:
        self._control.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
        self._log.close()


_shared: list[WarmProcess] = []


def warm_process(environment: Mapping[str, str]) -> WarmProcess | None:
    """Return the session's process, which has the first command's environment; None if this command does not fit."""
    if "PREFECT_API_URL" not in environment:
        return None
    if not _shared:
        _shared.append(WarmProcess(environment))
    return _shared[0] if _shared[0].fits(environment) else None


def close_shared() -> None:
    while _shared:
        _shared.pop().close()
