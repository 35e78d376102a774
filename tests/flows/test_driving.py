"""One flow drives a run, one gang takes its places on a cluster whole, and nothing outlives its flow for long."""

from __future__ import annotations

import os
import signal
import time

import pytest

from .conftest import BRIEF, ENDLESS, Bench
from .processes import Cluster
from .stored import assert_same

LEASE_SECONDS = 6.0
# A watcher looks every third of a lease, a member that waits looks up every two seconds; the rest is a busy machine.
LEAVE_SECONDS = LEASE_SECONDS + LEASE_SECONDS / 3 + 2.0 + 30.0


@pytest.fixture
def endless(bench):
    """A flow in the middle of a stage that does not end."""
    flow = bench.train("endless", ENDLESS)
    bench.run("endless").wait_for_round(2, flow)
    return flow


def test_taken_run_and_taken_cluster_are_refused(bench, endless, cluster):
    """A second flow on the run is refused at once, another run after its admission_seconds; both name who is there."""
    started = time.monotonic()
    second_flow = bench.resume("endless")
    second_run = bench.train("waiting", BRIEF, "--admission-seconds", "2")
    second_flow.refuse("driven by", str(endless.pid))
    second_run.refuse("endless", "admission_seconds")
    assert time.monotonic() - started < 90
    assert endless.running
    assert bench.run("waiting").commits() == []


def test_two_runs_take_turns_on_one_cluster(bench, references):
    """Two runs on a cluster that holds one gang both end, each with the bytes that it has alone."""
    flows = [bench.train(name, BRIEF) for name in ("first", "second")]
    for flow in flows:
        flow.succeed()
    for name in ("first", "second"):
        assert_same(bench.run(name), references.content(BRIEF))


def test_a_cluster_that_dasks_commands_started_holds_a_run(references, flow_environment, tmp_path):
    """As docs/operations.md starts one, every process a new one; a worker that is killed comes back as one of them."""
    (folder := tmp_path / "cluster").mkdir()
    cluster = Cluster(1, 1, {}, folder, cold=True)
    bench = Bench(tmp_path, flow_environment, cluster.address)
    try:
        flow, run = bench.train("by-hand", BRIEF), bench.run("by-hand")
        pid = cluster.members.pid_of("act-0", "by-hand")
        run.wait_for_round(1, flow)
        os.kill(pid, signal.SIGKILL)
        flow.succeed()
        assert_same(run, references.content(BRIEF))
    finally:
        bench.close()
        cluster.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda number: number.name)
def test_tasks_of_a_stopped_flow_leave(endless, cluster, number):
    """However a flow ends, its tasks on somebody's cluster leave within the lease's time."""
    endless.send(number)
    status = endless.wait(60)
    assert status != 0
    cluster.members.wait_idle(LEAVE_SECONDS)
    assert "Traceback" not in endless.output


def test_interrupted_flow_says_how_to_go_on_and_frees_the_run(bench, endless, cluster):
    """After Ctrl-C the flow says that the last commit stands, its tasks leave, and its lease is released."""
    endless.send(signal.SIGINT)
    assert endless.wait(60) == 130
    cluster.members.wait_idle(LEAVE_SECONDS)
    assert "Traceback" not in endless.output
    assert "resume" in endless.errors
    run = bench.run("endless")
    assert b'"released":true' in run.store.read("lease.json")


def test_interrupting_everything_on_a_terminal_is_as_quiet(bench):
    """Ctrl-C there also reaches the workers that the flow has brought along: one message, no traceback of theirs."""
    flow, run = bench.train_alone("laptop", ENDLESS), bench.run("laptop")
    run.wait_for_round(1, flow)
    os.killpg(flow.pid, signal.SIGINT)
    assert flow.wait(60) == 130
    assert "Traceback" not in flow.output
    assert "resume" in flow.errors
    assert b'"released":true' in run.store.read("lease.json")
