"""What `deploy/` offers on Prefect's server is created, and runs: on schedules, on events and when it is started."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from prefect.flows import load_flow_from_entrypoint

import flows
from flows.serving import serve
from flows.sweeping import grid_points, train_points
from storage.errors import ConfigError
from tasks.config import build_config, merge

from .conftest import Bench
from .processes import Command, wait_until
from .stored import StoredRun
from .test_finished_run import ask

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(flows.__path__[0]).parent
DESCRIBED = yaml.safe_load((ROOT / "deploy/prefect.yaml").read_text())
DEPLOYMENTS = {each["name"]: each for each in DESCRIBED["deployments"]}
ASKED_FOR = {"evaluate": {"run": "nightly-1"}, "replay": {"config": {"source": {"runs": ["nightly-1"]}}}}
"""What has to be said where a flow run is started."""
SCHEDULED_SECONDS = 15
GRID = {"learning_rate": [0.01, 0.003]}
SMALL = {
    "name": "nightly",
    "environment": {"num_envs": 8, "envs_per_tile": 4},
    "algorithm": {"hidden": [8], "epochs": 1, "minibatches": 2},
    "schedule": {"round_steps": 16, "rounds_per_stage": 4, "max_stages": 1, "evaluation_episodes": 2},
}


@pytest.mark.parametrize("name", sorted(DEPLOYMENTS))
def test_a_deployment_starts_its_flow(name):
    """Its entrypoint is a flow that takes its parameters, with what is asked for."""
    deployment = DEPLOYMENTS[name]
    path, function = deployment["entrypoint"].split(":")
    flow = load_flow_from_entrypoint(f"{ROOT / path}:{function}")
    flow.validate_parameters(merge(deployment["parameters"], ASKED_FOR.get(name, {})))
    assert deployment["work_pool"]["name"] == "penstock"


def test_prefects_own_commands_take_the_files(flow_environment, prefect_api):
    """A work pool, all deployments and all automations are created; schedules and triggers are active."""
    environment = {**flow_environment, "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}

    def prefect(*arguments: str) -> str:
        command = [sys.executable, "-m", "prefect", *arguments]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    ask(prefect_api, "work_pools/", {"name": "penstock", "type": "process"})
    prefect("--no-prompt", "deploy", "--all", "--prefect-file", "deploy/prefect.yaml")
    prefect("automation", "create", "--from-file", "deploy/automations.yaml")
    pool = {"work_pools": {"name": {"any_": ["penstock"]}}}
    created = {each["name"]: each for each in ask(prefect_api, "deployments/filter", pool)}
    assert created.keys() == DEPLOYMENTS.keys()
    scheduled = {name: [each["schedule"]["cron"] for each in found["schedules"]] for name, found in created.items()}
    assert {name: crons for name, crons in scheduled.items() if crons} == {"train": ["0 2 * * *"], "gc": ["0 5 * * 0"]}
    assert all(each["active"] for found in created.values() for each in found["schedules"])
    automations = {each["name"]: each for each in ask(prefect_api, "automations/filter", {})}
    offered = yaml.safe_load((ROOT / "deploy/automations.yaml").read_text())["automations"]
    names = {trigger["name"] for each in DEPLOYMENTS.values() for trigger in each.get("triggers", [])}
    assert {each["name"] for each in offered} | names <= automations.keys()
    # The tests below have a run that stalls, and it shall go on.
    for each in offered:
        ask(prefect_api, f"automations/{automations[each['name']]['id']}", {}, "DELETE")


class Served:
    """`penstock serve` on a small version of the deployments, and what comes of it on Prefect's server."""

    def __init__(self, api: str, store: str, process: Command) -> None:
        self.api, self.store, self.process = api, store, process
        self._started: dict[str, str] = {}
        wait_until(self._ready, lambda: f"deployments: {process.output}", poll_seconds=0.5)

    def _ready(self) -> bool:
        assert self.process.running, self.process.output
        served = ask(self.api, "deployments/filter", {"deployments": {"tags": {"all_": ["small"]}}})
        return {each["name"] for each in served} == DEPLOYMENTS.keys()

    def start(self, name: str, parameters: dict[str, Any] | None = None) -> str:
        """Start a deployment's flow run, with its own parameters but for those that are given; its id."""
        found = ask(self.api, "deployments/filter", {"deployments": {"name": {"any_": [name]}}})
        self._started[name] = self._create(found[0], merge(found[0]["parameters"], parameters or {}))
        return self._started[name]

    def start_with(self, name: str, parameters: dict[str, Any]) -> str:
        """As `prefect deployment run --param`, which replaces parameters whole."""
        found = ask(self.api, "deployments/filter", {"deployments": {"name": {"any_": [name]}}})
        return self._create(found[0], found[0]["parameters"] | parameters)

    def _create(self, deployment: dict[str, Any], parameters: dict[str, Any]) -> str:
        answer = ask(self.api, f"deployments/{deployment['id']}/create_flow_run", {"parameters": parameters})
        return str(answer["id"])

    def set_state(self, flow_run: str, state: dict[str, Any]) -> None:
        """What the buttons of a flow run's page send."""
        answer = ask(self.api, f"flow_runs/{flow_run}/set_state", {"state": state})
        assert answer["status"] == "ACCEPT", answer

    def cancel(self, flow_run: str) -> None:
        """Cancel a flow run, and wait until Prefect's server says that it is."""
        self.set_state(flow_run, {"type": "CANCELLING"})

        def cancelled() -> bool:
            found = ask(self.api, f"flow_runs/{flow_run}", {}, "GET")
            assert found["state_type"] in {"CANCELLING", "CANCELLED"}, (found["state"], self.process.output)
            return bool(found["state_type"] == "CANCELLED")

        wait_until(cancelled, lambda: f"the end of what was cancelled: {self.process.output}", poll_seconds=0.5)

    def ended(self, name: str) -> dict[str, Any]:
        """The flow run of a deployment that was started, when it is completed."""

        def look() -> dict[str, Any] | None:
            (found,) = ask(self.api, "flow_runs/filter", {"flow_runs": {"id": {"any_": [self._started[name]]}}})
            assert found["state_type"] not in {"FAILED", "CRASHED", "CANCELLED"}, (found["state"], self.process.output)
            return found if found["state_type"] == "COMPLETED" else None

        return dict(wait_until(look, lambda: f"{name}: {self.process.output}", poll_seconds=0.5))

    def of_deployment(self, name: str) -> list[dict[str, Any]]:
        """Its flow runs that are completed."""
        body = {
            "deployments": {"name": {"any_": [name]}},
            "flow_runs": {"state": {"type": {"any_": ["COMPLETED"]}}},
        }
        return list(ask(self.api, "flow_runs/filter", body))

    def has_fired(self, name: str) -> None:
        """Wait until the schedule of a deployment has started it, and pause the deployment."""
        wait_until(lambda: self.of_deployment(name), f"a flow run of {name}'s schedule", poll_seconds=0.5)
        (found,) = ask(self.api, "deployments/filter", {"deployments": {"name": {"any_": [name]}}})
        ask(self.api, f"deployments/{found['id']}/pause_deployment", {})

    def events(self, name: str, number: int) -> list[dict[str, Any]]:
        """Those of the trained run, when so many are there; the server stores them in portions."""

        def look() -> list[dict[str, Any]] | None:
            about = {"id": [f"penstock.run.{self.store}/nightly"]}
            body = {"filter": {"event": {"name": [name]}, "resource": about}}
            found = ask(self.api, "events/filter", body)["events"]
            return found if len(found) >= number else None

        return list(wait_until(look, f"{number} times {name}", poll_seconds=0.5))


@pytest.fixture(scope="module")
def served(flow_environment, cluster, prefect_api, tmp_path_factory) -> Iterator[Served]:
    """All deployments, with small runs on the shared cluster and a schedule of seconds; a run is trained."""
    folder = tmp_path_factory.mktemp("served")
    bench = Bench(folder, flow_environment, cluster.address)
    described = copy.deepcopy(DESCRIBED)
    deployments = {each["name"]: each for each in described["deployments"]}
    config = {**SMALL, "cluster": {"scheduler": cluster.address, "lease_seconds": 6.0, "stall_seconds": 0.01}}
    deployments["train"]["parameters"]["config"] = config
    deployments["sweep"]["parameters"] |= {"config": config, "grid": GRID, "name": "rates", "runs_at_once": 2}
    deployments["replay"]["parameters"]["config"] |= {
        "name": "clone",
        "source": {"runs": ["nightly"]},
        "schedule": {"rounds_per_stage": 1, "max_stages": 1, "evaluation_episodes": 2, "shards_per_round": 4},
        "cluster": {"scheduler": cluster.address},
    }
    deployments["evaluate"]["parameters"]["episodes"] = 3
    # Those of the sweep and the replay would only take their time.
    deployments["evaluate"]["triggers"][0]["match"] = {"penstock.run": "nightly"}
    deployments["gc"]["schedules"] = [{"interval": SCHEDULED_SECONDS}]
    # So that no snapshot goes before it is evaluated.
    deployments["gc"]["parameters"]["keep_checkpoints"] = 100
    del deployments["train"]["schedules"]
    for each in described["deployments"]:
        each["tags"].append("small")
    (file := folder / "prefect.yaml").write_text(yaml.safe_dump(described))
    often = {"PREFECT_RUNNER_POLL_FREQUENCY": "1"}
    process = bench.penstock("serve", "--store", bench.store, "--file", str(file), cold=True, **often)
    try:
        found = Served(prefect_api, bench.store, process)
        found.start("train")
        found.ended("train")
        found.has_fired("gc")
        for name in ("resume", "replay", "sweep"):
            found.start(name)
        yield found
    finally:
        bench.close()


def test_a_run_says_what_it_does(served):
    """A stage committed, a snapshot published after it, and a run that did not move for too long, once each."""
    commits = StoredRun(served.store, "nightly").commits()
    committed, published = (
        served.events(f"penstock.{what}", len(commits)) for what in ("stage.committed", "snapshot.published")
    )
    assert [each["payload"]["env_steps"] for each in committed] == [commit["env_steps"] for commit in commits]
    assert [each["follows"] for each in published] == [each["id"] for each in committed]
    assert {each["resource"]["penstock.store"] for each in committed} == {served.store}
    assert min(each["payload"]["idle_seconds"] for each in served.events("penstock.run.stalled", 1)) >= 0.01


def test_a_snapshot_starts_its_evaluation(served):
    """Nobody but the event says which run and where; each commit is evaluated once, with the deployment's episodes."""
    run = StoredRun(served.store, "nightly")
    stages = range(len(run.commits()))
    wait_until(lambda: len(run.store.list("evaluations/")) == len(stages), "evaluations of all", poll_seconds=0.5)
    results = [json.loads(run.store.read(name)) for name in run.store.list("evaluations/")]
    assert {result["episodes"] for result in results} == {3}
    wait_until(lambda: len(served.of_deployment("evaluate")) >= len(stages), "evaluations", poll_seconds=0.5)
    assert {flow_run["name"] for flow_run in served.of_deployment("evaluate")} == {"evaluate nightly"}


def test_a_schedule_fires(served):
    """Garbage is collected without anybody asking."""
    collected = served.of_deployment("gc")
    assert collected
    assert all(flow_run["auto_scheduled"] for flow_run in collected)


def test_resuming_where_nothing_is_left_says_so(served):
    """A flow run that finds no unfinished run is completed, not failed."""
    flow_run = served.ended("resume")
    assert "no unfinished run" in flow_run["state"]["message"]


def test_a_replay_is_started(served):
    """From the run that the parameters name."""
    served.ended("replay")
    assert StoredRun(served.store, "clone").commits()[-1]["finished"]


def test_a_sweep_trains_each_point_once(served):
    """One run a point, two at once, named after its settings, compared in a table; started again, it trains nothing."""
    of_sweep = {"flow_runs": {"id": {"any_": [served.ended("sweep")["id"]]}}}
    (table,) = [json.loads(each["data"]) for each in ask(served.api, "artifacts/filter", of_sweep)]
    assert sorted(row["algorithm.learning_rate"] for row in table) == sorted(GRID["learning_rate"])
    assert [row["return"] for row in table] == sorted((row["return"] for row in table), reverse=True)
    of_points = {"flow_runs": {"tags": {"all_": ["rates"]}}}
    trained = ask(served.api, "flow_runs/filter", of_points)
    assert sorted(each["name"] for each in trained) == sorted(f"train {row['run']}" for row in table)
    assert max(each["start_time"] for each in trained) < min(each["end_time"] for each in trained)
    config = build_config({**SMALL, "store": served.store})
    assert train_points("rates", grid_points("rates", GRID, config), 1, lambda rows: None) == table
    assert len(ask(served.api, "flow_runs/filter", of_points)) == len(GRID["learning_rate"])


def test_a_run_is_cancelled_and_tried_again(served):
    """Cancelling ends the flow's process and frees its run; a retry goes on from the commits, and changes none.

    Its settings were typed, without a store or a cluster: both are the deployment's.
    """
    endless = merge(SMALL, {"name": "endless", "schedule": {"max_stages": 100_000}})
    assert not {"store", "cluster"} & endless.keys()
    flow_run = served.start_with("train", {"config": endless})
    run = StoredRun(served.store, "endless")
    wait_until(lambda: run.store.exists("commits/00000000.json"), "a commit", poll_seconds=0.5)
    served.cancel(flow_run)
    committed = run.commits()
    assert b'"released":true' in run.store.read("lease.json")
    served.set_state(flow_run, {"type": "SCHEDULED", "name": "AwaitingRetry"})
    wait_until(lambda: run.store.exists(f"commits/{len(committed):08d}.json"), "the next commit", poll_seconds=0.5)
    served.cancel(flow_run)
    assert run.commits()[: len(committed)] == committed


@pytest.mark.parametrize("text", ["a: [", "deployments: [1]", "deployments: [{name: train}]", "name: penstock"])
def test_a_file_without_deployments_is_refused(text, tmp_path):
    """Before a server is started for it."""
    (file := tmp_path / "prefect.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"prefect\.yaml"):
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
def test_a_grid_that_makes_no_sense_is_refused(name, grid, mentioned):
    """Before anything is trained, whichever of its points is wrong."""
    with pytest.raises(ConfigError, match=mentioned):
        grid_points(name, grid, build_config(SMALL))


def test_points_keep_their_names():
    """Runs are found by them: they follow from what is computed, not from where, and from no order."""
    config = build_config(SMALL)
    moved = build_config({**SMALL, "store": "elsewhere", "cluster": {"scheduler": "tcp://127.0.0.1:1"}})
    names = [point.config.name for point in grid_points("rates", {"seed": [1, 2]}, config)]
    assert [point.config.name for point in grid_points("rates", {"seed": [2, 1]}, moved)] == names[::-1]
    assert len(set(names)) == 2
    (other,) = grid_points("rates", {"algorithm.name": ["impala"]}, config)
    assert other.config.algorithm.name == "impala"
    assert other.config.name not in names
