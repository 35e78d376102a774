"""`penstock evaluate --follow` evaluates every commit concurrently with training and does not change it."""

from __future__ import annotations

import json

import pytest

from ...support.processes.commands import Command
from ...support.stored.stored_run import assert_same
from ..conftest import BRIEF
from .test_finished_run import ask


@pytest.mark.slow
def test_following_evaluates_each_commit_and_changes_no_byte(bench, references, prefect_api):
    """It starts during the run and ends with it, with one stored result per commit; the run has the same bytes.

    Each result equals that of the same command on the finished run, and a second follower has nothing to do. Prefect
    has a flow run of it, with one task run per commit and a table.
    """
    flow, run = bench.train("live", BRIEF), bench.run("live")
    run.wait_for_commit(0, flow)
    follow = ("evaluate", "live", "--follow", "--episodes", "4", "--key", "3", "--store", bench.store, "--json")
    follower = bench.penstock(*follow)
    flow.succeed()
    found = [json.loads(line) for line in follower.succeed().splitlines()]
    assert [result["version"] for result in found] == [BRIEF.rounds, 2 * BRIEF.rounds]
    kept = [json.loads(run.store.read(name)) for name in run.store.list("evaluations/")]
    assert kept == found
    assert_same(run, references.content(BRIEF))
    assert bench.penstock(*follow).succeed() == ""
    alone = json.loads(bench.penstock(*follow[:2], "--stage", "0", *follow[3:]).succeed())
    assert {**alone, "seconds": 0} == {**found[0], "seconds": 0}
    of_follower = {"flow_runs": {"name": {"any_": ["evaluate live"]}}}
    flow_runs = ask(prefect_api, "flow_runs/filter", of_follower)
    assert [flow_run["state_type"] for flow_run in flow_runs] == ["COMPLETED", "COMPLETED"]
    tasks = {task_run["name"]: task_run["state_type"] for task_run in ask(prefect_api, "task_runs/filter", of_follower)}
    assert tasks == {f"evaluate stage {stage}": "COMPLETED" for stage in range(BRIEF.stages)}
    tables = ask(prefect_api, "artifacts/filter", {"artifacts": {"key": {"any_": ["live-evaluations"]}}})
    assert max(len(json.loads(table["data"])) for table in tables) == BRIEF.stages


@pytest.mark.slow
def test_following_needs_no_prefect(bench, references):
    """Without a Prefect server, results are the same."""
    run = references.run(BRIEF)
    arguments = ("evaluate", run.name, "--follow", "--episodes", "2", "--store", run.url, "--json")
    environment = {name: value for name, value in bench.environment.items() if name != "PREFECT_API_URL"}
    found = Command(arguments, environment, bench.folder / "alone", cold=True).succeed().splitlines()
    assert [json.loads(line)["version"] for line in found] == [BRIEF.rounds, 2 * BRIEF.rounds]
