"""The deployments of `deploy/` name flows that take their parameters, and a sweep's grid is checked before it runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from prefect.flows import load_flow_from_entrypoint

from penstock import flows
from penstock.flows.cli.serve import serve
from penstock.flows.sweeps.points import grid_points
from penstock.storage.errors import ConfigError
from penstock.tasks.setup.config.loading import build_config, merge

from .test_finished_run import ask

ROOT = Path(flows.__path__[0]).resolve().parent
DESCRIBED = yaml.safe_load((ROOT / "deploy/prefect.yaml").read_text())
DEPLOYMENTS = {each["name"]: each for each in DESCRIBED["deployments"]}
ASKED_FOR = {"evaluate": {"run": "nightly-1"}, "replay": {"config": {"source": {"runs": ["nightly-1"]}}}}
"""The parameters without a default."""
GRID = {"learning_rate": [0.01, 0.003]}
SMALL = {
    "name": "nightly",
    "environment": {"num_envs": 8, "envs_per_tile": 4},
    "algorithm": {"hidden": [8], "epochs": 1, "minibatches": 2},
    "schedule": {"round_steps": 16, "rounds_per_stage": 4, "max_stages": 1, "evaluation_episodes": 2},
}


def remove_deployments(api: str) -> None:
    """Delete all automations and the deployments of the work pool.

    Left alone, they act on every other test of this server: they evaluate each snapshot and pause each stalled run.
    """
    for each in ask(api, "automations/filter", {}):
        ask(api, f"automations/{each['id']}", {}, "DELETE")
    for each in ask(api, "deployments/filter", {"work_pools": {"name": {"any_": ["penstock"]}}}):
        ask(api, f"deployments/{each['id']}", {}, "DELETE")


@pytest.mark.parametrize("name", sorted(DEPLOYMENTS))
def test_a_deployment_starts_its_flow(name):
    """The entrypoint of each deployment is a flow that accepts its parameters."""
    deployment = DEPLOYMENTS[name]
    flow = load_flow_from_entrypoint(deployment["entrypoint"])
    flow.validate_parameters(merge(deployment["parameters"], ASKED_FOR.get(name, {})))
    assert deployment["work_pool"]["name"] == "penstock"


@pytest.mark.slow
def test_prefects_commands_create_all_deployments(flow_environment, prefect_api):
    """A work pool, all deployments and all automations are created; schedules and triggers are active."""
    environment = {**flow_environment, "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}

    def prefect(*arguments: str) -> str:
        command = [sys.executable, "-m", "prefect", *arguments]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    try:
        ask(prefect_api, "work_pools/", {"name": "penstock", "type": "process"})
        prefect("--no-prompt", "deploy", "--all", "--prefect-file", "deploy/prefect.yaml")
        prefect("automation", "create", "--from-file", "deploy/automations.yaml")
        pool = {"work_pools": {"name": {"any_": ["penstock"]}}}
        created = {each["name"]: each for each in ask(prefect_api, "deployments/filter", pool)}
        assert created.keys() == DEPLOYMENTS.keys()
        scheduled = {name: [each["schedule"]["cron"] for each in found["schedules"]] for name, found in created.items()}
        assert {name: crons for name, crons in scheduled.items() if crons} == {
            "train": ["0 2 * * *"],
            "gc": ["0 5 * * 0"],
            "verify": ["0 7 * * 0"],
        }
        assert all(each["active"] for found in created.values() for each in found["schedules"])
        automations = {each["name"]: each for each in ask(prefect_api, "automations/filter", {})}
        offered = yaml.safe_load((ROOT / "deploy/automations.yaml").read_text())["automations"]
        names = {trigger["name"] for each in DEPLOYMENTS.values() for trigger in each.get("triggers", [])}
        assert {each["name"] for each in offered} | names <= automations.keys()
    finally:
        remove_deployments(prefect_api)


@pytest.mark.parametrize("text", ["a: [", "deployments: [1]", "deployments: [{name: train}]", "name: penstock"])
def test_a_file_without_deployments_is_refused(text, tmp_path):
    """The error comes before a server is started."""
    (file := tmp_path / "prefect.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"prefect\.yaml"):
        serve(None, file, 0, pytest.fail)


GC = {"name": "x1", "entrypoint": "penstock.flows.collect_garbage.gc"}


@pytest.mark.parametrize(
    ("deployments", "said"),
    [
        ([{**GC, "schedule": [{"cron": "0 5 * * 0"}]}], r"'x1' has 'schedule', expected some of name, .*schedules"),
        ([{**GC, "schedules": [{"crone": "0 5 * * 0"}]}], r"'x1' has the schedule \{'crone'.*expected some of cron"),
        ([{**GC, "schedules": [{"timezone": "UTC"}]}], r"expected cron, or interval in seconds"),
        ([{**GC, "schedules": {"cron": "0 5 * * 0"}}], r"schedules is \{.*expected a list"),
        ([{**GC, "parameters": ["s"]}], r"parameters is \['s'\], expected a dict"),
        ([{**GC, "parameters": {"store": 5}}], r"expected a table with a text"),
        ([{**GC, "parameters": {"config": ["x"]}}], r"expected a table with a text"),
        ([GC, GC], r"'x1' is there twice"),
    ],
)
def test_a_mistake_in_a_file_of_deployments_is_refused(deployments, said, tmp_path):
    """By the deployment's name, before a server is started: what nothing reads would be served without it."""
    (file := tmp_path / "prefect.yaml").write_text(yaml.safe_dump({"deployments": deployments}))
    with pytest.raises(ConfigError, match=said):
        serve(None, file, 0, pytest.fail)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"parameters": {"store": "s", "keepcheckpoints": 2}},
            r"its flow has no parameter keepcheckpoints; it has store",
        ),
        ({"entrypoint": "penstock.flows.nothing.here"}, r"'x1' can't be served"),
        ({"entrypoint": 5}, r"'x1' can't be served"),
        ({"concurrency_limit": {"limit": "one"}}, r"'x1' can't be served: [^\n]*limit[^\n]*$"),
        ({"schedules": [{"interval": "daily"}]}, r"'x1' can't be served: TypeError"),
    ],
)
def test_a_deployment_that_prefect_can_not_make_is_one_line(changes, said, tmp_path, monkeypatch):
    """Before any is registered; empty entries are none."""
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")
    monkeypatch.setattr("penstock.flows.cli.serve.require_prefect", lambda _: None)
    described = {**GC, "parameters": None, "triggers": None, **changes}
    (file := tmp_path / "prefect.yaml").write_text(yaml.safe_dump({"deployments": [described]}))
    with pytest.raises(ConfigError, match=said):
        serve(None, file, 0, pytest.fail)


@pytest.mark.parametrize(
    ("name", "grid", "mentioned"),
    [
        ("rates", {"learning_rats": [1]}, "learning_rate"),
        ("rates", {"learning_rate": []}, "no values"),
        ("rates", {"learning_rate": [0.1, 0.1]}, "more than once"),
        ("rates", {"store": ["a"]}, "can't be varied"),
        ("rates", {"algorithm.learning_rate": [0.1, -1]}, "-1"),
        ("Rates", {"seed": [1]}, "name a sweep"),
    ],
)
def test_an_invalid_grid_is_refused(name, grid, mentioned):
    """The error comes before any run starts, whichever point is wrong."""
    with pytest.raises(ConfigError, match=mentioned):
        grid_points(name, grid, build_config(SMALL))


def test_names_of_points_depend_only_on_what_is_computed():
    """Names follow from the settings of a run, not from its store, its cluster or the order of the grid."""
    config = build_config(SMALL)
    moved = build_config({**SMALL, "store": "elsewhere", "cluster": {"scheduler": "tcp://127.0.0.1:1"}})
    names = [point.config.name for point in grid_points("rates", {"seed": [1, 2]}, config)]
    assert [point.config.name for point in grid_points("rates", {"seed": [2, 1]}, moved)] == names[::-1]
    assert len(set(names)) == 2
    (other,) = grid_points("rates", {"algorithm.name": ["impala"]}, config)
    assert other.config.algorithm.name == "impala"
    assert other.config.name not in names


OWN_FLOW = """from prefect import flow


@flow
def counted(n: int = 0) -> int:
    return n
"""


@pytest.mark.slow
def test_what_prefects_server_refuses_is_one_line(flow_environment, prefect_api, tmp_path):
    """With the deployment's name and the setting; a flow of one's own, which has no store, is taken before that."""
    (tmp_path / "own.py").write_text(OWN_FLOW)
    wrong = {"config": {"environment": {"num_envs": "many"}}}
    described = [
        {"name": "own", "entrypoint": "own.py:counted", "parameters": {"n": 3}},
        {"name": "wrong", "entrypoint": "penstock.flows.train.train", "parameters": wrong},
    ]
    (tmp_path / "prefect.yaml").write_text(yaml.safe_dump({"deployments": described}))
    program = "from penstock.flows.cli.main import main; main()"
    command = [sys.executable, "-c", program, "serve", "--file", "prefect.yaml"]
    environment = {**os.environ, **flow_environment}
    try:
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        assert "error: Prefect's server refused the deployment 'wrong'" in done.stderr
        assert "config.environment.num_envs" in done.stderr
        (own,) = ask(prefect_api, "deployments/filter", {"deployments": {"name": {"any_": ["own"]}}})
        assert own["parameters"] == {"n": 3}
    finally:
        remove_deployments(prefect_api)
