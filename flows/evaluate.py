"""The evaluation flow: evaluates commits of a run concurrently with its training; one task run per commit.

Needs nothing in the environment; uses `PREFECT_API_URL`, and the usual credentials if the store is on S3.
"""

from __future__ import annotations

from typing import Annotated

from prefect import flow, get_run_logger
from prefect.artifacts import create_table_artifact
from pydantic import Field

from penstock.flows.display.console import current_panel
from penstock.flows.display.naming import artifact_key
from penstock.storage.runs.run import RunFolder
from penstock.storage.stores.open import open_store
from penstock.tasks.analysis.evaluation import evaluation_order
from penstock.tasks.analysis.evaluation_task import evaluate_stage
from penstock.tasks.setup.config.consent import record_consent


@flow(name="evaluate", flow_run_name="evaluate {run}", persist_result=False, validate_parameters=True)
def evaluate(
    run: str,
    store: str = "runs",
    episodes: Annotated[int, Field(ge=1)] = 100,
    key: Annotated[int, Field(ge=0, lt=1 << 63)] = 1_000_000,
    idle_seconds: Annotated[float, Field(ge=0)] = 3600.0,
    follow: bool = True,
    trust: bool = False,
) -> list[dict[str, float]]:
    """Evaluate the commits of a run, greedily, on fresh seeds, until the run is finished; results are in evaluations/.

    Commits evaluated before with the same seeds are skipped, so the flow may be retried and started again at will.

    Args:
        run: Name of the run.
        store: Folder or s3:// address that holds it.
        episodes: Episodes of each evaluation, each on its own seed.
        key: Selects the set of seeds.
        idle_seconds: Fail when an unfinished run commits nothing for this long.
        follow: Evaluate every commit until the run is finished; otherwise only the newest, and say what was left out.
        trust: Import the code that the run names, also where Python finds it in the flow run's working directory.
    """
    folder = RunFolder(open_store(store), run)
    if trust:
        record_consent(folder)
    results, rows = [], []
    for commit, skipped in evaluation_order(folder, episodes, key, idle_seconds if follow else None):
        if skipped:
            get_run_logger().info("left out versions %d to %d: newer ones exist", skipped[0], skipped[-1])
        results.append(evaluate_stage(store, run, commit.stage, episodes, key))
        rows.append({**results[-1], "left out before": f"{skipped[0]} to {skipped[-1]}" if skipped else ""})
        current_panel().evaluation(results[-1])
        create_table_artifact(rows, key=artifact_key(run, "evaluations"), description="Evaluations")
    return results
