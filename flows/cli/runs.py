"""`penstock show` and `evaluate`: read stored runs, without a flow and without a cluster."""

from __future__ import annotations

from typing import Any

from penstock.flows.display.summary import next_steps, outcome, stage_row
from penstock.storage.errors import ConfigError
from penstock.storage.runs.run import RunFolder
from penstock.storage.stores.open import open_store
from penstock.tasks.analysis.history import newest_timings
from penstock.tasks.setup.config.consent import record_consent
from penstock.tasks.setup.config.loading import stored_settings


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
    newest = run.log.newest()
    stages = range(newest.stage + 1 if newest else 0)
    stages = stages if last is None else stages[max(0, len(stages) - last) :]
    timings = newest_timings(run, stages)
    rows = []
    for stage in stages:
        commit = run.log.read(stage)
        if stage in timings:
            rows.append(stage_row(commit, timings[stage]))
        else:
            rows.append({"stage": stage, "env steps": commit.env_steps})
    columns = max((list(row) for row in rows), key=len, default=[])
    return {
        "run": name,
        "store": store,
        "created": description.get("created"),
        "outcome": outcome(newest),
        "finished": newest.finished if newest else None,
        "config": stored_settings(description["config"]),
        "made_with": description["made_with"],
        "promise": description["promise"],
        "stages": [{column: row.get(column) for column in columns} for row in rows],
        "metrics": newest.metrics if newest else {},
        "next": next_steps(name, store, newest is not None and newest.finished is not None),
    }


def trust_run(store: str, name: str) -> None:
    """Trust the code that a run names, for this user on this machine; errors as `record_consent`."""
    record_consent(RunFolder(open_store(store), name))


def evaluate_run(store: str, name: str, episodes: int, stage: int | None, key: int) -> dict[str, float]:
    """Evaluate the last snapshot of a stage, in this process; the result is stored in the run's folder if possible.

    Raises:
        ConfigError: no stage is committed yet, or not this one.
    """
    run = RunFolder(open_store(store), name)
    run.load()
    newest = run.log.newest()
    if newest is None or (stage is not None and stage > newest.stage):
        committed = "nothing yet" if newest is None else f"stages 0 to {newest.stage}"
        raise ConfigError(f"run '{name}' has committed {committed}; evaluate after `penstock resume {name}`")
    from penstock.tasks.analysis.evaluation import evaluate_commit

    commit = newest if stage is None else run.log.read(stage)
    return evaluate_commit(run, commit, episodes, key, keep_result=False)
