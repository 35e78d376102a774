"""The README's first hour, typed as it stands: only ports and the home folder are the test's own."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ...support.processes.commands import PATIENCE_SECONDS, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

README = Path(__file__).resolve().parents[3] / "README.md"
HOUR = README.read_text(encoding="utf-8").partition("## A first hour\n")[2].partition("\n## ")[0]
# A line that ends with a backslash goes on in the next one.
LINES = re.sub(r"\\\n\s*", "", "\n".join(re.findall(r"^ {4}(.*(?:\\\n.*)*)$", HOUR, re.MULTILINE))).splitlines()
UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def line_with(text: str) -> str:
    """Return the README's one command that contains a text, without its remark."""
    found = [line for line in LINES if text in line]
    assert len(found) == 1, (text, found)
    return found[0].partition("  #")[0].strip()


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


class Terminals:
    """Terminals of one user, in a folder that holds what a checkout has: `deploy/`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "deploy").symlink_to(README.parent / "deploy")
        ports = dict(zip(("4200", "5000", "8786"), map(str, free_ports(3)), strict=True))
        self._port = re.compile("|".join(ports))
        self._ports = ports
        own = {"PREFECT_API_URL", "PREFECT_API_AUTH_STRING", "PENSTOCK_CONFIG_DIR", "XDG_CONFIG_HOME", "PREFECT_HOME"}
        self._environment = {name: value for name, value in os.environ.items() if name not in own}
        self._environment |= {
            "HOME": str(folder),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "DO_NOT_TRACK": "1",
        }
        self._exports: list[str] = []
        self._started: list[subprocess.Popen[bytes]] = []

    def export(self, text: str) -> None:
        """Type an `export` in every terminal that is used from now on."""
        self._exports.append(line_with(text))

    def type(self, command: str) -> str:
        """Run a command to its end, and return what it printed."""
        ended = subprocess.run(
            ["bash", "-ec", self._script(command)],
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=PATIENCE_SECONDS,
        )
        assert ended.returncode == 0, f"{command}\n{ended.stdout}"
        return ended.stdout

    def start(self, command: str, until: str) -> None:
        """Start a command that stays, and wait until it prints a text."""
        path = self.folder / f"terminal-{len(self._started)}"
        with path.open("wb") as out:
            started = subprocess.Popen(
                ["bash", "-ec", f"{self._script('')}\nexec {self._own(command)}"],
                cwd=self.folder,
                env=self._environment,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started.append(started)

        def said() -> bool:
            assert started.poll() is None, path.read_text()
            return until in path.read_text()

        wait_until(said, lambda: f"{until!r} of {command}: {path.read_text()}", poll_seconds=0.2)

    def show(self, *options: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.type(f"penstock show first --json {' '.join(options)}"))
        return found

    def wait_for_stages(self, count: int, *options: str) -> None:
        def there() -> bool:
            try:
                shown = self.show(*options)
            except AssertionError:  # there is no such run yet
                return False
            assert shown["finished"] is None, "the run was over before it could be cancelled"
            return len(shown["stages"]) >= count

        wait_until(there, f"{count} stages of the run", poll_seconds=0.5)

    def wait_undriven(self) -> None:
        wait_until(lambda: self.show()["driver"] is None, "the end of the flow run", poll_seconds=0.5)

    def close(self) -> None:
        for started in reversed(self._started):
            if started.poll() is None:
                started.send_signal(signal.SIGINT)
                try:
                    started.wait(300)
                except subprocess.TimeoutExpired:
                    os.killpg(started.pid, signal.SIGKILL)
                    started.wait()
        for path in sorted(self.folder.glob("terminal-*")):  # pytest shows it where the test has failed
            sys.stdout.write(f"--- {path.name}\n{path.read_text()}\n")

    def _script(self, command: str) -> str:
        return "\n".join(self._own(line) for line in (*self._exports, command))

    def _own(self, command: str) -> str:
        return self._port.sub(lambda found: self._ports[found[0]], command)


@pytest.fixture
def terminals(tmp_path: Path) -> Iterator[Terminals]:
    terminals = Terminals(tmp_path)
    yield terminals
    terminals.close()


def test_the_first_hour_works_as_it_is_written(terminals):
    """Serve, start, cancel, resume, replay, cancel again, copy to S3, resume there on a Dask cluster."""
    terminals.type(line_with("sed -e"))
    terminals.start(f"{line_with('penstock serve')} --port 4200", "serving")
    terminals.export("PREFECT_API_URL")
    terminals.export("PREFECT_API_AUTH_STRING")
    first = UUID.search(terminals.type(line_with("prefect deployment run train/train")))
    assert first is not None
    terminals.wait_for_stages(2)
    terminals.type(line_with("prefect flow-run cancel").replace("UUID", first[0]))
    terminals.wait_undriven()
    stopped = len(terminals.show()["stages"])
    assert "penstock resume first" in terminals.type(line_with("penstock show first"))

    second = UUID.search(terminals.type(line_with("prefect deployment run resume/resume")))
    assert second is not None
    terminals.wait_for_stages(stopped + 2)
    assert "stages" in terminals.type(line_with("penstock replay cloned"))
    terminals.type(f"prefect flow-run cancel {second[0]}")
    terminals.wait_undriven()
    stopped = len(terminals.show()["stages"])

    terminals.start(line_with("moto_server"), "Running on")
    terminals.export("AWS_ENDPOINT_URL")
    terminals.start(line_with("dask scheduler"), "Scheduler at")
    terminals.start(line_with('"actor=4"'), "Registered to")
    terminals.start(line_with('"learner=1"'), "Registered to")
    terminals.type(line_with("mkdir('penstock')"))
    terminals.type(line_with("penstock copy first"))
    terminals.start(line_with("penstock resume first --store"), f"resumes from stage {stopped}")
    terminals.wait_for_stages(stopped + 1, "--store", "s3://penstock/runs")
