"""A finished run as the command line and Prefect show it."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from http import HTTPStatus
from typing import Any

import pytest
from prefect.flows import load_flow_from_entrypoint

from ...support.processes.commands import wait_until
from ..conftest import BRIEF

STAGES = range(BRIEF.stages)


def penstock_json(bench: Any, run: Any, *arguments: str, cold: bool) -> Any:
    return json.loads(bench.penstock(*arguments, "--store", run.url, "--json", cold=cold).succeed())


def test_a_finished_run_is_never_changed(bench, references):
    """`resume` succeeds and says that the run is finished, `train` that the name is taken; neither changes anything."""
    run = references.run(BRIEF)
    before = run.content()
    resumed, trained = bench.resume(run.name, store=run.url), bench.train(run.name, BRIEF, store=run.url)
    assert "max_stages" in resumed.succeed()
    assert "finished already" in resumed.errors
    trained.refuse(run.name, "already")
    assert run.content() == before


@pytest.mark.parametrize("cold", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_commands_agree_with_the_log(bench, references, cold):
    """`runs`, `show`, `gc --dry-run` and `evaluate` agree with the log; evaluating twice gives the same result."""
    run = references.run(BRIEF)
    newest = run.commits()[-1]
    summary = {item["name"]: item for item in penstock_json(bench, run, "runs", cold=cold)}[run.name]
    assert (summary["stage"], summary["env_steps"]) == (BRIEF.stages - 1, BRIEF.rows)
    assert summary["finished"] == newest["finished"]
    assert summary["evaluation_return"] == newest["evaluation"]["mean_return"]

    shown = penstock_json(bench, run, "show", run.name, cold=cold)
    assert [row["stage"] for row in shown["stages"]] == list(STAGES)
    assert shown["finished"] == newest["finished"]
    assert all(row["shard bytes"] > 0 and row["steps/s"] > 0 for row in shown["stages"])
    assert penstock_json(bench, run, "show", run.name, "--last", "1", cold=cold)["stages"] == shown["stages"][-1:]

    before = run.content()
    swept = penstock_json(bench, run, "gc", run.name, "--dry-run", cold=cold)
    assert swept["dry_run"] is True
    assert swept["objects"] == len(swept["names"]) > 0
    assert not any(name.startswith(("shards/", "commits/")) for name in swept["names"])
    assert run.content() == before

    arguments = ("evaluate", run.name, "--episodes", "5", "--key")
    evaluations = [
        bench.penstock(*arguments, key, "--store", run.url, "--json", cold=start)
        for key, start in (("1", cold), ("1", False), ("2", False))
    ]
    first, again, other = [json.loads(command.succeed()) for command in evaluations]
    for result in (first, again, other):
        del result["seconds"]
    assert first == again
    assert first["episodes"] == 5
    assert first["version"] == newest["version"]
    assert first != other
    # Other tests evaluate the shared run too, with other numbers of episodes.
    stored = [name for name in run.store.list("evaluations/") if name.endswith("-5.json")]
    assert len(stored) == len({"1", "2"})


def ask(api: str, path: str, body: dict[str, Any], method: str = "POST") -> Any:
    """Return the answer of Prefect's server; the request is repeated while its database is busy."""
    request = urllib.request.Request(
        f"{api}/{path}", data=json.dumps(body).encode(), headers={"Content-Type": "application/json"}, method=method
    )

    def answered() -> list[Any] | None:
        try:
            with urllib.request.urlopen(request, timeout=150) as answer:
                return [json.loads(answer.read() or b"null")]
        except urllib.error.HTTPError as error:
            if error.code != HTTPStatus.SERVICE_UNAVAILABLE:
                raise
            return None

    return wait_until(answered, f"an answer to {path}", poll_seconds=0.5)[0]


def test_prefect_shows_a_run_by_role_and_stage(prefect_api, references):
    """Prefect has one flow run, one task run per role and stage for any number of members, and four artifacts."""
    run = references.run(BRIEF)
    of_run = {"flow_runs": {"name": {"any_": [f"train {run.name}"]}}}
    flow_runs = ask(prefect_api, "flow_runs/filter", of_run)
    assert [flow_run["state_type"] for flow_run in flow_runs] == ["COMPLETED"]
    identity = {"flow_runs": {"id": {"any_": [flow_runs[0]["id"]]}}}

    task_runs = ask(prefect_api, "task_runs/filter", identity)
    expected = sorted(f"{role} stage {stage}" for role in ("act", "learn", "evaluate") for stage in STAGES)
    assert sorted(task_run["name"] for task_run in task_runs) == expected
    assert {task_run["state_type"] for task_run in task_runs} == {"COMPLETED"}

    prefix = f"{run.name}-"
    artifacts = {each["key"].removeprefix(prefix): each for each in ask(prefect_api, "artifacts/filter", identity)}
    assert artifacts.keys() == {"progress", "stages", "curve", "summary"}
    assert artifacts["progress"]["data"] == 100
    assert run.name in artifacts["summary"]["data"]
    assert [row["stage"] for row in json.loads(artifacts["stages"]["data"])] == [*reversed(STAGES)]
    drawn = base64.b64decode(artifacts["curve"]["data"].partition("base64,")[2].rstrip(")")).decode()
    assert drawn.count("<circle") >= BRIEF.stages

    roles = {task_run["id"]: task_run["name"].split()[0] for task_run in task_runs}
    logs = ask(prefect_api, "logs/filter", {"logs": {"flow_run_id": {"any_": [flow_runs[0]["id"]]}}})
    assert any("committed" in log["message"] for log in logs)
    members = [(roles[log["task_run_id"]], log["message"]) for log in logs if "-0: " in log["message"]]
    assert all(message.startswith(f"{role}-") for role, message in members)


def test_the_flow_loads_by_its_entrypoint_with_a_form():
    """Prefect finds the flow by file and name, and every field of its form has a title and a description."""
    flow = load_flow_from_entrypoint("penstock.flows.train.train")
    schema = flow.parameters.model_dump()
    assert set(schema["properties"]) == {"config", "if_exists"}
    definitions = schema["definitions"]
    for name, definition in definitions.items():
        for field, described in definition.get("properties", {}).items():
            shown = definitions[described["$ref"].rsplit("/", 1)[1]] if "$ref" in described else described
            assert shown.get("title"), f"{name}.{field} has no title"
            assert shown.get("description"), f"{name}.{field} has no description"
