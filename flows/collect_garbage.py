"""The garbage collection flow: does for all runs of a store what `penstock gc` does for one.

Needs nothing in the environment; uses `PREFECT_API_URL`, and the usual credentials if the store is on S3.
"""

from __future__ import annotations

from typing import Annotated

from prefect import flow
from prefect.artifacts import create_table_artifact
from pydantic import Field

from penstock.flows.support.garbage import CollectedRun, collect_all


@flow(name="gc", flow_run_name="gc {store}", persist_result=False, validate_parameters=True)
def gc(
    store: str = "runs", keep_checkpoints: Annotated[int, Field(ge=1)] = 1, dry_run: bool = False
) -> list[CollectedRun]:
    """Remove objects that no commit names, and checkpoints that newer ones replace; committed shards stay.

    Runs that a flow drives, or that are damaged, are skipped; the table gives the reason.

    Args:
        store: Folder or s3:// address that holds runs.
        keep_checkpoints: Number of newest commits of a run that keep their checkpoints, snapshots and states.
        dry_run: Report what would be removed, and keep it.
    """
    rows = collect_all(store, keep_checkpoints, dry_run=dry_run)
    create_table_artifact(
        [dict(row) for row in rows], key="gc", description="Would be removed" if dry_run else "Removed"
    )
    return rows
