"""Evaluation beside training as Prefect sees it: one task run a commit."""

from __future__ import annotations

from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from storage.run import RunFolder
from storage.store import open_store
from tasks.evaluations import evaluate_commit


@task(task_run_name="evaluate stage {stage}", cache_policy=NO_CACHE, persist_result=False)
def evaluate_stage(store: str, run: str, stage: int, episodes: int, key: int) -> dict[str, Any]:
    """Evaluate the last snapshot of a stage that is committed, in this process; returns as `evaluate_commit`."""
    folder = RunFolder(open_store(store), run)
    return evaluate_commit(folder, folder.log.read(stage), episodes, key)
