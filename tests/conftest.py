"""Start S3 servers for tests, each in its own process: moto, and Swift, which keeps its data while it is stopped."""

import gc
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from s3fs import S3FileSystem
from xdist.scheduler import LoadFileScheduling

from .support.services.swift_server import NoSwiftError, SwiftServer

# A shell starts background jobs with SIGINT ignored, which children inherit; tests send it to commands.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# There is one process more than cores, and torch would have a thread for each core in each: they wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Stores sync what they write, which takes longer on a disk than all else that most of their tests do.
_MEMORY = Path("/dev/shm")
if _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > 8 << 30 and not os.statvfs(_MEMORY).f_flag & os.ST_NOEXEC:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))

START_SECONDS = 300
_S3_SERVER = Path(__file__).parent / "support" / "services" / "s3_server.py"
BUCKETS = itertools.count()


class Server(NamedTuple):
    endpoint: str
    log: Path  # one line per request

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables of the server's clients, without any credentials of the user."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": "/dev/null",
            "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        }


@pytest.fixture(scope="session", autouse=True)
def user_config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep secrets and consents in a folder of the session, also those of processes that tests start."""
    folder = tmp_path_factory.mktemp("user") / "config"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_CONFIG_DIR", str(folder))
        yield folder


BARE_NAMES = frozenset(("flows", "tasks", "storage", "native"))


@pytest.fixture(scope="session", autouse=True)
def bare_names_stay_unimported() -> Iterator[None]:
    """Fail at the end if a test imported `tasks` instead of `penstock.tasks`: that loads a second copy of a module.

    A fixture fails in the workers of xdist too, whose exit status is not read.
    """
    yield
    assert BARE_NAMES & set(sys.modules) == set()


def pytest_xdist_auto_num_workers() -> int:
    """Run one process more than there are cores, since tests wait for leases and for other processes."""
    return min(4, len(os.sched_getaffinity(0)) + 1)


class WholeRunsTogether(LoadFileScheduling):
    """Gives each file to one process, and all of `tests/end_to_end` to the same one."""

    def _split_scope(self, nodeid: str) -> str:
        folder = "tests/end_to_end"
        return folder if nodeid.startswith(folder) else super()._split_scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """Start Prefect's server, a cluster and the runs that others are compared with once, not once in each process.

    They take 30 CPU seconds. The slow part has too many whole runs for one process.
    """
    together = config.getvalue("dist") == "loadfile" and "not slow" in config.option.markexpr
    return WholeRunsTogether(config, log) if together else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for garbage only in what tests leave: modules and tests live to the end, and are a million objects.

    Each process of tests takes four of its fifteen CPU seconds of collection for that otherwise, and half a second
    again whenever a test collects.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest, since a file is run by one process and the others would wait for it."""
    items.sort(key=lambda item: "packaging" not in item.path.parts)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("s3") / "server.log"
    command = [sys.executable, "-W", "ignore", str(_S3_SERVER), "-H", "127.0.0.1", "-p", "0"]
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
            S3FileSystem.clear_instance_cache()  # cached instances are bound to this server


@pytest.fixture(scope="session")
def swift_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SwiftServer]:
    """Start OpenStack Swift. A test that stops it must restart it."""
    try:
        server = SwiftServer(tmp_path_factory.mktemp("swift"))
    except NoSwiftError as reason:
        pytest.skip(str(reason))
    with server:
        yield server


@pytest.fixture
def swift_url(swift_server: SwiftServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of a new folder in a bucket; the environment has credentials and endpoint for other processes."""
    _use(swift_server.environment, monkeypatch)
    system = S3FileSystem()
    if not system.exists("bucket"):
        system.call_s3("create_bucket", Bucket="bucket")
    return f"s3://bucket/runs-{next(BUCKETS)}"


def _use(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for system in list(S3FileSystem._cache.values()):
        if system.s3.meta.endpoint_url != environment["AWS_ENDPOINT_URL"]:
            S3FileSystem.clear_instance_cache()  # each is bound to the server that it first connected to
            break
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "FSSPEC_S3_ENDPOINT_URL", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def s3_url(s3_server: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of a new bucket; the environment has credentials and endpoint for other processes."""
    _use(s3_server.environment, monkeypatch)
    bucket = f"bucket-{next(BUCKETS)}"
    request = urllib.request.Request(f"{s3_server.endpoint}/{bucket}", method="PUT")
    with urllib.request.urlopen(request, timeout=150) as answer:
        assert answer.status == 200
    return f"s3://{bucket}/runs"
