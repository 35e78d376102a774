"""Run a real Prometheus that scrapes given targets, and ask it."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml

from ..processes.commands import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PROMETHEUS = shutil.which("prometheus")
needs_prometheus = pytest.mark.skipif(
    PROMETHEUS is None, reason="no prometheus on the PATH (apt-get install prometheus)"
)


class Prometheus:
    """Answers queries of PromQL."""

    def __init__(self, url: str) -> None:
        self._url = url

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series of an instant query; an expression that Prometheus refuses is an error."""
        return self._ask(f"query?{urlencode({'query': expression})}")["result"]

    def rules(self) -> list[dict[str, Any]]:
        """Return all rules with their health."""
        return [rule for group in self._ask("rules")["groups"] for rule in group["rules"]]

    def ready(self) -> bool:
        try:
            return bool(self._ask("status/buildinfo"))
        except (URLError, ConnectionError):
            return False

    def _ask(self, path: str) -> Any:
        with urlopen(f"{self._url}/api/v1/{path}", timeout=150) as answer:
            return json.load(answer)["data"]


@contextmanager
def prometheus_server(folder: Path, target: str, *rules: Path) -> Iterator[Prometheus]:
    """Start a Prometheus that scrapes a target every second, with files of rules."""
    folder.mkdir()
    scrape = {"job_name": "penstock", "static_configs": [{"targets": [target]}]}
    settings = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "scrape_configs": [scrape],
        "rule_files": [str(rule) for rule in rules],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        str(PROMETHEUS),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        server = Prometheus(f"http://127.0.0.1:{port}")
        wait_until(server.ready, (folder / "log").read_text, poll_seconds=0.1)
        yield server
    finally:
        process.terminate()
        process.wait(150)
