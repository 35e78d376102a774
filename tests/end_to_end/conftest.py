"""Fixtures of whole runs: one Prefect server, one Dask cluster, and commands that run on them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from ..support.processes import warm
from ..support.processes.commands import Cluster, Command
from ..support.services.prefect_server import prefect_server
from ..support.services.s3_proxy import S3Proxy
from ..support.stored.stored_run import StoredRun

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .same_bytes.equality_runs import PolicyRuns


@dataclass(frozen=True)
class Settings:
    """The settings of a run that takes a few seconds."""

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
            [distribution]
            act_tasks = {self.act_tasks}
            [cluster]
            lease_seconds = 6.0
            gang_seconds = 300.0
        """


BRIEF = Settings(stages=2, rounds=6, tiles=2, act_tasks=1)
ENDLESS = Settings(stages=1, rounds=100_000, tiles=2, act_tasks=1)


@dataclass
class Bench:
    """Starts commands in one folder, and at the end kills those that still run."""

    folder: Path
    environment: dict[str, str]
    scheduler: str
    commands: list[Command] = field(default_factory=list)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    @property
    def store(self) -> str:
        return str(self.folder / "runs")

    def penstock(self, *arguments: str, cold: bool = False, **environment: str) -> Command:
        """Start any `penstock` command."""
        folder = self.folder / f"command-{next(self._numbers)}"
        command = Command(arguments, {**self.environment, **environment}, folder, cold=cold)
        self.commands.append(command)
        return command

    def preset(self, settings: Settings) -> str:
        path = self.folder / f"preset-{next(self._numbers)}.toml"
        path.write_text(settings.toml())
        return str(path)

    def train(self, name: str, settings: Settings, *options: str, store: str | None = None) -> Command:
        """Start `penstock train` on the shared cluster."""
        where = ["--store", store or self.store, "--scheduler", self.scheduler]
        return self.penstock("train", self.preset(settings), "--name", name, *where, *options)

    def train_alone(self, name: str, settings: Settings, *options: str, cold: bool = False) -> Command:
        """Start `penstock train` with its own workers, as on a laptop."""
        arguments = ("train", self.preset(settings), "--name", name, "--store", self.store, *options)
        return self.penstock(*arguments, cold=cold)

    def resume(self, name: str, *options: str, store: str | None = None) -> Command:
        """Start `penstock resume` on the shared cluster."""
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
    """End the process that commands are forked from, at the end of the session."""
    yield
    warm.close_shared()


@pytest.fixture(scope="session")
def prefect_api(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[str]:
    """Start a Prefect server for these tests only, and give its API's URL."""
    with prefect_server(tmp_path_factory.mktemp("prefect"), pytestconfig.rootpath / "build" / "tests") as url:
        yield url


@pytest.fixture(scope="session")
def flow_environment(prefect_api: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the environment of flows."""
    return {
        "PREFECT_API_URL": prefect_api,
        "PREFECT_HOME": str(tmp_path_factory.mktemp("flows") / "home"),
        "DO_NOT_TRACK": "1",
        "COLUMNS": "200",
    }


@pytest.fixture(scope="session")
def s3_proxy(s3_server) -> Iterator[S3Proxy]:
    """Start a proxy in front of the S3 server; tests configure the faults that it injects."""
    with S3Proxy(s3_server.endpoint) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def cluster(s3_server, s3_proxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Start a shared Dask cluster for one gang: four actor slots in two processes, and one learner slot."""
    environment = {**s3_server.environment, "AWS_ENDPOINT_URL": s3_proxy.endpoint}
    cluster = Cluster(2, 2, environment, tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.close()


@pytest.fixture
def bench(flow_environment: dict[str, str], cluster: Cluster, tmp_path: Path) -> Iterator[Bench]:
    """Start commands for one test; afterwards wait until the cluster has all its workers and is idle."""
    bench = Bench(tmp_path, flow_environment, cluster.address)
    yield bench
    bench.close()
    cluster.members.wait_whole(cluster.workers)
    cluster.members.wait_idle()


class References:
    """Undisturbed runs, one per `Settings`, created on first use."""

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


@pytest.fixture(scope="session")
def policy_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Start a cluster for the gang of any policy: two workers act or step environments, two learn, one serves."""
    cluster = Cluster(2, 1, {}, tmp_path_factory.mktemp("policy-cluster"), learners=2, servers=1)
    yield cluster
    cluster.close()


@pytest.fixture(scope="session")
def policy_runs(
    policy_cluster: Cluster, flow_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PolicyRuns]:
    """Return undisturbed runs of any algorithm under any policy."""
    from .same_bytes.equality_runs import PolicyRuns

    bench = Bench(tmp_path_factory.mktemp("policy-runs"), flow_environment, policy_cluster.address)
    yield PolicyRuns(bench)
    bench.close()


@pytest.fixture
def policy_bench(flow_environment: dict[str, str], policy_cluster: Cluster, tmp_path: Path) -> Iterator[Bench]:
    """Start commands on the policy cluster; afterwards wait until it has all its workers and is idle."""
    bench = Bench(tmp_path, flow_environment, policy_cluster.address)
    yield bench
    bench.close()
    policy_cluster.members.wait_whole(policy_cluster.workers)
    policy_cluster.members.wait_idle()
