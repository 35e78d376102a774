"""`penstock serve`: the deployments of `deploy/prefect.yaml` in one process, for a laptop: no work pool, no worker."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

import flows
from flows.server import PrefectServer, require_prefect
from storage.errors import ConfigError, PenstockError
from storage.store import open_store

if TYPE_CHECKING:
    from collections.abc import Callable

    from prefect.deployments.runner import RunnerDeployment
    from prefect.schedules import Schedule

_ROOT = Path(flows.__path__[0]).parent
_INSTALLED = Path(flows.__path__[0]) / "prefect.yaml"
PREFECT_FILE = _INSTALLED if _INSTALLED.exists() else _ROOT / "deploy" / "prefect.yaml"
"""In a wheel a copy of the file of `deploy`, which is not installed."""
_NEEDED = {"name", "entrypoint"}


def serve(store: str | None, path: Path, port: int, note: Callable[[str], None]) -> None:
    """Serve the deployments until Ctrl-C, on Prefect's server at `PREFECT_API_URL` or on one that is started.

    Raises:
        ConfigError: the file can't be read, or describes no deployments.
        PenstockError: nobody answers at `PREFECT_API_URL`, or the server does not start.
    """
    described = [_with_stores(each, store) for each in _read(path)]
    # Prefect copies the folder that a flow run's deployment names to the one that it starts in, unless they are one.
    os.chdir(_ROOT)
    # Each flow run is a process of its own, and finds these in its environment.
    os.environ.setdefault("DO_NOT_TRACK", "1")
    os.environ.setdefault("PREFECT_LOGGING_EXTRA_LOGGERS", "flows,tasks,storage")
    if "PREFECT_API_URL" in os.environ:
        require_prefect(os.environ["PREFECT_API_URL"])
        _serve(described, note)
        return
    with PrefectServer(port) as server:
        os.environ["PREFECT_API_URL"] = server.api_url
        server.wait_ready()
        note(f"Prefect's UI: {server.ui_url}")
        _serve(described, note)


def _serve(described: list[dict[str, Any]], note: Callable[[str], None]) -> None:
    import prefect
    from prefect.exceptions import MissingFlowError, PrefectHTTPStatusError

    deployments = []
    for each in described:
        try:
            deployments.append(_deployment(each))
        except (OSError, AttributeError, KeyError, ValueError, MissingFlowError) as error:
            raise ConfigError(f"--file: deployment '{each['name']}' can't be served: {error!r}; correct it") from error
    note(f"serving {', '.join(each.name for each in deployments)} until Ctrl-C")
    try:
        prefect.serve(*deployments, print_starting_message=False)
    except PrefectHTTPStatusError as error:
        said = error.response.text
        raise PenstockError(f"Prefect's server refused a deployment: {said[:500]}; correct it in --file") from error


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        described = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"--file {path}: can't be read as deployments: {error}") from error
    found = described.get("deployments") if isinstance(described, dict) else None
    if not isinstance(found, list) or not all(isinstance(each, dict) and each.keys() >= _NEEDED for each in found):
        raise ConfigError(
            f"--file {path}: describes no deployments, expected `deployments`, each with name and entrypoint, as in "
            f"deploy/prefect.yaml"
        )
    return found


def _deployment(described: dict[str, Any]) -> RunnerDeployment:
    from prefect.client.schemas.objects import ConcurrencyLimitConfig
    from prefect.deployments.runner import RunnerDeployment
    from prefect.events import DeploymentTriggerTypes
    from prefect.runner.storage import LocalStorage
    from pydantic import TypeAdapter

    name = described["name"]
    triggers = [{"name": f"{name} {number}", **each} for number, each in enumerate(described.get("triggers", []))]
    known = TypeAdapter(list[DeploymentTriggerTypes])
    limit = described.get("concurrency_limit")
    deployment = RunnerDeployment.from_entrypoint(
        f"{_ROOT}/{described['entrypoint']}",
        name=name,
        description=described.get("description"),
        tags=described.get("tags"),
        parameters=described["parameters"],
        schedules=[_schedule(number, each) for number, each in enumerate(described.get("schedules", []))],
        triggers=[*known.validate_python(triggers)],
        concurrency_limit=ConcurrencyLimitConfig.model_validate(limit) if limit else None,
        # Otherwise it stays as it was when the last process that served it ended: paused.
        paused=False,
    )
    # Said anew with each start; of a deployment that `prefect deploy` made, Prefect would otherwise lose the place.
    return deployment.model_copy(update={"storage": LocalStorage(str(_ROOT)), "entrypoint": described["entrypoint"]})


def _with_stores(described: dict[str, Any], store: str | None) -> dict[str, Any]:
    """A deployment with another store, or with the whole path of its own, since its flow runs start elsewhere."""
    triggers = []
    for trigger in described.get("triggers", []):
        parameters = trigger.get("parameters", {})
        triggers.append({**trigger, "parameters": _with_store(parameters, store)} if "store" in parameters else trigger)
    return {**described, "parameters": _with_store(described.get("parameters", {}), store), "triggers": triggers}


def _with_store(parameters: dict[str, Any], store: str | None) -> dict[str, Any]:
    table = parameters.get("config", parameters)
    named = table.get("store", "runs")
    placed = {**table, "store": named if "{{" in named else open_store(store or named).url}
    return {**parameters, "config": placed} if "config" in parameters else placed


def _schedule(number: int, described: dict[str, Any]) -> Schedule:
    from prefect.schedules import Cron, Interval

    known = {name: value for name, value in described.items() if name in {"timezone", "active", "parameters", "slug"}}
    # Without one, a deployment that is there already can't be given its schedules again.
    known.setdefault("slug", f"schedule-{number}")
    if "cron" in described:
        return Cron(described["cron"], **known)
    return Interval(timedelta(seconds=described["interval"]), **known)
