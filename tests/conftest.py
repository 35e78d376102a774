"""An S3 server on this machine: moto, as a process of its own, on a port that the kernel picks."""

import contextlib
import itertools
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

START_SECONDS = 60
BUCKETS = itertools.count()


class Server(NamedTuple):
    endpoint: str
    log: Path  # one line per request

    @property
    def environment(self) -> dict[str, str]:
        """With which any process finds the server, and nobody's own credentials."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": "/dev/null",
            "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        }


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("s3") / "server.log"
    command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            give_up_at = time.monotonic() + START_SECONDS
            while not (found := re.search(r"http://127\.0\.0\.1:\d+", log.read_text())):
                assert process.poll() is None, f"the S3 server ended: {log.read_text()}"
                assert time.monotonic() < give_up_at, f"the S3 server did not start: {log.read_text()}"
                time.sleep(0.05)
            yield Server(found.group(), log)
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
            with contextlib.suppress(ImportError):
                from s3fs import S3FileSystem

                S3FileSystem.clear_instance_cache()  # they are bound to this server


@pytest.fixture
def s3_url(s3_server: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """A new bucket; credentials and the endpoint are in the environment, so that other processes find it as well."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "FSSPEC_S3_ENDPOINT_URL", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    bucket = f"bucket-{next(BUCKETS)}"
    request = urllib.request.Request(f"{s3_server.endpoint}/{bucket}", method="PUT")
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 200
    return f"s3://{bucket}/runs"
