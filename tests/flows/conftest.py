"""One Prefect server and one Dask cluster for all tests of flows, and runs of the command on them."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from ..storage.s3_proxy import S3Proxy  # noqa: TID252  (tests are no package)
from . import warm
from .processes import Cluster, Command, wait_until
from .stored import StoredRun

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass(frozen=True)
class Settings:
    """Of a run that is small enough to be had many times."""

    lag: int = 0
    stages: int = 2
    rounds: int = 20
    tiles: int = 4
    act_tasks: int = 2
    envs_per_tile: int = 4
    round_steps: int = 16

    @property
    def all_rounds(self) -> int:
        return self.stages * self.rounds

    @property
    def rows(self) -> int:
        return self.all_rounds * self.tiles * self.envs_per_tile * self.round_steps

    def toml(self) -> str:
        return f"""
            seed = 7
            [environment]
            num_envs = {self.tiles * self.envs_per_tile}
            envs_per_tile = {self.envs_per_tile}
            [algorithm]
            hidden = [8]
            epochs = 1
            minibatches = 2
            [schedule]
            round_steps = {self.round_steps}
            rounds_per_stage = {self.rounds}
            max_stages = {self.stages}
            lag = {self.lag}
            evaluation_episodes = 4
            [placement]
            act_tasks = {self.act_tasks}
            [cluster]
            lease_seconds = 6.0
        """


BRIEF = Settings(stages=2, rounds=6, tiles=2, act_tasks=1)
ENDLESS = Settings(stages=1, rounds=100_000, tiles=2, act_tasks=1)


@dataclass
class Bench:
    """Where runs are made: starts commands and ends what is left of them."""

    folder: Path
    environment: dict[str, str]
    scheduler: str
    commands: list[Command] = field(default_factory=list)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    @property
    def store(self) -> str:
        return str(self.folder / "runs")

    def penstock(self, *arguments: str, cold: bool = False, **environment: str) -> Command:
        """Any command."""
        folder = self.folder / f"command-{next(self._numbers)}"
        command = Command(arguments, {**self.environment, **environment}, folder, cold=cold)
        self.commands.append(command)
        return command

    def preset(self, settings: Settings) -> str:
        path = self.folder / f"preset-{next(self._numbers)}.toml"
        path.write_text(settings.toml())
        return str(path)

    def train(self, name: str, settings: Settings, *options: str, store: str | None = None) -> Command:
        """`penstock train` on the shared cluster."""
        where = ["--store", store or self.store, "--scheduler", self.scheduler]
        return self.penstock("train", self.preset(settings), "--name", name, *where, *options)

    def train_alone(self, name: str, settings: Settings, *options: str, cold: bool = False) -> Command:
        """`penstock train` with workers of its own: what one has on a laptop."""
        arguments = ("train", self.preset(settings), "--name", name, "--store", self.store, *options)
        return self.penstock(*arguments, cold=cold)

    def resume(self, name: str, *options: str, store: str | None = None) -> Command:
        """`penstock resume` on the shared cluster."""
        where = ["--store", store or self.store, "--scheduler", self.scheduler, "--lease-seconds", "6"]
        return self.penstock("resume", name, *where, *options)

    def run(self, name: str) -> StoredRun:
        return StoredRun(self.store, name)

    def close(self) -> None:
        for command in self.commands:
            command.kill_group()
        self.commands.clear()


@pytest.fixture(scope="session", autouse=True)
def warm_process() -> Iterator[None]:
    """Ends what commands were forked from, if any were."""
    yield
    warm.close_shared()


@pytest.fixture(scope="session")
def prefect_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of the API of a Prefect server of its own, with an empty home."""
    folder = tmp_path_factory.mktemp("prefect")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    environment |= {
        "PREFECT_HOME": str(folder / "home"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_UI_API_URL": f"http://127.0.0.1:{port}/api",
        "DO_NOT_TRACK": "1",
    }
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
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

        wait_until(healthy, "Prefect's server")
        yield url
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


@pytest.fixture(scope="session")
def flow_environment(prefect_api: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What flows find in their environment."""
    return {
        "PREFECT_API_URL": prefect_api,
        "PREFECT_HOME": str(tmp_path_factory.mktemp("flows") / "home"),
        "DO_NOT_TRACK": "1",
        "COLUMNS": "200",
    }


@pytest.fixture(scope="session")
def s3_proxy(s3_server) -> Iterator[S3Proxy]:
    """In front of the S3 server, for faults; without any it changes nothing."""
    with S3Proxy(s3_server.endpoint) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def cluster(s3_server, s3_proxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A Dask cluster that is no run's own: four places to act in two processes, one to learn; so one gang at a time."""
    environment = {**s3_server.environment, "AWS_ENDPOINT_URL": s3_proxy.endpoint}
    cluster = Cluster(2, 2, environment, tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.close()


@pytest.fixture
def bench(flow_environment: dict[str, str], cluster: Cluster, tmp_path: Path) -> Iterator[Bench]:
    """Where a test makes its runs; afterwards, the cluster is whole and idle again."""
    bench = Bench(tmp_path, flow_environment, cluster.address)
    yield bench
    bench.close()
    cluster.members.wait_whole(cluster.workers)
    cluster.members.wait_idle()


class References:
    """Runs that nothing disturbed, one of each settings."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._runs: dict[Settings, StoredRun] = {}

    def run(self, settings: Settings) -> StoredRun:
        if settings not in self._runs:
            name = f"undisturbed-{len(self._runs)}"
            self._bench.train(name, settings).succeed()
            self._runs[settings] = self._bench.run(name)
        return self._runs[settings]

    def content(self, settings: Settings) -> dict[str, bytes]:
        return self.run(settings).content()


@pytest.fixture(scope="session")
def references(
    flow_environment: dict[str, str], cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[References]:
    bench = Bench(tmp_path_factory.mktemp("references"), flow_environment, cluster.address)
    yield References(bench)
    bench.close()
