"""One flow drives a run, a gang gets all its places on a cluster or none, and tasks end after their flow."""

from __future__ import annotations

import json
import os
import re
import signal

import pytest

from ...support.processes.commands import Cluster
from ...support.stored.stored_run import assert_same
from ..conftest import BRIEF, ENDLESS, Bench


@pytest.fixture
def endless(bench):
    """Start a flow and wait until it is in the middle of a stage that does not end."""
    flow = bench.train("endless", ENDLESS)
    bench.run("endless").wait_for_round(2, flow)
    return flow


@pytest.mark.slow
def test_a_driven_run_and_a_full_cluster_are_refused(bench, endless, cluster):
    """A second flow of the run is refused, and another run after its admission_seconds; both errors name the holder."""
    second_flow = bench.resume("endless")
    second_run = bench.train("waiting", BRIEF, "--admission-seconds", "2")
    second_flow.refuse("driven by", str(endless.pid))
    second_run.refuse("endless", "admission_seconds")
    assert endless.running
    assert bench.run("waiting").commits() == []


@pytest.mark.slow
def test_a_driven_run_says_who_drives_it(bench, endless):
    """`show` names the process and since when, and suggests no `resume`; `runs` names it; neither does afterwards."""
    shown = bench.penstock("show", "endless", "--store", bench.store).succeed()
    assert re.search(rf"driven by .* pid {endless.pid}, since 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d", shown)
    assert "resume" not in shown
    (listed,) = json.loads(bench.penstock("runs", "--store", bench.store, "--json").succeed())
    assert listed["driver"].endswith(f"pid {endless.pid}")
    endless.kill_group()
    assert "penstock resume endless" in bench.penstock("show", "endless", "--store", bench.store).succeed()
    (listed,) = json.loads(bench.penstock("runs", "--store", bench.store, "--json").succeed())
    assert listed["driver"] is None


@pytest.mark.slow
def test_two_runs_take_turns_on_one_cluster(bench, references):
    """Two runs on a cluster that holds one gang both end, each with the bytes that it has alone."""
    flows = [bench.train(name, BRIEF) for name in ("first", "second")]
    for flow in flows:
        flow.succeed()
    for name in ("first", "second"):
        assert_same(bench.run(name), references.content(BRIEF))


@pytest.mark.slow
def test_a_cluster_that_dasks_commands_started_holds_a_run(references, flow_environment, tmp_path):
    """As docs/operations.md starts one, every process a new one; a worker that is killed comes back as one of them."""
    (folder := tmp_path / "cluster").mkdir()
    cluster = Cluster(1, 1, {}, folder, cold=True)
    bench = Bench(tmp_path, flow_environment, cluster.address)
    try:
        with cluster.members.learners_held():
            flow, run = bench.train("by-hand", BRIEF), bench.run("by-hand")
            pid = cluster.members.pid_of("act-0", "by-hand", flow)
        run.wait_for_round(1, flow)
        os.kill(pid, signal.SIGKILL)
        flow.succeed()
        assert_same(run, references.content(BRIEF))
    finally:
        bench.close()
        cluster.close()


@pytest.mark.slow
def test_tasks_of_a_killed_flow_end(endless, cluster):
    """The tasks of a flow that was killed end, since nothing renews its lease."""
    endless.send(signal.SIGKILL)
    assert endless.wait() != 0
    cluster.members.wait_idle()
    assert "Traceback" not in endless.output, endless.output


@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)],
    ids=lambda number: number.name,
)
def test_a_stopped_flow_prints_how_to_resume_and_releases_its_lease(bench, endless, cluster, number):
    """After Ctrl-C or SIGTERM the flow names the last commit, its tasks end, and its lease is released."""
    endless.send(number)
    assert endless.wait() == 128 + number
    cluster.members.wait_idle()
    assert "Traceback" not in endless.output
    assert "resume" in endless.errors
    run = bench.run("endless")
    assert b'"released":true' in run.store.read("lease.json")


@pytest.mark.slow
def test_an_interrupt_of_flow_and_workers_prints_no_traceback(bench):
    """On a terminal Ctrl-C also reaches the flow's own workers: there is one message, and no traceback."""
    flow, run = bench.train_alone("laptop", ENDLESS), bench.run("laptop")
    run.wait_for_round(1, flow)
    os.killpg(flow.pid, signal.SIGINT)
    assert flow.wait() == 130
    assert "Traceback" not in flow.output, flow.output
    assert "resume" in flow.errors
    assert b'"released":true' in run.store.read("lease.json")
