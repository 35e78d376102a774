"""The flow that collects garbage: all runs of a store, what `penstock gc` does for one.

Needs nothing in the environment; uses `PREFECT_API_URL`, and the usual credentials if the store is on S3.
"""

from __future__ import annotations

from typing import Annotated, Any

from prefect import flow
from prefect.artifacts import create_table_artifact
from pydantic import Field

from flows.collecting import collect_all


@flow(name="gc", flow_run_name="gc {store}", persist_result=False, validate_parameters=True)
def gc(
    store: str = "runs", keep_checkpoints: Annotated[int, Field(ge=1)] = 1, dry_run: bool = False
) -> list[dict[str, Any]]:
    """Remove what no commit names any more, and checkpoints that newer ones replace; committed shards stay.

    Runs that somebody drives, or that are damaged, are left alone; the table says why.

    Args:
        store: Folder or s3:// address that holds runs.
        keep_checkpoints: The newest so many commits of a run keep their checkpoints, snapshots and states.
        dry_run: Say what would go, and keep it.
    """
    rows = collect_all(store, keep_checkpoints, dry_run=dry_run)
    create_table_artifact(rows, key="gc", description="Would be removed" if dry_run else "Removed")
    return rows
