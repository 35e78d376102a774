"""Roles on several Dask clusters that share nothing but storage, and workers that join and leave."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import psutil
import pytest
from distributed import Lock

from penstock.tasks.driver import admission

from ...support.processes.commands import PATIENCE_SECONDS, Cluster, Members, wait_until
from ...support.stored.stored_run import assert_same
from ..conftest import BRIEF, Bench, Settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two clusters with a worker that acts, and one with a worker that learns."""
    clusters = Cluster(2, 1, {}, tmp_path_factory.mktemp("clusters"), apart=True)
    yield clusters
    clusters.close()


@pytest.fixture
def apart(flow_environment: dict[str, str], clusters: Cluster, tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path, flow_environment, clusters.address)
    yield bench
    bench.close()


def test_actors_on_two_clusters_and_the_learner_on_a_third(apart, clusters, references):
    """Data go through storage alone, and the run ends with the bytes that it has on one cluster."""
    learns, *act = clusters.schedulers["addresses"]
    apart.train("apart", BRIEF, "--act-tasks", "2", "--cluster.schedulers.act", ",".join(act)).succeed()
    run = apart.run("apart")
    assert_same(run, references.content(BRIEF))
    for timings in run.timings():
        where = {member: facts["scheduler"] for member, facts in timings["members"].items()}
        assert where == {"act-0": act[0], "act-1": act[1], "learn-0": learns}


def test_a_worker_joins_and_is_terminated(apart, clusters, references):
    """A worker that joins acts from the next stage on; on SIGTERM it hands its work back, and no byte changes.

    Between stages the flow waits for the admission lock, which the test holds until the worker has joined.
    """
    settings = Settings(stages=2, rounds=20, tiles=2, act_tasks=1)
    act = clusters.schedulers["addresses"][1]
    where = ("--act-tasks", "2", "--min-act-tasks", "1", "--cluster.schedulers.act", act)
    flow, run, members = apart.train("elastic", settings, *where), apart.run("elastic"), Members(act)
    try:
        run.wait_for_round(0, flow)
        turn = Lock(admission._LOCK, scheduler_rpc=members.client.scheduler, loop=members.client.loop)
        assert turn.acquire(timeout=PATIENCE_SECONDS)
        joined = clusters.join(act)
        members.wait_whole(2)
        turn.release()
        members.pid_of("act-1", "elastic", flow)
        own = {process.pid for process in psutil.Process(joined.pid).children(recursive=True)}
        with clusters.members.learners_held():  # so that the stage does not end meanwhile

            def acts() -> bool:
                return any(keys for pid, keys in members.working().items() if pid in own)

            wait_until(acts, "the worker that joined should act")
        run.wait_for_round(settings.rounds, flow)
        joined.terminate()
        assert joined.wait(PATIENCE_SECONDS) == 0
        flow.succeed()
        members.wait_idle()
    finally:
        members.close()
    assert_same(run, references.content(settings))
    assert [sum(name.startswith("act-") for name in timings["members"]) for timings in run.timings()] == [1, 1]


def test_a_run_waits_for_a_scheduler_that_comes_back(apart, clusters, references):
    """The scheduler of half of the actors is killed and another started at its address: same flow, same bytes."""
    _, left, lost = clusters.schedulers["addresses"]
    where = ("--act-tasks", "2", "--cluster.schedulers.act", f"{left},{lost}")
    flow, run = apart.train("back", BRIEF, *where), apart.run("back")
    run.wait_for_round(2, flow)
    os.kill(clusters.schedulers["pids"][1], signal.SIGKILL)
    clusters.begin(lost)
    clusters.join(lost)
    flow.succeed()
    assert "run=back lost a Dask scheduler; waiting for a scheduler with its workers at" in flow.output
    assert_same(run, references.content(BRIEF))


def test_a_lost_scheduler_is_named_and_the_run_resumes_without_it(apart, clusters, references):
    """The run ends with an error that names the scheduler, and resumes on the other clusters to the same bytes."""
    _, lost, left = clusters.schedulers["addresses"]
    where = ("--act-tasks", "2", "--cluster.schedulers.act", f"{left},{lost}", "--cluster.admission-seconds", "5")
    flow, run = apart.train("lost", BRIEF, *where), apart.run("lost")
    run.wait_for_round(2, flow)
    os.kill(clusters.schedulers["pids"][0], signal.SIGKILL)
    flow.refuse(f"waited 5 s for a Dask scheduler at {lost}", "resume")
    apart.resume("lost", "--act-tasks", "1", "--cluster.schedulers.act", left).succeed()
    assert_same(run, references.content(BRIEF))
