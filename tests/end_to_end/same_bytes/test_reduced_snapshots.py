"""A run whose actors get int8 parameters, or differences between bfloat16 ones, is resumed to the same bytes too."""

from __future__ import annotations

import os
import shutil
import signal
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ...support.processes.commands import Cluster
from ...support.stored.stored_run import StoredRun, assert_same, assert_whole
from ..conftest import BRIEF, Bench

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

REDUCED = ("--snapshot-dtype", "int8")


@pytest.mark.slow
def test_an_int8_run_is_killed_and_resumed_to_the_same_bytes(bench, cluster, references, s3_server, s3_url):
    """On S3, with learner and flow killed, it ends with the bytes of an undisturbed one in a folder.

    Those are not the bytes of a float32 run. What each member did at the node's cache is in `timings/`.
    """
    bench.train("whole", BRIEF, *REDUCED).succeed()
    whole = bench.run("whole").content()
    assert_whole(bench.run("whole"), BRIEF.all_rounds, BRIEF.tiles, BRIEF.rows)
    assert not set(whole) & {name for name in references.content(BRIEF) if name.startswith(("snapshots/", "shards/"))}

    bench.environment = {**bench.environment, **s3_server.environment}
    with cluster.members.learners_held():
        flow, run = bench.train("killed", BRIEF, *REDUCED, store=s3_url), StoredRun(s3_url, "killed")
        learner = cluster.members.pid_of("learn-0", "killed", flow)
    run.wait_for_round(2, flow)
    os.kill(learner, signal.SIGKILL)
    run.wait_for_round(BRIEF.rounds + 1, flow)
    flow.kill()
    bench.resume("killed", store=s3_url).succeed()
    assert_same(run, whole)
    timings = run.timings()[0]
    for part in timings["act"] + timings["learn"]:
        assert part["cache"]["hits"] + part["cache"]["misses"] > 0
        assert set(part["cache"]) == {"hits", "misses", "downloads", "waits", "origin_bytes"}


@pytest.fixture
def own_caches(s3_server, flow_environment, tmp_path) -> Iterator[tuple[Bench, Cluster]]:
    """Start a cluster whose workers have a cache each, as on several hosts."""
    cluster = Cluster(2, 1, s3_server.environment, tmp_path, own_caches=True)
    bench = Bench(tmp_path, {**flow_environment, **s3_server.environment}, cluster.address)
    yield bench, cluster
    bench.close()
    cluster.close()


def empty_caches(folder: Path) -> None:
    """Remove what earlier runs, which have the same snapshots, left in the caches of the workers."""
    for cache in folder.glob("cache-*"):
        shutil.rmtree(cache / "objects", ignore_errors=True)


@pytest.mark.slow
def test_a_run_with_differences_is_killed_and_resumed_to_the_same_bytes(own_caches, s3_url, tmp_path):
    """On S3, with learner, an actor and flow killed: shards, parameters and commits of a run in a folder without them.

    An undisturbed one shows that actors read less. Garbage collection then removes the differences.
    """
    bench, cluster = own_caches
    reduced, more = ("--snapshot-dtype", "bfloat16", "--hidden", "[64, 64]"), ("--snapshot-differences", "true")
    settings = replace(BRIEF, act_tasks=2)
    bench.train("whole", settings, *reduced).succeed()
    whole = bench.run("whole").content()
    read = {}
    for name, options in (("plain", ()), ("differences", more)):
        empty_caches(tmp_path)
        bench.train(name, settings, *reduced, *options, store=s3_url).succeed()
        assert_same(StoredRun(s3_url, name), whole)
        read[name] = sum(
            member["cache"]["origin_bytes"]
            for timings in StoredRun(s3_url, name).timings()
            for member in timings["act"]
        )
    stored = StoredRun(s3_url, "differences").store
    assert len(stored.list("differences/")) == len(stored.list("snapshots/")) - 1
    assert StoredRun(s3_url, "plain").store.list("differences/") == []
    assert 0 < read["differences"] < 0.8 * read["plain"]

    empty_caches(tmp_path)
    with cluster.members.learners_held():
        flow, run = bench.train("killed", settings, *reduced, *more, store=s3_url), StoredRun(s3_url, "killed")
        pids = [cluster.members.pid_of(member, "killed", flow) for member in ("learn-0", "act-1")]
    run.wait_for_round(2, flow)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    run.wait_for_round(settings.rounds + 1, flow)
    flow.kill()
    bench.resume("killed", store=s3_url).succeed()
    assert_same(run, whole)
    bench.penstock("gc", "killed", "--store", s3_url).succeed()
    assert run.store.list("differences/") == []
