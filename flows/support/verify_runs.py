"""Verifies what runs of a store have stored."""

from __future__ import annotations

import logging
from typing import TypedDict

from penstock.storage.errors import RunNotFoundError
from penstock.storage.runs.lease import driver
from penstock.storage.runs.run import RunFolder, run_names
from penstock.storage.runs.verification import verify_run
from penstock.storage.stores.open import open_store

logger = logging.getLogger(__name__)


class VerifiedRun(TypedDict):
    """A row of the table: what was verified of a run, and the first of its faults."""

    run: str
    commits: int
    objects: int
    faults: int
    """Number of damaged or missing objects that the run needs."""
    leftovers: int
    """Number of damaged objects that no commit names: nothing needs them."""
    first: str | None
    """The first fault, in order of name; None if the run is intact."""


_MAKERS = ("a copy", "a fork", "an import")
"""Beginnings of the owners of leases of runs that are being made."""


def verify_runs(store: str, run: str | None, since: int) -> list[VerifiedRun]:
    """Verify one run, or all runs of a store; each fault is logged.

    Returns:
        One row per run.

    Raises:
        RunNotFoundError: no run has that name.
        ConfigError: `since` is no committed stage of the named run.
        StoreError: the store can't be read.
    """
    root = open_store(store)
    rows = []
    for name in [run] if run is not None else run_names(root):
        row: VerifiedRun = {"run": name, "commits": 0, "objects": 0, "faults": 0, "leftovers": 0, "first": None}
        folder = RunFolder(root, name)
        try:
            if run is None and not folder.exists() and _is_being_made(folder):
                continue
            newest = folder.log.newest_stage()
            if run is None and since > (newest or 0) and (newest is not None or folder.exists()):
                rows.append(row)  # it has no such stage
                continue
            found = verify_run(folder, since)
            problems = [f"{fault.name}: {fault.problem}" for fault in found.faults if fault.committed]
            row["leftovers"] = len(found.faults) - len(problems)
            row["commits"], row["objects"] = found.commits, found.objects
        except RunNotFoundError:
            if run is not None:
                raise
            continue  # a folder that holds no run
        row["faults"], row["first"] = len(problems), problems[0] if problems else None
        for problem in problems:
            logger.warning("run=%s %s", name, problem)
        rows.append(row)
    return rows


def _is_being_made(folder: RunFolder) -> bool:
    """Return whether a run without `run.json` is being made: by a copy, a fork or an import, which make it last.

    Somebody on this host does so, or says so on another one.
    """
    found = driver(folder.store)
    return found is not None and (found.owner_process() == "alive" or found.owner.startswith(_MAKERS))
