"""`penstock serve` runs the deployments of `deploy/`: on schedules, on events, on request, cancelled and retried."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from penstock.flows.sweeps.grid import run_grid
from penstock.flows.sweeps.points import grid_points
from penstock.flows.sweeps.records import SweepRecords
from penstock.tasks.setup.config.loading import build_config, merge

from ...support.processes.commands import Command, wait_until
from ...support.stored.stored_run import StoredRun
from ..conftest import Bench
from .test_deployments import DEPLOYMENTS, DESCRIBED, GRID, SMALL
from .test_finished_run import ask

if TYPE_CHECKING:
    from collections.abc import Iterator

# Each flow run is a new process that imports Prefect and torch: nine of them take a minute.
pytestmark = pytest.mark.slow

SCHEDULED_SECONDS = 15


class Served:
    """`penstock serve` with small versions of the deployments, and requests to Prefect's server about them."""

    def __init__(self, api: str, store: str, process: Command) -> None:
        self.api, self.store, self.process = api, store, process
        self._started: dict[str, str] = {}
        wait_until(self._ready, lambda: f"deployments: {process.output}", poll_seconds=0.5)

    def _ready(self) -> bool:
        assert self.process.running, self.process.output
        served = ask(self.api, "deployments/filter", {"deployments": {"tags": {"all_": ["small"]}}})
        return {each["name"] for each in served} == DEPLOYMENTS.keys()

    def start(self, name: str, parameters: dict[str, Any] | None = None) -> str:
        """Start a deployment's flow run with the given parameters merged into its own, and return its id."""
        found = ask(self.api, "deployments/filter", {"deployments": {"name": {"any_": [name]}}})
        self._started[name] = self._create(found[0], merge(found[0]["parameters"], parameters or {}))
        return self._started[name]

    def start_with(self, name: str, parameters: dict[str, Any]) -> str:
        """Start a flow run as `prefect deployment run --param` does, which replaces whole parameters."""
        found = ask(self.api, "deployments/filter", {"deployments": {"name": {"any_": [name]}}})
        return self._create(found[0], found[0]["parameters"] | parameters)

    def _create(self, deployment: dict[str, Any], parameters: dict[str, Any]) -> str:
        answer = ask(self.api, f"deployments/{deployment['id']}/create_flow_run", {"parameters": parameters})
        return str(answer["id"])

    def set_state(self, flow_run: str, state: dict[str, Any]) -> None:
        """Set a state as the buttons of a flow run's page do."""
        answer = ask(self.api, f"flow_runs/{flow_run}/set_state", {"state": state})
        assert answer["status"] == "ACCEPT", answer

    def cancel(self, flow_run: str) -> None:
        """Cancel a flow run, and wait until Prefect's server reports it as cancelled."""
        self.set_state(flow_run, {"type": "CANCELLING"})

        def cancelled() -> bool:
            found = ask(self.api, f"flow_runs/{flow_run}", {}, "GET")
            assert found["state_type"] in {"CANCELLING", "CANCELLED"}, (found["state"], self.process.output)
            return bool(found["state_type"] == "CANCELLED")

        wait_until(cancelled, lambda: f"the end of what was cancelled: {self.process.output}", poll_seconds=0.5)

    def ended(self, name: str) -> dict[str, Any]:
        """Wait until a deployment's flow run is completed, and return it."""

        def completed() -> dict[str, Any] | None:
            (found,) = ask(self.api, "flow_runs/filter", {"flow_runs": {"id": {"any_": [self._started[name]]}}})
            assert found["state_type"] not in {"FAILED", "CRASHED", "CANCELLED"}, (found["state"], self.process.output)
            return found if found["state_type"] == "COMPLETED" else None

        return dict(wait_until(completed, lambda: f"{name}: {self.process.output}", poll_seconds=0.5))

    def of_deployment(self, name: str) -> list[dict[str, Any]]:
        """Return the completed flow runs of a deployment."""
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
        """Wait until the trained run has that many events, and return them; the server stores them in batches."""

        def stored() -> list[dict[str, Any]] | None:
            about = {"id": [f"penstock.run.{self.store}/nightly"]}
            body = {"filter": {"event": {"name": [name]}, "resource": about}}
            found = ask(self.api, "events/filter", body)["events"]
            return found if len(found) >= number else None

        return list(wait_until(stored, f"{number} times {name}", poll_seconds=0.5))


@pytest.fixture(scope="module")
def served(flow_environment, cluster, prefect_api, tmp_path_factory) -> Iterator[Served]:
    """Serve all deployments with small runs on the shared cluster and a schedule of seconds, and train a run."""
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


def test_a_run_emits_its_events(served):
    """Each commit and the snapshot published after it is one event, and so is a stalled run."""
    commits = StoredRun(served.store, "nightly").commits()
    committed, published = (
        served.events(f"penstock.{what}", len(commits)) for what in ("stage.committed", "snapshot.published")
    )
    assert [each["payload"]["env_steps"] for each in committed] == [commit["env_steps"] for commit in commits]
    assert [each["follows"] for each in published] == [each["id"] for each in committed]
    assert {each["resource"]["penstock.store"] for each in committed} == {served.store}
    assert min(each["payload"]["idle_seconds"] for each in served.events("penstock.run.stalled", 1)) >= 0.01


def test_a_published_snapshot_triggers_its_evaluation(served):
    """The event names the run and its store; the newest commit is evaluated, and none twice, with these episodes."""
    run = StoredRun(served.store, "nightly")
    stages = run.commits()
    newest = f"evaluations/{stages[-1]['version']:08d}-"
    wait_until(lambda: run.store.list(newest), "an evaluation of the newest commit", poll_seconds=0.5)
    assert 1 <= len(run.store.list("evaluations/")) <= len(stages)
    results = [json.loads(run.store.read(name)) for name in run.store.list("evaluations/")]
    assert {result["episodes"] for result in results} == {3}
    wait_until(lambda: len(served.of_deployment("evaluate")) >= len(stages), "evaluations", poll_seconds=0.5)
    assert {flow_run["name"] for flow_run in served.of_deployment("evaluate")} == {"evaluate nightly"}


def test_a_schedule_starts_garbage_collection(served):
    """The completed flow runs of `gc` were started by its schedule."""
    collected = served.of_deployment("gc")
    assert collected
    assert all(flow_run["auto_scheduled"] for flow_run in collected)


def test_resume_without_an_unfinished_run_completes(served):
    """A flow run that finds no unfinished run is completed, not failed."""
    flow_run = served.ended("resume")
    assert "no unfinished run" in flow_run["state"]["message"]


def test_a_replay_reads_the_run_in_its_parameters(served):
    """The replay of the deployment reads that run and finishes."""
    served.ended("replay")
    assert StoredRun(served.store, "clone").commits()[-1]["finished"]


def test_a_sweep_trains_each_point_once(served):
    """A sweep trains one run a point, named after its settings, and compares them; started again, it trains nothing."""
    of_sweep = {"flow_runs": {"id": {"any_": [served.ended("sweep")["id"]]}}}
    artifacts = ask(served.api, "artifacts/filter", of_sweep)
    assert sorted(each["type"] for each in artifacts) == ["markdown", "table"]  # the markdown is a picture
    (table,) = [json.loads(each["data"]) for each in artifacts if each["type"] == "table"]
    assert sorted(row["algorithm.learning_rate"] for row in table) == sorted(GRID["learning_rate"])
    assert [row["return"] for row in table] == sorted((row["return"] for row in table), reverse=True)
    of_points = {"flow_runs": {"tags": {"all_": ["rates"]}}}
    trained = ask(served.api, "flow_runs/filter", of_points)
    assert sorted(each["name"] for each in trained) == sorted(f"train {row['run']}" for row in table)
    config = build_config({**SMALL, "store": served.store})
    records = SweepRecords(served.store, "rates")
    assert run_grid("rates", records, grid_points("rates", GRID, config), 1, lambda rows: None) == table
    assert len(ask(served.api, "flow_runs/filter", of_points)) == len(GRID["learning_rate"])


def test_a_cancelled_run_is_retried_from_its_commits(served):
    """Cancelling ends the flow's process and releases its lease; a retry resumes from the commits and changes none.

    The given settings have no store and no cluster: both are the deployment's.
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
