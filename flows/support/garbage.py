"""Collects garbage in all runs of a store."""

from __future__ import annotations

import logging
from typing import TypedDict

from penstock.storage.errors import (
    CommitConflictError,
    CorruptObjectError,
    LeaseHeldError,
    LeaseLostError,
    ObjectNotFoundError,
    RunNotFoundError,
    StoreError,
)
from penstock.storage.runs.gc import collect
from penstock.storage.runs.run import RunFolder, list_runs
from penstock.storage.stores.open import open_store

logger = logging.getLogger(__name__)

_DRIVEN = (LeaseHeldError, LeaseLostError)
_DAMAGED = (CommitConflictError, CorruptObjectError, ObjectNotFoundError, RunNotFoundError)


class CollectedRun(TypedDict):
    """A row of the table: what was removed from a run, or would be."""

    run: str
    objects: int
    bytes: int
    left: str | None
    """Why the run was skipped; None where it was collected."""


def collect_all(store: str, keep_checkpoints: int, *, dry_run: bool) -> list[CollectedRun]:
    """Remove what no commit names, run by run; skip runs that are driven, damaged, or may only be read.

    Returns:
        One row per run.

    Raises:
        StoreError: the store can't be read, or no run in it written.
    """
    root = open_store(store)
    rows, failures = [], []
    for summary in list_runs(root):
        row: CollectedRun = {"run": summary.name, "objects": 0, "bytes": 0, "left": None}
        try:
            report = collect(RunFolder(root, summary.name), keep_checkpoints, dry_run)
            row["objects"], row["bytes"] = report.objects, report.nbytes
        except (*_DRIVEN, *_DAMAGED) as error:
            row["left"] = str(error)
            level = logging.INFO if isinstance(error, _DRIVEN) else logging.WARNING
            logger.log(level, "run=%s is skipped: %s", summary.name, error)
        except StoreError as error:  # in a folder that users share, others' runs may only be read
            failures.append(error)
            row["left"] = str(error)
            logger.warning("run=%s is skipped: %s", summary.name, error)
        rows.append(row)
    if rows and len(failures) == len(rows):
        raise failures[0]
    return rows
