"""Schedulers and workers of environments without Penstock: real processes, which can't import it."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from distributed import Client

from penstock.storage.errors import GangRefusedError
from penstock.tasks.driver.admission import admitted
from penstock.tasks.driver.cluster import Cluster, Clusters, connected_to
from penstock.tasks.setup.distribution.policies import single_learner_coarse

from ...support.processes.commands import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.slow

PATIENCE_SECONDS = 150.0


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Start `dask scheduler` or `dask worker`, with Penstock or without; returns the file of its output."""
    spec = find_spec("distributed")
    assert spec is not None
    assert spec.origin is not None
    packages = Path(spec.origin).parent.parent
    (bare := tmp_path / "bare").mkdir()
    for package in packages.iterdir():
        if "penstock" not in package.name and package.suffix != ".pth":
            (bare / package.name).symlink_to(package)
    started: list[subprocess.Popen[bytes]] = []

    def run(*arguments: str, bare_environment: bool) -> Path:
        output = tmp_path / f"{len(started)}.txt"
        # -S leaves out the environment's own packages.
        python = [sys.executable, "-S"] if bare_environment else [sys.executable]
        environment = {**os.environ, "PYTHONPATH": str(bare)} if bare_environment else None
        with output.open("wb") as file:
            command = [*python, "-m", "dask", *arguments, "--host", "127.0.0.1", "--no-dashboard"]
            started.append(subprocess.Popen(command, stderr=file, cwd=tmp_path, env=environment))
        return output

    yield run
    for process in reversed(started):
        process.kill()
        process.wait()


def address_of(scheduler: Path) -> str:
    def found() -> str:
        lines = [line for line in scheduler.read_text().splitlines() if "Scheduler at:" in line]
        return lines[0].split()[-1] if lines else ""

    return str(wait_until(found, "the scheduler's address"))


def test_workers_without_penstock_are_refused_before_they_get_anything(start):
    """By name, unless no member may run there: they would close at the first message, and nobody would say why."""
    address = address_of(start("scheduler", "--port", "0", bare_environment=False))
    with Client(address, set_as_default=False) as client:
        told = client.scheduler_info(n_workers=0)
        cluster = Cluster(client, told["id"], address)
        policy = single_learner_coarse(1)
        clusters = Clusters({role.name: (cluster,) for role in policy.roles})
        places = ("--no-nanny", "--nthreads", "2", "--resources")
        start("worker", address, *places, "actor=1 learner=1", bare_environment=False)
        start("worker", address, *places, "other=1", bare_environment=True)
        client.wait_for_workers(2, timeout=PATIENCE_SECONDS)
        with admitted(clusters, policy, "mine", PATIENCE_SECONDS):
            pass
        assert len(cluster.checked) == 1
        start("worker", address, *places, "actor=1", bare_environment=True)
        client.wait_for_workers(3, timeout=PATIENCE_SECONDS)
        with pytest.raises(GangRefusedError) as caught, admitted(clusters, policy, "mine", PATIENCE_SECONDS):
            pass
        workers = client.scheduler_info(n_workers=-1)["workers"]
        assert len(workers) == 3
        (without,) = (one for one, each in workers.items() if each["resources"] == {"actor": 1.0})
        wanted = f"{without}. Install penstock-rl {version('penstock-rl')} there and restart them"
        assert wanted in str(caught.value)
        assert str(caught.value).count("tcp://") == 2


def test_a_scheduler_without_penstock_is_refused(start):
    """When a flow connects: members' slots are read by a function that the scheduler could not import."""
    address = address_of(start("scheduler", "--port", "0", bare_environment=True))
    with pytest.raises(
        GangRefusedError, match=f"not installed in the environment of the Dask scheduler at '{address}'"
    ):
        connected_to(address).__enter__()
