"""`penstock serve` that was stopped with active flow runs: the next one's flow runs start."""

from __future__ import annotations

import signal
import socket
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Self

import httpx
import pytest

from ...support.processes.commands import Command, wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

FLOW = """
import time
from prefect import flow

@flow
def sleeping(seconds: int = 600):
    time.sleep(seconds)
"""
DEPLOYMENTS = """
deployments:
  - name: asleep
    entrypoint: sleeping.py:sleeping
    concurrency_limit: 1
"""


class Serving:
    """A served deployment, and requests to its server. A context manager, whose end ends its processes."""

    def __init__(self, folder: Path, number: int) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        environment = {
            "PREFECT_HOME": str(folder / "home"),
            "PREFECT_SERVER_API_AUTH_STRING": "me:secret",
            "PENSTOCK_CONFIG_DIR": str(folder / "config"),
        }
        logs = folder / f"serve-{number}"
        arguments = ["serve", "--file", "deployments.yaml", "--port", str(port)]
        self.process = Command(arguments, environment, logs, folder, cold=True)
        self._api = f"http://127.0.0.1:{port}/api/"
        wait_until(lambda: "until Ctrl-C" in self.process.output, lambda: self.process.output, poll_seconds=0.2)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill_group()

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Return an answer of Prefect's server; the request is repeated while its database is busy."""
        method = "GET" if body is None else "POST"

        def answered() -> list[Any] | None:
            answer = httpx.request(method, f"{self._api}{path}", json=body, auth=("me", "secret"), timeout=150.0)
            if answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE:
                return None
            return [answer.raise_for_status().json()]

        return wait_until(answered, f"an answer to {path}", poll_seconds=0.5)[0]

    def start(self, **parameters: Any) -> str:
        """Start a flow run of the only deployment, and return its id."""
        (deployment,) = self.ask("deployments/filter", {})
        created = self.ask(f"deployments/{deployment['id']}/create_flow_run", {"parameters": parameters})
        return str(created["id"])

    def wait(self, flow_run: str, state: str) -> None:
        """Wait for the type of a flow run's state."""

        def is_there() -> bool:
            return bool(self.ask(f"flow_runs/{flow_run}")["state_type"] == state)

        wait_until(is_there, lambda: f"{state}: {self.process.output}", poll_seconds=0.5)


@pytest.mark.parametrize("ended_by", [signal.SIGTERM, signal.SIGKILL])
def test_flow_runs_that_a_stopped_server_left_take_no_slot(tmp_path: Path, ended_by: signal.Signals):
    """They have crashed, as triggers expect; the only slot of their deployment is the next flow run's."""
    (tmp_path / "sleeping.py").write_text(FLOW)
    (tmp_path / "deployments.yaml").write_text(DEPLOYMENTS)
    with Serving(tmp_path, 1) as first:  # its end ends the flow run too, which SIGKILL of its parent leaves
        left = first.start(seconds=600)
        first.wait(left, "RUNNING")
        first.process.send(ended_by)
        first.process.wait()
        assert "Traceback" not in first.process.output
    with Serving(tmp_path, 2) as again:
        again.wait(left, "CRASHED")
        again.wait(again.start(seconds=0), "COMPLETED")
        again.process.send(signal.SIGTERM)
        assert again.process.wait() == 0
        assert "Traceback" not in again.process.output


def test_sigterm_ends_what_a_shell_started_in_the_background(tmp_path: Path):
    """A shell without job control lets such a process ignore SIGINT."""
    (tmp_path / "sleeping.py").write_text(FLOW)
    (tmp_path / "deployments.yaml").write_text(DEPLOYMENTS)
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        serving = Serving(tmp_path, 1)
    finally:
        signal.signal(signal.SIGINT, handler)
    with serving:
        serving.wait(serving.start(seconds=0), "COMPLETED")  # by then Prefect's runner has its handlers
        serving.process.send(signal.SIGTERM)
        assert serving.process.wait() == 0
        assert "Traceback" not in serving.process.output
