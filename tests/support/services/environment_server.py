"""A server of environments in a process of its own, which tests kill and start again at the same address."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

from penstock.native.sockets import server

ROOT = Path(__file__).parents[3]


class EnvironmentProcess:
    """Serves an id, or what a command serves that prints its address as `socket/NAME at HOST:PORT`."""

    def __init__(self, env_id: str = "CartPole-v1", command: list[str] | None = None) -> None:
        self._command = command or [sys.executable, server.__file__, env_id, "--port"]
        self._process: subprocess.Popen[str] | None = None
        self.address = "127.0.0.1:0"
        self.start()

    def start(self) -> None:
        """Start the server, at the address of the one before if there was one."""
        port = self.address.rpartition(":")[2]
        self._process = subprocess.Popen(
            [*self._command, port],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},  # ids may name modules of the tests
        )
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        assert said.startswith("socket/"), said
        self.address = said.split()[2].rstrip(";")

    def kill(self) -> None:
        """End the server as a power cut does, with all of its connections."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)  # a server in C has a process for each connection
        self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
