"""A Prefect server of the test session, whose database is a copy of one that was migrated once a checkout."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING

from filelock import FileLock

from ..processes.commands import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_DATABASE = "prefect.db"


@contextmanager
def prefect_server(folder: Path, databases: Path) -> Iterator[str]:
    """Start a server whose home is in `folder`, and give the address of its API.

    Args:
        folder: for the server's home and log; new.
        databases: where migrated databases are kept between sessions, one a version of Prefect.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    (home := folder / "home").mkdir()
    shutil.copyfile(migrated_database(databases), home / _DATABASE)
    environment = _environment(home) | {"PREFECT_UI_API_URL": f"http://127.0.0.1:{port}/api"}
    # `prefect server start` would do as well, but stands still for a minute at times: see `serve_prefect`.
    command = [sys.executable, "-m", "penstock.flows.api.serve_prefect", str(os.getpid()), str(listener.fileno())]
    with listener, (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=[listener.fileno()],
        )
    try:
        url = f"http://127.0.0.1:{port}/api"

        def healthy() -> bool:
            assert process.poll() is None, (folder / "server.log").read_text()
            try:
                with urllib.request.urlopen(f"{url}/health", timeout=2):
                    return True
            except OSError:
                return False

        wait_until(healthy, "Prefect's server", poll_seconds=0.1)
        yield url
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(150)


def migrated_database(folder: Path) -> Path:
    """Return a database that Prefect's migrations have made; they take nine CPU seconds, so the file is kept."""
    folder.mkdir(parents=True, exist_ok=True)
    database = folder / f"prefect-{version('prefect')}.db"
    with FileLock(f"{database}.lock"):
        if not database.exists():
            home = folder / "home"
            shutil.rmtree(home, ignore_errors=True)
            home.mkdir()
            done = subprocess.run(
                [sys.executable, "-m", "prefect", "server", "database", "upgrade", "--yes"],
                env=_environment(home),
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stdout + done.stderr
            assert sorted(path.name for path in home.glob(f"{_DATABASE}*")) == [_DATABASE], "the log was not merged"
            (home / _DATABASE).rename(database)
    return database


def _environment(home: Path) -> dict[str, str]:
    """Return the test's environment with Prefect's own settings replaced by a home."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    return environment | {
        "PREFECT_HOME": str(home),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
    }
