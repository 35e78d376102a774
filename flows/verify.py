"""The verification flow: does for all runs of a store what `penstock verify` does for one.

Needs nothing in the environment; uses `PREFECT_API_URL`, and the usual credentials if the store is on S3.
"""

from __future__ import annotations

from typing import Annotated

from prefect import flow
from prefect.artifacts import create_table_artifact
from prefect.client.schemas.objects import State  # noqa: TC002  (Prefect reads annotations when it runs)
from prefect.states import Failed
from pydantic import Field

from penstock.flows.support.verify_runs import VerifiedRun, verify_runs
from penstock.tasks.setup.config.run import RunName  # noqa: TC001  (Prefect reads the annotation when it runs)


@flow(name="verify", flow_run_name="verify {store}", persist_result=False, validate_parameters=True)
def verify(
    store: str = "runs", run: RunName | None = None, since: Annotated[int, Field(ge=0)] = 0
) -> list[VerifiedRun] | State[None]:
    """Verify chains of commits, and every stored object against its digest; the flow run fails if one is damaged.

    Runs may be driven meanwhile. Nothing is changed: `penstock verify RUN --repair` removes what a resume makes again.

    Args:
        store: Folder or s3:// address that holds runs.
        run: Name of the run; empty verifies all.
        since: First stage whose commit and objects are verified.
    """
    rows = verify_runs(store, run, since)
    create_table_artifact([dict(row) for row in rows], key="verify", description="Verified")
    damaged = [row["run"] for row in rows if row["faults"]]
    if damaged:
        return Failed(message=f"damaged: {', '.join(damaged)}; the log and the table name the objects")
    return rows
