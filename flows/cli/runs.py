"""`penstock show` and `evaluate`: read stored runs without a cluster; following is a flow run where Prefect is."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from penstock.flows.display.console import Panel, use_panel
from penstock.flows.display.summary import (
    STEPS,
    STORED_STEPS,
    driver_line,
    next_steps,
    outcome,
    round_return,
    stage_row,
)
from penstock.storage.runs.continuing.extensions import list_extensions
from penstock.storage.runs.lease import driver
from penstock.storage.runs.run import RunFolder, stored_settings
from penstock.storage.stores.open import open_store
from penstock.tasks.analysis.history import newest_timings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from penstock.storage.runs.continuing.extensions import Extension
    from penstock.storage.runs.run import RunSummary


def describe_run(store: str, name: str, last: int | None = None) -> dict[str, Any]:
    """Describe the committed stages of a run.

    Args:
        store: folder or address that holds the run.
        name: the run's name.
        last: describe only so many of the newest stages; None describes all.

    Raises:
        RunNotFoundError: no run has that name.
        CorruptObjectError: a commit was altered.
    """
    run = RunFolder(open_store(store), name)
    description = run.load("config", "made_with", "promise")
    replay = "source" in description["config"]
    newest = run.newest()
    stages = range(newest.stage + 1 if newest else 0)
    stages = stages if last is None else stages[max(0, len(stages) - last) :]
    timings = newest_timings(run, stages)
    extensions = list(list_extensions(run.store).values())
    lease = None if newest is not None and newest.finished else driver(run.store)
    rows = []
    for stage in stages:
        commit = run.log.read(stage)
        rows.append(stage_row(commit, timings.get(stage)))
    columns = max((list(row) for row in rows), key=len, default=[])
    return {
        "run": name,
        "store": store,
        "created": description.get("created"),
        "outcome": outcome(newest, replay=replay) + _extended(extensions),
        "replay": replay,
        "extensions": [asdict(extension) for extension in extensions],
        "finished": newest.finished if newest else None,
        "config": stored_settings(description["config"]),
        "made_with": description["made_with"],
        "promise": description["promise"],
        "stages": [{column: row.get(column) for column in columns} for row in rows],
        "metrics": newest.metrics if newest else {},
        "driver": driver_line(lease) if lease else None,
        "next": next_steps(
            name,
            store,
            newest is not None and newest.finished is not None,
            driven=lease is not None,
            has_policy=newest is None or bool(newest.snapshots),
            imported="imported" in description["config"],
        ),
    }


def shown_runs(found: Iterable[RunSummary]) -> list[dict[str, Any]]:
    """Return runs as rows of a table; environment steps, and stored steps of replays, have a column each if needed."""
    found = list(found)
    columns = {kind: STORED_STEPS if kind else STEPS for kind in sorted({run.replay for run in found})}
    rows = []
    for run in found:
        row: dict[str, Any] = {}
        for name, value in asdict(run).items():
            if name == "env_steps":
                row |= {column: value if kind == run.replay else None for kind, column in columns.items()}
            elif name == "evaluation_return" and value is not None:
                row[name] = round_return(value)
            elif name != "replay":
                row[name] = value
        rows.append(row)
    return rows


def _extended(extensions: list[Extension]) -> str:
    """Return the end of a line that names the newest extension."""
    if not extensions:
        return ""
    last = extensions[-1]
    target = "" if last.target_return is None else f", target_return {last.target_return:g}"
    return f"; extended after stage {last.stage} to max_stages {last.max_stages}{target}"


class _EvaluationPanel(Panel):
    """Passes each evaluation of the flow to a callback."""

    def __init__(self, show: Callable[[Mapping[str, float]], None]) -> None:
        self._show = show

    def evaluation(self, result: Mapping[str, float]) -> None:
        self._show(result)


def follow_run(
    store: str, run: str, episodes: int, key: int, idle_seconds: float, show: Callable[[Mapping[str, float]], None]
) -> None:
    """Evaluate every commit of a run as it comes; `show` gets each result.

    With `PREFECT_API_URL`, at which a server must answer, this is a flow run. Without, no server is started for it: the
    server of `penstock train` on this machine needs its database exclusively.

    Raises:
        RunNotFoundError: no run has that name.
        RunIdleError: the run is unfinished, and no stage was committed for `idle_seconds` after the newest evaluation.
    """
    folder = RunFolder(open_store(store), run)
    folder.load()
    if "PREFECT_API_URL" in os.environ:
        from penstock.flows.api.surroundings import flush_prefect, quieten_prefect

        quieten_prefect()
        from penstock.flows.evaluate import evaluate

        try:
            with use_panel(_EvaluationPanel(show)):
                evaluate(run, store, episodes, key, idle_seconds)
        finally:
            flush_prefect()
        return
    from penstock.tasks.analysis.evaluation import commits_to_evaluate, evaluate_commit

    for commit in commits_to_evaluate(folder, episodes, key, idle_seconds):
        show(evaluate_commit(folder, commit, episodes, key))
