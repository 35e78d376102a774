"""Evaluates a committed stage as a Prefect task, in the flow's process; a module of its own because it needs torch."""

from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE

from penstock.storage.runs.run import RunFolder
from penstock.storage.stores.open import open_store
from penstock.tasks.analysis.evaluation import evaluate_commit


@task(task_run_name="evaluate stage {stage}", cache_policy=NO_CACHE, persist_result=False)
def evaluate_stage(store: str, run: str, stage: int, episodes: int, key: int) -> dict[str, float]:
    """Evaluate the last snapshot of a committed stage in this process; returns as `evaluate_commit`."""
    folder = RunFolder(open_store(store), run)
    return evaluate_commit(folder, folder.log.read(stage), episodes, key)
