"""A run whose stages a tracker gets, as a flow delivers them, and an outcome maker that need not play episodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.flows.observers.callbacks.delivery import Delivery

from ....support.stored.committed_run import CommittedRun

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.flows.observers.tracking.tracker import Tracker


@pytest.fixture
def run(tmp_path: Path) -> CommittedRun:
    return CommittedRun(tmp_path)


@pytest.fixture
def drive(run: CommittedRun) -> Callable[..., None]:
    """Return a function that drives the run for some stages with a tracker."""

    def drive_it(tracker: Tracker, *returns: float | None, finished: str | None = None) -> None:
        with Delivery([tracker], 120.0) as delivery:
            delivery.begin(run.folder, run.newest)
            for commit, timings in run.commit(*returns, finished=finished):
                delivery.stage(commit, timings)

    return drive_it
