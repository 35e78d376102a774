"""Runs on an object store that is slow, throttles, fails now and then, or goes away: the same bytes, or a clear error.

A proxy in front of the S3 server injects the faults, so every process of a run gets them, with its real client.
"""

from __future__ import annotations

import os
import signal
from dataclasses import replace

import pytest

from penstock.storage.digest import digest
from penstock.storage.runs.commit_schema import commit_name, encode_commit

from ...support.processes.commands import is_alive, wait_until
from ...support.services.s3_proxy import METHODS
from ...support.stored.faulty import Fault, now_and_then
from ...support.stored.stored_run import StoredRun, assert_same
from ..conftest import BRIEF


@pytest.fixture
def proxy(bench, s3_server, s3_proxy):
    """Return the proxy between a run's processes and the S3 server; the test itself uses the server directly."""
    bench.environment = {**bench.environment, **s3_server.environment, "AWS_ENDPOINT_URL": s3_proxy.endpoint}
    yield s3_proxy
    s3_proxy.heal()
    s3_proxy.start()


@pytest.mark.slow
def test_transient_faults_of_the_store_change_no_byte(bench, references, proxy, s3_url):
    """Every request is delayed, and some are dropped, unanswered, throttled, repeated or cut: nothing is lost."""
    proxy.met.clear()
    proxy.add(
        *now_and_then(1, 0.03, "drop", "lose", "refuse", "repeat", "truncate", operations=METHODS),
        Fault("delay", METHODS, calls=None, seconds=0.02),
    )
    bench.train("stumbling", BRIEF, "--lease-seconds", "60", store=s3_url).succeed()
    assert {kind for kind, _ in proxy.met} == {"delay", "drop", "lose", "refuse", "repeat", "truncate"}
    assert_same(StoredRun(s3_url, "stumbling"), references.content(BRIEF))


@pytest.mark.slow
def test_a_quorum_needs_atomic_creation_or_consent(bench, proxy, s3_url):
    """A service that ignores conditions is refused before anything is stored; with consent each commit is kept twice.

    The probe of four concurrent creations is not the point here: a second creation succeeds, which it always finds.
    """
    proxy.add(Fault("forget", ("PUT",), calls=None))
    run, quorum = StoredRun(s3_url, "unfenced"), ("--quorum", "0.5", "--act-tasks", "2")
    bench.train("unfenced", BRIEF, *quorum, store=s3_url).refuse("--allow-unfenced", "quorum = 0.5", s3_url)
    assert run.store.list() == []
    bench.train("unfenced", BRIEF, *quorum, "--allow-unfenced", store=s3_url).succeed()
    commits = run.commits()
    digests = [digest(run.store.read(commit_name(stage))) for stage in range(len(commits))]
    assert run.store.list("commit-copies/") == [
        f"commit-copies/{stage:08d}-{found}.json" for stage, found in enumerate(digests)
    ]
    other = encode_commit(replace(run.folder.log.read(0), episodes=10**6))
    run.store.write(f"commit-copies/00000000-{digest(other)}.json", [other])
    for command in (("verify", "unfenced"), ("show", "unfenced")):
        ended = bench.penstock(*command, "--store", s3_url)
        assert ended.wait() == 1, ended.output
        for found in (digests[0], digest(other)):
            assert found in ended.output, ended.output


@pytest.mark.slow
def test_an_unreachable_store_is_named_and_the_run_is_resumed_later(bench, references, proxy, s3_url):
    """The flow ends with one error that names the store, and a resume from the last commit ends with the same bytes.

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


@pytest.mark.slow
def test_rows_lost_with_their_uploader_are_acted_again(bench, cluster, references, proxy, s3_url):
    """The learner is ahead of the uploads when the uploading process is killed; the run ends with the same bytes."""
    proxy.add(Fault("delay", ("PUT",), "*shards/*", calls=None, seconds=0.4))
    with cluster.members.learners_held():
        flow, run = bench.train("ahead", BRIEF, "--lease-seconds", "60", store=s3_url), StoredRun(s3_url, "ahead")
        cluster.members.pid_of("act-0", "ahead", flow)
    for version in (2, BRIEF.rounds + 3):
        pid = cluster.members.pid_of("act-0", "ahead", flow)
        wait_until(
            lambda version=version: run.store.list(f"snapshots/{version:08d}-") or not flow.running,
            f"version {version}",
        )
        assert flow.running, flow.output
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda pid=pid: not is_alive(pid), "the end of what was killed")
    flow.succeed()
    assert_same(run, references.content(BRIEF))
