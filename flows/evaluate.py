"""The evaluation flow: evaluates every commit of a run beside its training; one task run a commit.

Needs nothing in the environment; uses `PREFECT_API_URL`, and the usual credentials if the store is on S3.
"""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.artifacts import create_table_artifact

from flows.console import current_panel
from flows.identity import artifact_key
from storage.run import RunFolder
from storage.store import open_store
from tasks.evaluations import commits_to_evaluate
from tasks.following import evaluate_stage


@flow(name="evaluate", flow_run_name="evaluate {run}", persist_result=False, validate_parameters=True)
def evaluate(
    run: str,
    store: str = "runs",
    episodes: int = 100,
    key: int = 1_000_000,
    idle_seconds: float = 3600.0,
    follow: bool = True,
) -> list[dict[str, Any]]:
    """Evaluate every commit of a run, greedily, on fresh seeds, until the run is finished; results are in evaluations/.

    What was evaluated before with the same seeds is left out, so this may be retried, and started again at will.

    Args:
        run: Name of the run.
        store: Folder or s3:// address that holds it.
        episodes: Episodes of each evaluation, each on a seed of its own.
        key: Which set of seeds.
        idle_seconds: Fail where the run commits nothing for so long and is not finished.
        follow: Wait for further commits until the run is finished; otherwise only what is committed by now.
    """
    results = []
    wait_seconds = idle_seconds if follow else None
    for commit in commits_to_evaluate(RunFolder(open_store(store), run), episodes, key, wait_seconds):
        results.append(evaluate_stage(store, run, commit["stage"], episodes, key))
        current_panel().evaluation(results[-1])
        create_table_artifact(results, key=artifact_key(run, "evaluations"), description="Evaluations")
    return results
