"""Looking at stored runs, without a flow and without a cluster."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from flows.summary import next_steps, outcome, stage_row
from storage.digest import canonical_json
from storage.errors import ConfigError, RunIdleError
from storage.readers import reading
from storage.refs import SnapshotRef
from storage.run import RunFolder
from storage.store import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator

_FOLLOW_SECONDS = 1.0
"""Between two looks for a new commit."""


def describe_run(store: str, name: str) -> dict[str, Any]:
    """What a run has committed, stage by stage.

    Raises:
        RunNotFoundError: there is none of that name.
        CorruptObjectError: a commit was altered.
    """
    run = RunFolder(open_store(store), name)
    description = run.load()
    newest = run.log.newest()
    timings = _newest_timings(run)
    rows = []
    for stage in range(newest["stage"] + 1 if newest else 0):
        commit = run.log.read(stage)
        if stage in timings:
            rows.append(stage_row(commit, timings[stage]))
        else:
            rows.append({"stage": stage, "env steps": commit["env_steps"]})
    columns = max((list(row) for row in rows), key=len, default=[])
    return {
        "run": name,
        "store": store,
        "created": description.get("created"),
        "outcome": outcome(newest),
        "finished": newest["finished"] if newest else None,
        "config": description["config"],
        "made_with": description["made_with"],
        "promise": description["promise"],
        "stages": [{column: row.get(column) for column in columns} for row in rows],
        "metrics": newest["metrics"] if newest else {},
        "next": next_steps(name, store, newest is not None and newest["finished"] is not None),
    }


def evaluate_run(store: str, name: str, episodes: int, stage: int | None, key: int) -> dict[str, Any]:
    """Evaluate the last snapshot of a stage, in this process; the result is stored beside the run.

    Raises:
        ConfigError: nothing is committed yet, or not that stage.
    """
    run = RunFolder(open_store(store), name)
    run.load()
    newest = run.log.newest()
    if newest is None or (stage is not None and stage > newest["stage"]):
        committed = "nothing yet" if newest is None else f"stages 0 to {newest['stage']}"
        raise ConfigError(f"run '{name}' has committed {committed}; evaluate after `penstock resume {name}`")
    return _evaluate_commit(run, newest if stage is None else run.log.read(stage), episodes, key)


def follow_run(store: str, name: str, episodes: int, key: int, idle_seconds: float) -> Iterator[dict[str, Any]]:
    """Evaluate the last snapshot of every commit, as commits come, until one says that the run is finished.

    Nothing of it reaches the run: whether that ends is decided by its own evaluations, inside its stages. What was
    evaluated before with the same seeds is not evaluated again, so this may be stopped and started at will; nor is what
    `penstock gc` has removed.

    Raises:
        RunNotFoundError: there is none of that name.
        RunIdleError: it is not finished, and nothing was committed for `idle_seconds` after the newest evaluation.
    """
    run = RunFolder(open_store(store), name)
    run.load()
    stage, newest = 0, run.log.newest()
    idle_since = time.monotonic()
    while True:
        while newest is not None and stage <= newest["stage"]:
            commit = run.log.read(stage)
            snapshot = SnapshotRef.from_json(commit["snapshots"][-1])
            done = run.store.exists(_evaluation_name(snapshot, episodes, key))
            if not done and run.store.exists(snapshot.name):
                yield _evaluate_commit(run, commit, episodes, key)
            stage += 1
            idle_since = time.monotonic()
        if newest is not None and newest["finished"]:
            return
        if time.monotonic() - idle_since >= idle_seconds:
            committed = "nothing" if newest is None else f"nothing after stage {newest['stage']}"
            raise RunIdleError(
                f"run '{name}' has committed {committed} for {idle_seconds:g} s and is not finished; `penstock resume "
                f"{name}` goes on with it if nothing drives it any more, --idle-seconds waits longer for a slow one"
            )
        time.sleep(min(_FOLLOW_SECONDS, idle_seconds))
        newest = run.log.newest(newest["stage"] if newest else None)


def _evaluate_commit(run: RunFolder, commit: dict[str, Any], episodes: int, key: int) -> dict[str, Any]:
    from tasks.assignment import Assignment
    from tasks.context import load_context
    from tasks.evaluate import evaluate_snapshot
    from tasks.training import default_cache_folder

    assignment = Assignment(
        store=run.root.url,
        run=run.name,
        stage=commit["stage"],
        attempt=0,
        generation=0,
        gang="",
        role="evaluate",
        replica=0,
        replicas=1,
        task_run="",
        cache_folder=default_cache_folder(),
        device="cpu",
    )
    snapshot = SnapshotRef.from_json(commit["snapshots"][-1])
    with reading(run.store, "evaluate", commit["stage"], commit["stage"], shards=False):
        result = {**evaluate_snapshot(load_context(assignment), run.store, snapshot, episodes, key), "seeds": key}
    run.store.write(_evaluation_name(snapshot, episodes, key), [canonical_json(result)])
    return result


def _evaluation_name(snapshot: SnapshotRef, episodes: int, key: int) -> str:
    return f"evaluations/{snapshot.version:08d}-{key}-{episodes}.json"


def _newest_timings(run: RunFolder) -> dict[int, dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for name in run.store.list("timings/"):
        timings = json.loads(run.store.read(name))
        earlier = found.get(timings["stage"])
        if earlier is None or earlier["started_at"] < timings["started_at"]:
            found[timings["stage"]] = timings
    return found
