"""Roles on several Dask clusters, between which there is nothing but storage; and workers that come and go."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import psutil
import pytest
from distributed import Lock

from tasks import admission

from .conftest import BRIEF, Bench, Settings
from .processes import PATIENCE_SECONDS, Cluster, Members
from .stored import assert_same

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
    learns, *act = clusters.told["addresses"]
    apart.train("apart", BRIEF, "--act-tasks", "2", "--cluster.schedulers.act", ",".join(act)).succeed()
    run = apart.run("apart")
    assert_same(run, references.content(BRIEF))
    for timings in run.timings():
        where = {member: facts["scheduler"] for member, facts in timings["members"].items()}
        assert where == {"act-0": act[0], "act-1": act[1], "learn-0": learns}


def test_workers_join_and_are_told_to_end(apart, clusters, references):
    """One that joins acts from the next stage on; told to end, it hands its work back: same bytes, by the same flow.

    Between stages the flow waits for its turn, which the test has, until the worker is there.
    """
    settings = Settings(stages=2, rounds=20, tiles=2, act_tasks=1)
    act = clusters.told["addresses"][1]
    where = ("--act-tasks", "2", "--min-act-tasks", "1", "--cluster.schedulers.act", act)
    flow, run, members = apart.train("elastic", settings, *where), apart.run("elastic"), Members(act)
    try:
        run.wait_for_round(0, flow)
        turn = Lock(admission._LOCK, scheduler_rpc=members.client.scheduler, loop=members.client.loop)
        assert turn.acquire(timeout=PATIENCE_SECONDS)
        joined = clusters.join(act)
        members.wait_whole(2)
        turn.release()
        members.pid_of("act-1", "elastic")
        run.wait_for_round(settings.rounds, flow)
        own = {process.pid for process in psutil.Process(joined.pid).children(recursive=True)}
        assert any(keys for pid, keys in members.working().items() if pid in own), "the worker that joined should act"
        joined.terminate()
        assert joined.wait(PATIENCE_SECONDS) == 0
        flow.succeed()
        members.wait_idle()
    finally:
        members.close()
    assert_same(run, references.content(settings))
    assert [sum(name.startswith("act-") for name in timings["members"]) for timings in run.timings()] == [1, 1]


def test_a_scheduler_that_comes_back_is_waited_for(apart, clusters, references):
    """That of half of the actors is killed, and another started at its address: the same flow, and the same bytes."""
    _, left, lost = clusters.told["addresses"]
    where = ("--act-tasks", "2", "--cluster.schedulers.act", f"{left},{lost}")
    flow, run = apart.train("back", BRIEF, *where), apart.run("back")
    run.wait_for_round(2, flow)
    os.kill(clusters.told["pids"][1], signal.SIGKILL)
    clusters.begin(lost)
    clusters.join(lost)
    flow.succeed()
    assert "run=back lost a Dask scheduler; it goes on from the last commit when there is one at" in flow.output
    assert_same(run, references.content(BRIEF))


def test_one_that_stays_away_is_named_and_the_run_goes_on_without_it(apart, clusters, references):
    """The run ends by name once it has waited, and on what is left to the same bytes."""
    _, lost, left = clusters.told["addresses"]
    where = ("--act-tasks", "2", "--cluster.schedulers.act", f"{left},{lost}", "--cluster.admission-seconds", "5")
    flow, run = apart.train("lost", BRIEF, *where), apart.run("lost")
    run.wait_for_round(2, flow)
    os.kill(clusters.told["pids"][0], signal.SIGKILL)
    flow.refuse(f"waited 5 s for a Dask scheduler at {lost}", "resume")
    apart.resume("lost", "--act-tasks", "1", "--cluster.schedulers.act", left).succeed()
    assert_same(run, references.content(BRIEF))
