"""Garbage collection of all runs of a store."""

from __future__ import annotations

import logging
from typing import Any

from storage.errors import CorruptObjectError, LeaseHeldError
from storage.gc import collect
from storage.run import RunFolder, list_runs
from storage.store import open_store

logger = logging.getLogger(__name__)


def collect_all(store: str, keep_checkpoints: int, *, dry_run: bool) -> list[dict[str, Any]]:
    """Remove what no commit names, run by run; one that somebody drives, or that can't be trusted, is left alone.

    Returns:
        A row a run: `run`, `objects` and `bytes` that were removed or would be, and `left`, why it was left alone.

    Raises:
        StoreError: the store can't be read or written.
    """
    root = open_store(store)
    rows = []
    for summary in list_runs(root):
        row: dict[str, Any] = {"run": summary.name, "objects": 0, "bytes": 0, "left": None}
        try:
            report = collect(RunFolder(root, summary.name), keep_checkpoints, dry_run)
            row |= {"objects": report.objects, "bytes": report.nbytes}
        except (LeaseHeldError, CorruptObjectError) as error:
            row["left"] = str(error)
            level = logging.INFO if isinstance(error, LeaseHeldError) else logging.WARNING
            logger.log(level, "run=%s is left alone: %s", summary.name, error)
        rows.append(row)
    return rows
