"""A real MLflow server has every stage once, with settings, status and artifacts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from penstock.flows.observers.callbacks.delivery import Delivery
from penstock.flows.observers.callbacks.records import run_end, run_start, stage_record
from penstock.flows.observers.tracking.mlflow import MlflowTracker
from penstock.flows.observers.tracking.outcome import Outcome, OutcomeMaker

from ....support.services.mlflow_server import MlflowServer
from ....support.services.own_environment import NotInstalledError
from ....support.stored.committed_run import CommittedRun

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    try:
        server = MlflowServer(tmp_path_factory.mktemp("mlflow"))
    except NotInstalledError as error:
        pytest.skip(str(error))
    with server:
        yield server


def tracker(server: MlflowServer) -> MlflowTracker:
    return MlflowTracker("mlflow", OutcomeMaker(60.0), server.url)


def ask(server: MlflowServer, method: str, **body: Any) -> dict[str, Any]:
    response = httpx.post(f"{server.url}/api/2.0/mlflow/{method}", json=body, timeout=150)
    response.raise_for_status()
    return dict(response.json())


def stored(server: MlflowServer, run: CommittedRun) -> tuple[dict[str, Any], list[tuple[int, float]]]:
    """Return the only run with the id, and the steps and values of the curve of stages."""
    (experiment,) = ask(server, "experiments/search", max_results=10, filter="name = 'penstock'")["experiments"]
    filter_ = f"tags.`penstock.run_id` = '{run_start(run.folder, None).id}'"
    (found,) = ask(server, "runs/search", experiment_ids=[experiment["experiment_id"]], filter=filter_)["runs"]
    of = {"run_id": found["info"]["run_id"], "metric_key": "progress/stage"}
    answer = httpx.get(f"{server.url}/api/2.0/mlflow/metrics/get-history", params=of, timeout=150).json()
    return found, [(int(one["step"]), one["value"]) for one in answer.get("metrics", [])]


def test_a_resumed_run_continues_the_same_record(server: MlflowServer, run: CommittedRun, drive):
    """Stages that the server missed while it was gone are read from the store; nothing is sent twice."""
    drive(tracker(server), 1.0, None)
    found, curve = stored(server, run)
    assert curve == [(100, 0.0), (200, 1.0)]
    assert found["info"]["status"] == "KILLED"
    assert {"key": "schedule.lag", "value": "0"} in found["data"]["params"]
    with Delivery([tracker(server)], 120.0) as delivery:
        server.stop()
        delivery.begin(run.folder, run.newest)
        ((commit, timings),) = run.commit(3.0)
        delivery.stage(commit, timings)
        server.start()
        ((commit, timings),) = run.commit(4.0)
        delivery.stage(commit, timings)
    found, curve = stored(server, run)
    assert curve == [(100, 0.0), (200, 1.0), (300, 2.0), (400, 3.0)]
    assert found["info"]["run_name"] == "small"


def test_a_diagnostic_of_any_name_keeps_no_stage_out_of_the_record(server: MlflowServer, tmp_path: Path):
    """MLflow refuses a whole request for one name; an algorithm of one's own has any."""
    one, run = tracker(server), CommittedRun(tmp_path, created="2026-11-25")
    one.on_run_start(run_start(run.folder, None))
    ((commit, timings),) = run.commit(1.0)
    record = stage_record("small", commit, timings)
    one.on_stage(replace(record, metrics={**record.metrics, "kl (approx), %": 0.5}))
    found, curve = stored(server, run)
    one._client.close()
    assert curve == [(100, 0.0)]
    assert 0.5 in [each["value"] for each in found["data"]["metrics"] if each["key"].endswith("kl _approx__ _")]


def test_report_and_clip_are_artifacts(server: MlflowServer, run: CommittedRun):
    """They have the bytes that were sent."""
    one = tracker(server)
    start = run_start(run.folder, None)
    one.on_run_start(start)
    one.add_outcome(Outcome(b"<html></html>", b"GIF89a"))
    one.on_run_end(run_end(start, None, None))
    found, _ = stored(server, run)
    of = {"run_id": found["info"]["run_id"]}
    files = httpx.get(f"{server.url}/api/2.0/mlflow/artifacts/list", params=of, timeout=150).json()["files"]
    assert {file["path"]: file["file_size"] for file in files} == {"report.html": 13, "clip.gif": 6}
