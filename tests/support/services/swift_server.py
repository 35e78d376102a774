"""Run OpenStack Swift with its S3 API: a real server that keeps its data when it is restarted.

It comes from PyPI into a separate environment, `.venv-swift`, on the first use. All of it runs in one process, which
this file is when Swift's own Python runs it: proxy, account, container and object server on loopback, one replica, no
background daemons. Swift reads its configuration from a fixed path, so that path is set before anything reads it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Self

HERE = Path(__file__).resolve()
USER, KEY = "test:tester", "testing"
START_SECONDS = 120.0
INSTALL_SECONDS = 200.0

_PROXY = """
[pipeline:main]
pipeline = catch_errors gatekeeper healthcheck listing_formats s3api tempauth slo dlo proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
conn_timeout = 10
node_timeout = 60
recoverable_node_timeout = 60
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:gatekeeper]
use = egg:swift#gatekeeper
[filter:healthcheck]
use = egg:swift#healthcheck
[filter:listing_formats]
use = egg:swift#listing_formats
[filter:s3api]
use = egg:swift#s3api
location = us-east-1
[filter:tempauth]
use = egg:swift#tempauth
user_test_tester = testing .admin
[filter:slo]
use = egg:swift#slo
[filter:dlo]
use = egg:swift#dlo
"""
# No daemon repeats an update of a listing that came too late, so none may.
_BACKEND = """
[app:main]
use = egg:swift#{role}
devices = {devices}
mount_check = false
disable_fallocate = true
fallocate_reserve = 0
conn_timeout = 10
node_timeout = 60
container_update_timeout = 60
"""


class NoSwiftError(Exception):
    """Raised if Swift cannot run here, with the reason."""


class SwiftServer:
    """A server with its data below `folder`; a context manager that starts it. `stop` is a kill -9."""

    def __init__(self, folder: Path) -> None:
        """Raises NoSwiftError if Swift can't be installed, or the disk keeps no extended attributes."""
        folder.mkdir(parents=True, exist_ok=True)
        _check_attributes(folder)
        self._python = _environment()
        self._folder = folder
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables that lead a process to the server, with no credentials of the user."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": USER,
            "AWS_SECRET_ACCESS_KEY": KEY,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": "/dev/null",
            "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        }

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the server, or restart it on the same port with its data, and wait until it answers."""
        log = self._folder / "server.log"
        with log.open("ab") as output:
            command = [str(self._python), str(HERE), str(self._folder), str(self.port)]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        give_up_at = time.monotonic() + START_SECONDS
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.endpoint}/healthcheck", timeout=10):
                return
            assert self._process.poll() is None, f"Swift ended: {log.read_text()}"
            assert time.monotonic() < give_up_at, f"Swift did not start: {log.read_text()}"
            time.sleep(0.05)

    def stop(self) -> None:
        """Kill the server, with all requests in progress."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(150)
            self._process = None


def _check_attributes(folder: Path) -> None:
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        try:
            os.setxattr(file.name, "user.swift", b"1")
        except OSError as error:
            raise NoSwiftError(f"Swift needs extended attributes, which '{folder}' lacks: {error}") from error


def _environment() -> Path:
    """Return a Python interpreter with Swift, after installing it if needed."""
    from .own_environment import NotInstalledError, own_environment  # not where that interpreter runs this file

    try:
        return own_environment("swift", INSTALL_SECONDS) / "python"
    except NotInstalledError as error:
        raise NoSwiftError(f"Swift could not be installed: {error}") from error


def _serve(folder: Path, port: int) -> None:
    import eventlet

    eventlet.monkey_patch()
    from swift.common import utils

    conf = folder / "conf"
    conf.mkdir(exist_ok=True)
    (conf / "swift.conf").write_text("[swift-hash]\nswift_hash_path_suffix = tests\n[storage-policy:0]\nname = one\n")
    utils.SWIFT_CONF_FILE = str(conf / "swift.conf")
    utils.validate_hash_conf()
    from eventlet import wsgi
    from swift.common import constraints, storage_policy
    from swift.common.http_protocol import SwiftHttpProtocol
    from swift.common.ring import RingBuilder
    from swift.common.wsgi import loadapp

    constraints.reload_constraints()
    storage_policy.reload_storage_policies()
    (folder / "devices" / "disk").mkdir(parents=True, exist_ok=True)
    listeners = {"proxy": eventlet.listen(("127.0.0.1", port), backlog=256)}
    for role in ("account", "container", "object"):
        listeners[role] = eventlet.listen(("127.0.0.1", 0), backlog=256)
        ring = RingBuilder(part_power=4, replicas=1, min_part_hours=0)
        place = {"ip": "127.0.0.1", "port": listeners[role].getsockname()[1], "device": "disk"}
        ring.add_dev({"id": 0, "region": 1, "zone": 1, "weight": 1.0, **place})
        ring.rebalance(seed=1)
        ring.get_ring().save(str(conf / f"{role}.ring.gz"))
        (conf / f"{role}.conf").write_text(_BACKEND.format(role=role, devices=folder / "devices"))
    (conf / "proxy.conf").write_text(_PROXY)
    servers = []
    for role in ("account", "container", "object", "proxy"):
        app = loadapp(str(conf / f"{role}.conf"), global_conf={"swift_dir": str(conf), "log_level": "WARNING"})
        servers.append(
            eventlet.spawn(
                wsgi.server, listeners[role], app, protocol=SwiftHttpProtocol, log_output=False, max_size=256
            )
        )
    for server in servers:
        server.wait()


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), int(sys.argv[2]))
