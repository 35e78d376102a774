"""A run whose actors get int8 parameters is resumed to the same bytes as well."""

from __future__ import annotations

import os
import signal

import pytest

from ..support.stored_run import StoredRun, assert_same, assert_whole
from .conftest import BRIEF

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
        learner = cluster.members.pid_of("learn-0", "killed")
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
