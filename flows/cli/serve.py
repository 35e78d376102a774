"""`penstock serve`: serves the deployments of `deploy/prefect.yaml` in one process, without work pool and worker."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from penstock import flows
from penstock.flows.api.left_flow_runs import end_left_flow_runs, only_serving
from penstock.flows.api.prefect_answers import require_prefect
from penstock.flows.api.prefect_server import PrefectServer
from penstock.flows.api.prefect_watch import kept_answering
from penstock.flows.display.amounts import amount
from penstock.storage.errors import ConfigError, PenstockError
from penstock.storage.runs.run import USUAL_STORE
from penstock.storage.stores.open import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from prefect.deployments.runner import RunnerDeployment
    from prefect.schedules import Schedule

_FLOWS = Path(flows.__path__[0]).resolve()
_INSTALLED = _FLOWS / "prefect.yaml"
PREFECT_FILE = _INSTALLED if _INSTALLED.exists() else _FLOWS.parent / "deploy" / "prefect.yaml"
"""Default description of the deployments; a wheel holds a copy of the file of `deploy`."""
CONSOLE_CLASS = ("PREFECT_LOGGING_HANDLERS_CONSOLE_CLASS", "penstock.flows.display.served_console.ServedConsole")
"""The variable by which Prefect prints log records with another class than its own, and that class."""
_NEEDED = {"name", "entrypoint"}
_KNOWN = (
    *("name", "entrypoint", "description", "tags", "parameters", "schedules", "triggers", "concurrency_limit"),
    *("work_pool", "version", "version_type", "flow_name", "enforce_parameter_schema", "build", "push", "pull"),
)
"""Entries of a deployment; the last ones are for `prefect deploy` alone."""
_OF_SCHEDULE = ("cron", "interval", "timezone", "active", "parameters", "slug")

_Described = dict[str, Any]
"""A deployment as YAML describes it."""


def serve(store: str | None, path: Path, port: int, note: Callable[[str], None]) -> None:
    """Serve the deployments until Ctrl-C, on Prefect's server at `PREFECT_API_URL` or on one that is started.

    Raises:
        ConfigError: the file can't be read, or describes no deployments.
        PenstockError: no server answers at `PREFECT_API_URL`, or the server does not start.
    """
    described = [_with_stores(each, store) for each in read_deployments(path)]
    # Each flow run is its own process, and inherits these.
    os.environ.setdefault("DO_NOT_TRACK", "1")
    os.environ.setdefault("PREFECT_LOGGING_EXTRA_LOGGERS", "penstock")
    os.environ.setdefault("PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW", "ignore")
    os.environ.setdefault(*CONSOLE_CLASS)
    if "PREFECT_API_URL" in os.environ:
        require_prefect(os.environ["PREFECT_API_URL"])
        _serve(described, note, ends_left=False)
        return
    with PrefectServer(port) as server:
        server.direct_here()
        server.wait_ready()
        note(f"Prefect's UI: {server.sign_in}")
        with kept_answering(server), only_serving(server.home) as is_only:
            _serve(described, note, ends_left=is_only)


def _serve(described: list[_Described], note: Callable[[str], None], *, ends_left: bool) -> None:
    from prefect.exceptions import MissingFlowError, TerminationSignal

    # A filter, since Prefect sets levels anew when it starts.
    logging.getLogger("prefect.runner.state_proposer").addFilter(_is_news)
    deployments = []
    for each in described:
        try:
            deployments.append(_deployment(each))
        except (OSError, ImportError, AttributeError, KeyError, TypeError, ValueError, MissingFlowError) as error:
            raise ConfigError(
                f"--file: deployment '{each['name']}' can't be served: {' '.join(repr(error).split())}; correct it"
            ) from error
    # The runner has paused its deployments.
    with suppress(KeyboardInterrupt, TerminationSignal, asyncio.CancelledError):
        asyncio.run(_register_and_run(deployments, note, ends_left=ends_left))


async def _register_and_run(
    deployments: list[RunnerDeployment], note: Callable[[str], None], *, ends_left: bool
) -> None:
    """Do what `prefect.serve` does, and say that it serves only once every deployment can be found on the server."""
    from prefect.deployments.runner import DeploymentApplyError
    from prefect.exceptions import PrefectHTTPStatusError
    from prefect.runner import Runner

    # Deployments limit their own flow runs. A limit of the runner counts those that wait in one deployment's queue, and
    # would keep the others' from starting.
    runner = Runner(pause_on_shutdown=True, limit=None)
    runner.handle_sigterm = _ending(asyncio.current_task(), asyncio.get_running_loop())  # type: ignore[method-assign]
    ids = []
    for each in deployments:
        try:
            ids.append(await runner.aadd_deployment(each))
        except (PrefectHTTPStatusError, DeploymentApplyError) as error:
            answer = getattr(error if isinstance(error, PrefectHTTPStatusError) else error.__cause__, "response", None)
            said = " ".join((str(error) if answer is None else answer.text).split())
            raise PenstockError(
                f"Prefect's server refused the deployment '{each.name}': {said[:500]}; correct it in --file"
            ) from error
    if ends_left and (number := await end_left_flow_runs(ids)):
        note(f"{amount(number, 'flow runs')} that an earlier `penstock serve` left have crashed")
    note(f"serving {', '.join(each.name for each in deployments)} until Ctrl-C")
    await runner.start()


def _ending(serving: asyncio.Task[Any] | None, loop: asyncio.AbstractEventLoop) -> Callable[..., None]:
    """Return a handler of SIGTERM that does what asyncio does at Ctrl-C.

    Prefect's own ends with a traceback, and leaves the deployments as they are. SIGINT would not do: a shell without
    job control lets what it starts by `&` ignore it.
    """

    def end(*_: object) -> None:
        if serving is not None and not loop.is_closed():
            serving.cancel()
            loop.call_soon_threadsafe(lambda: None)  # else the loop may sleep on

    return end


def _is_news(record: logging.LogRecord) -> bool:
    """Leave out what is said every ten seconds for each flow run that waits in a deployment's queue."""
    return not record.getMessage().startswith("Aborted submission")


def read_deployments(path: Path) -> list[_Described]:
    """Return the deployments that a file describes, without entries that are empty.

    Raises:
        ConfigError: it can't be read, describes none, or has an entry that nothing reads; the message names it.
    """
    try:
        described = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        said = " ".join(str(error).split())  # YAML's has a line for each part of what was found
        raise ConfigError(f"--file {path}: can't be read as deployments: {said}") from error
    found = described.get("deployments") if isinstance(described, dict) else None
    if not isinstance(found, list) or not all(isinstance(each, dict) and each.keys() >= _NEEDED for each in found):
        raise ConfigError(
            f"--file {path}: describes no deployments, expected `deployments`, each with name and entrypoint, as in "
            f"deploy/prefect.yaml"
        )
    names = [(each["entrypoint"], each["name"]) for each in found]
    for each in found:
        label = f"--file {path}: deployment '{each['name']}'"
        limit = each.get("concurrency_limit")
        if limit is not None and not (isinstance(limit, dict) or (type(limit) is int and limit > 0)):
            raise ConfigError(f"{label}: concurrency_limit is {limit!r}, expected a number of 1 or more, or a dict")
        kinds = {"parameters": dict, "schedules": list, "triggers": list}
        for entry, kind in kinds.items():
            if not isinstance(each.get(entry) or kind(), kind):
                raise ConfigError(f"{label}: {entry} is {each[entry]!r}, expected a {kind.__name__}")
        if unknown := sorted(each.keys() - set(_KNOWN)):
            raise ConfigError(f"{label} has {', '.join(map(repr, unknown))}, expected some of {', '.join(_KNOWN)}")
        for schedule in each.get("schedules") or []:
            if not isinstance(schedule, dict) or not schedule.keys() <= set(_OF_SCHEDULE):
                raise ConfigError(f"{label} has the schedule {schedule}, expected some of {', '.join(_OF_SCHEDULE)}")
            if not schedule.keys() & {"cron", "interval"}:
                raise ConfigError(f"{label} has the schedule {schedule}, expected cron, or interval in seconds")
        if names.count((each["entrypoint"], each["name"])) > 1:
            raise ConfigError(f"{label} is there twice, for {each['entrypoint']}; give one of them another name")
    return [{name: value for name, value in each.items() if value is not None} for each in found]


def _deployment(described: _Described) -> RunnerDeployment:
    from prefect.client.schemas.objects import ConcurrencyLimitConfig
    from prefect.deployments.runner import RunnerDeployment
    from prefect.events import DeploymentTriggerTypes
    from pydantic import TypeAdapter

    name = described["name"]
    triggers = [{"name": f"{name} {number}", **each} for number, each in enumerate(described.get("triggers", []))]
    known = TypeAdapter(list[DeploymentTriggerTypes])
    limit = described.get("concurrency_limit")
    made = RunnerDeployment.from_entrypoint(
        described["entrypoint"],
        name=name,
        description=described.get("description"),
        tags=described.get("tags"),
        parameters=described["parameters"],
        schedules=[_schedule(number, each) for number, each in enumerate(described.get("schedules", []))],
        triggers=[*known.validate_python(triggers)],
        concurrency_limit=ConcurrencyLimitConfig.model_validate(limit) if isinstance(limit, dict) else limit,
        # Otherwise it stays paused, as the last process that served it left it.
        paused=False,
    )
    known_parameters = made._parameter_openapi_schema.properties  # noqa: SLF001  (there is no public way)
    if "store" not in known_parameters and not described["names_store"]:
        named = made.parameters.pop("store", None)  # another program's flow has none
        if named and described["entrypoint"].startswith("penstock.") and "config" in known_parameters:
            made.parameters["config"] = {"store": named}
    if unknown := sorted(made.parameters.keys() - known_parameters.keys()):
        raise ValueError(f"its flow has no parameter {', '.join(unknown)}; it has {', '.join(known_parameters)}")
    return made


def _with_stores(described: _Described, store: str | None) -> _Described:
    """Return a deployment with another store, or with its own as a full path, since its flow runs start elsewhere."""
    placed = {}
    for kind in ("triggers", "schedules"):
        placed[kind] = [_with_own_store(kind[:-1], each, store) for each in described.get(kind, [])]
    parameters = described.get("parameters", {})
    return {
        **described,
        **placed,
        "parameters": _with_store(parameters, store),
        "names_store": "store" in parameters,
    }


def _with_own_store(kind: str, entry: Any, store: str | None) -> Mapping[str, Any]:
    """Return a trigger or schedule whose own parameters, if they name a store, name it as the deployment's do."""
    if not isinstance(entry, dict) or not isinstance(entry.get("parameters") or {}, dict):
        raise ConfigError(f"--file: found the {kind} {entry!r}, expected a table, and a table of its parameters if any")
    parameters = entry.get("parameters") or {}
    table = parameters.get("config", parameters)
    names = isinstance(table, dict) and "store" in table
    return {**entry, "parameters": _with_store(parameters, store)} if names else entry


def _with_store(parameters: Mapping[str, Any], store: str | None) -> Mapping[str, object]:
    table = parameters.get("config", parameters) or {}
    named = table.get("store", USUAL_STORE) if isinstance(table, dict) else None
    if not isinstance(named, str):
        raise ConfigError(f"--file: found {table!r} where a deployment names its store, expected a table with a text")
    placed = {**table, "store": named if "{{" in named else open_store(store or named).url}
    return {**parameters, "config": placed} if "config" in parameters else placed


def _schedule(number: int, described: _Described) -> Schedule:
    from prefect.schedules import Cron, Interval

    known = {name: value for name, value in described.items() if name in {"timezone", "active", "parameters", "slug"}}
    # Without a slug, the schedules of an existing deployment can't be updated.
    known.setdefault("slug", f"schedule-{number}")
    if "cron" in described:
        return Cron(described["cron"], **known)
    return Interval(timedelta(seconds=described["interval"]), **known)
