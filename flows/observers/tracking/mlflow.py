"""Sends a run's curves to an MLflow server, over its REST API.

MLflow's own client (3.16, and `mlflow-skinny`) can't be installed next to the versions that Penstock is locked to; the
requests used here are the documented ones of `api/2.0/mlflow`, which servers of MLflow 2 and 3 answer.
"""

from __future__ import annotations

import json
import os
import re
import time
from typing import TYPE_CHECKING, Any

import httpx

from penstock.flows.observers.tracking.tracker import Tracker
from penstock.flows.report.scalars import STAGE_TAG, stage_scalars
from penstock.flows.settings.listing import flat_settings
from penstock.storage.errors import PenstockError
from penstock.storage.stores.open import without_password

if TYPE_CHECKING:
    from penstock.flows.observers.callbacks.records import RunEnd, RunStart, StageRecord
    from penstock.flows.observers.tracking.outcome import Outcome, OutcomeMaker

_EXPERIMENT = "penstock"
_TAG = "penstock.run_id"
_TIMEOUT_SECONDS = 10.0
_PARAMETERS_AT_ONCE = 100
_PARAMETER_CHARACTERS = 500
_NOT_IN_KEYS = re.compile(r"[^\w\-. :/]")
_PROXIED = "mlflow-artifacts:"


class MlflowTracker(Tracker):
    """Sends the run as the MLflow run with its id as a tag; the step of all curves is env_steps.

    The experiment is that of MLFLOW_EXPERIMENT_NAME, otherwise `penstock`. MLFLOW_TRACKING_TOKEN, or
    MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, authenticate.
    """

    def __init__(self, name: str, outcomes: OutcomeMaker, address: str) -> None:
        super().__init__(name, outcomes)
        self._address = address.rstrip("/")
        token, user = os.environ.get("MLFLOW_TRACKING_TOKEN"), os.environ.get("MLFLOW_TRACKING_USERNAME")
        self._client = httpx.Client(
            timeout=_TIMEOUT_SECONDS,
            headers={"Authorization": f"Bearer {token}"} if token else {},
            auth=(user, os.environ.get("MLFLOW_TRACKING_PASSWORD", "")) if user and not token else None,
        )
        self._run_id = ""
        self._artifacts = ""
        self._ended_at = 0.0

    def open(self, start: RunStart) -> int:
        """Find the MLflow run with the run's id, or create it with the settings as parameters."""
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", _EXPERIMENT)
        experiment = self._experiment(name)
        query = {"experiment_ids": [experiment], "filter": f"tags.`{_TAG}` = '{start.id}'", "max_results": 1}
        found = self._post("runs/search", query).get("runs") or []
        if found:
            run = found[0]
            self._post("runs/update", {"run_id": run["info"]["run_id"], "status": "RUNNING"})
        else:
            tags = {_TAG: start.id, "penstock.store": without_password(start.store), "mlflow.source.name": "penstock"}
            run = self._post(
                "runs/create",
                {
                    "experiment_id": experiment,
                    "run_name": start.run,
                    "start_time": _milliseconds(time.time()),
                    "tags": [{"key": key, "value": value} for key, value in tags.items()],
                },
            )["run"]
        self._run_id, self._artifacts = run["info"]["run_id"], run["info"].get("artifact_uri", "")
        parameters = [{"key": key, "value": _text(value)} for key, value in flat_settings(start.settings).items()]
        for at in range(0, len(parameters), _PARAMETERS_AT_ONCE):
            some = parameters[at : at + _PARAMETERS_AT_ONCE]
            self._post("runs/log-batch", {"run_id": self._run_id, "params": some})
        latest = {one["key"]: one["value"] for one in run.get("data", {}).get("metrics", [])}
        return int(latest[STAGE_TAG]) + 1 if STAGE_TAG in latest else 0

    def add(self, record: StageRecord) -> None:
        """Send the values of a stage in one request, which the server stores whole or not at all."""
        self._ended_at = record.ended_at or self._ended_at or time.time()
        at = {"timestamp": _milliseconds(self._ended_at), "step": record.env_steps}
        metrics = [{"key": _key(tag), "value": value, **at} for tag, value in stage_scalars(record).items()]
        self._post("runs/log-batch", {"run_id": self._run_id, "metrics": metrics})

    def add_outcome(self, outcome: Outcome) -> None:
        """Send the clip and the report as artifacts, where the server takes them."""
        if not self._artifacts.startswith(_PROXIED):
            raise PenstockError(
                f"the MLflow server keeps artifacts at {without_password(self._artifacts)} and does not take them "
                f"itself; start it with --serve-artifacts to have the report there"
            )
        folder = self._artifacts.removeprefix(_PROXIED).lstrip("/")
        files = {"report.html": outcome.report, "clip.gif": outcome.clip}
        for name, data in files.items():
            if data is not None:
                where = f"{self._address}/api/2.0/mlflow-artifacts/artifacts/{folder}/{name}"
                self._answer(self._client.put(where, content=data))

    def close(self, end: RunEnd) -> None:
        """Set the status: finished, failed, or killed where the run can be resumed."""
        status = "FINISHED" if end.finished else "FAILED" if end.error else "KILLED"
        ended = {"status": status, "end_time": _milliseconds(self._ended_at or time.time())}
        self._post("runs/update", {"run_id": self._run_id, **ended})

    def on_run_end(self, end: RunEnd) -> None:
        """Add what the record lacks, and close it and the connections."""
        try:
            super().on_run_end(end)
        finally:
            self._client.close()

    def _experiment(self, name: str) -> str:
        response = self._client.get(
            f"{self._address}/api/2.0/mlflow/experiments/get-by-name", params={"experiment_name": name}
        )
        if response.status_code != httpx.codes.NOT_FOUND:
            return str(self._answer(response)["experiment"]["experiment_id"])
        return str(self._post("experiments/create", {"name": name})["experiment_id"])

    def _post(self, method: str, body: dict[str, Any]) -> dict[str, Any]:
        return self._answer(self._client.post(f"{self._address}/api/2.0/mlflow/{method}", json=body))

    def _answer(self, response: httpx.Response) -> dict[str, Any]:
        if response.is_success:
            answer = response.json() if response.content else {}
            return answer if isinstance(answer, dict) else {}
        try:
            reason = str(response.json().get("message", ""))
        except ValueError:
            reason = response.text
        raise PenstockError(
            f"the MLflow server at {without_password(self._address)} answered {response.status_code}: "
            f"{' '.join(reason.split())[:200]}"
        )


def _key(tag: str) -> str:
    """Return a tag as MLflow takes it: an algorithm's own diagnostics have any names."""
    return _NOT_IN_KEYS.sub("_", tag)


def _text(value: object) -> str:
    return (value if isinstance(value, str) else json.dumps(value))[:_PARAMETER_CHARACTERS]


def _milliseconds(seconds: float) -> int:
    return round(1000 * seconds)
