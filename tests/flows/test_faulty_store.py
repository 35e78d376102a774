"""Runs on an object store that is slow, throttles, fails now and then, or goes away: the same bytes, or a clear error.

The faults happen in a proxy in front of the S3 server, so every process of a run meets them, with its real client.
"""

from __future__ import annotations

import os
import signal

import pytest

from ..storage.faulty import Fault, now_and_then  # noqa: TID252  (tests are no package)
from ..storage.s3_proxy import METHODS  # noqa: TID252
from .conftest import BRIEF
from .processes import wait_until
from .stored import StoredRun, assert_same


@pytest.fixture
def proxy(bench, s3_server, s3_proxy):
    """Between every process of a run and the S3 server; the test itself sees the server as it is."""
    bench.environment = {**bench.environment, **s3_server.environment, "AWS_ENDPOINT_URL": s3_proxy.endpoint}
    yield s3_proxy
    s3_proxy.heal()
    s3_proxy.start()


def test_a_store_that_stumbles_changes_no_byte(bench, references, proxy, s3_url):
    """Every request takes longer, and some are dropped, unanswered, throttled, done twice or cut: nothing is lost."""
    proxy.met.clear()
    proxy.add(
        *now_and_then(1, 0.03, "drop", "lose", "refuse", "repeat", "truncate", operations=METHODS),
        Fault("delay", METHODS, calls=None, seconds=0.02),
    )
    bench.train("stumbling", BRIEF, "--lease-seconds", "60", store=s3_url).succeed()
    assert {kind for kind, _ in proxy.met} == {"delay", "drop", "lose", "refuse", "repeat", "truncate"}
    assert_same(StoredRun(s3_url, "stumbling"), references.content(BRIEF))


def test_a_store_that_goes_away_is_named_and_the_run_goes_on_later(bench, references, proxy, s3_url):
    """The flow ends with one error that names the store, the last commit stands, and a resume ends with the same bytes.

    The upload of one shard hangs, so that the second stage is certainly under way when the store goes.
    """
    hanging = f"*shards/00000001/{BRIEF.rounds + 2:08d}-*"
    proxy.add(Fault("delay", ("PUT",), hanging, calls=None, seconds=3600))
    flow, run = bench.train("left-alone", BRIEF, "--lease-seconds", "60", store=s3_url), StoredRun(s3_url, "left-alone")
    run.wait_for_commit(0, flow)
    wait_until(lambda: any(kind == "delay" for kind, _ in proxy.met) or not flow.running, "an upload that hangs")
    assert flow.running, flow.output
    proxy.stop()
    flow.refuse(s3_url)
    assert [commit["stage"] for commit in run.commits()] == [0]
    proxy.heal()
    proxy.start()
    bench.resume("left-alone", store=s3_url).succeed()
    assert_same(run, references.content(BRIEF))


def test_a_killed_act_task_leaves_nothing_behind_that_was_only_near(bench, cluster, references, proxy, s3_url):
    """The learner is ahead of the uploads, the process that uploads is killed, and the run ends with the same bytes."""
    proxy.add(Fault("delay", ("PUT",), "*shards/*", calls=None, seconds=0.4))
    flow, run = bench.train("ahead", BRIEF, "--lease-seconds", "60", store=s3_url), StoredRun(s3_url, "ahead")
    for version in (2, BRIEF.rounds + 3):
        pid = cluster.members.pid_of("act-0", "ahead")
        wait_until(
            lambda version=version: run.store.list(f"snapshots/{version:08d}-") or not flow.running,
            f"version {version}",
        )
        assert flow.running, flow.output
        os.kill(pid, signal.SIGKILL)
    flow.succeed()
    assert_same(run, references.content(BRIEF))
