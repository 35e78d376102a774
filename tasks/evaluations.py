"""Evaluations beside training: of any commit, and of all commits as they come. Nothing of them reaches the run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from storage.cache import default_cache_folder
from storage.digest import canonical_json
from storage.errors import RunIdleError
from storage.readers import reading
from storage.refs import SnapshotRef
from tasks.assignment import Assignment
from tasks.context import load_context
from tasks.evaluate import evaluate_snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from storage.run import RunFolder
    from tasks.context import RunContext

_FOLLOW_SECONDS = 1.0
"""Between two looks for a new commit."""


def evaluate_commit(run: RunFolder, commit: dict[str, Any], episodes: int, key: int) -> dict[str, Any]:
    """Evaluate the last snapshot of a commit, in this process; the result is stored beside the run.

    Returns:
        That of `tasks.evaluate.evaluate_snapshot`, and `seeds`, which is `key`.
    """
    snapshot = SnapshotRef.from_json(commit["snapshots"][-1])
    with reading(run.store, "evaluate", commit["stage"], commit["stage"], shards=False):
        result = {
            **evaluate_snapshot(looking_on(run, commit["stage"]), run.store, snapshot, episodes, key),
            "seeds": key,
        }
    run.store.write(_evaluation_name(snapshot, episodes, key), [canonical_json(result)])
    return result


def looking_on(run: RunFolder, stage: int) -> RunContext:
    """A run as somebody sees it who takes no part in it; errors as `load_context`."""
    return load_context(
        Assignment(
            store=run.root.url,
            run=run.name,
            stage=stage,
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
    )


def commits_to_evaluate(
    run: RunFolder, episodes: int, key: int, idle_seconds: float | None
) -> Iterator[dict[str, Any]]:
    """Every commit, as it comes, until one says that the run is finished; without `idle_seconds` those that are there.

    What was evaluated before with the same seeds is left out, so following may be stopped and started at will; so is
    what `penstock gc` has removed. Whether the run ends is decided by its own evaluations, inside its stages.

    Raises:
        RunNotFoundError: there is no such run.
        RunIdleError: it is not finished, and nothing was committed for `idle_seconds` after the newest evaluation.
    """
    run.load()
    stage, newest = 0, run.log.newest()
    idle_since = time.monotonic()
    while True:
        while newest is not None and stage <= newest["stage"]:
            commit = run.log.read(stage)
            snapshot = SnapshotRef.from_json(commit["snapshots"][-1])
            done = run.store.exists(_evaluation_name(snapshot, episodes, key))
            if not done and run.store.exists(snapshot.name):
                yield commit
            stage += 1
            idle_since = time.monotonic()
        if idle_seconds is None or (newest is not None and newest["finished"]):
            return
        if time.monotonic() - idle_since >= idle_seconds:
            committed = "nothing" if newest is None else f"nothing after stage {newest['stage']}"
            raise RunIdleError(
                f"run '{run.name}' has committed {committed} for {idle_seconds:g} s and is not finished; `penstock "
                f"resume {run.name}` goes on with it if nothing drives it any more, --idle-seconds waits longer for a "
                f"slow one"
            )
        time.sleep(min(_FOLLOW_SECONDS, idle_seconds))
        newest = run.log.newest(newest["stage"] if newest else None)


def _evaluation_name(snapshot: SnapshotRef, episodes: int, key: int) -> str:
    return f"evaluations/{snapshot.version:08d}-{key}-{episodes}.json"
