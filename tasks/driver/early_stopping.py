"""Ends a run whose evaluations no longer improve: a function of its commits, so a killed run ends at the same stage."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from penstock.storage.runs.continuing.extensions import STOPPED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.storage.runs.commit_schema import Commit
    from penstock.storage.runs.run import RunFolder
    from penstock.tasks.setup.config.run import ScheduleSettings

_READS_AT_ONCE = 8


def stop_reason(schedule: ScheduleSettings, returns: Iterable[float]) -> str | None:
    """Return why a run ends after evaluations with these mean returns, in the order of stages; None if it continues.

    An evaluation is an improvement if it exceeds the best one before by more than `stop_min_improvement`; the first is.
    """
    patience = schedule.stop_patience_evaluations
    if patience is None:
        return None
    best, without = -math.inf, 0
    for value in returns:
        if value > best + schedule.stop_min_improvement:
            best, without = value, 0
        else:
            without += 1
    if without < patience:
        return None
    return f"{STOPPED} over a mean return of {best:g} in {without} evaluations"


class EvaluatedReturns:
    """The mean returns of a run's evaluated stages, read from its commits where this process did not make them."""

    def __init__(self, run: RunFolder, schedule: ScheduleSettings) -> None:
        self._run = run
        self._schedule = schedule
        self._returns: dict[int, float] = {}
        self._next = 0

    def until(self, commit: Commit | None) -> list[float]:
        """Return the mean returns until a commit, which is included; none without early stopping, or before the first.

        Raises:
            CorruptObjectError: a commit was altered.
            StoreError: the store can't be read.
        """
        if commit is None or self._schedule.stop_patience_evaluations is None:
            return []
        every = self._schedule.evaluate_every_stages
        lacking = [stage for stage in range(self._next, commit.stage) if (stage + 1) % every == 0]
        if lacking:
            with ThreadPoolExecutor(_READS_AT_ONCE, thread_name_prefix="evaluated") as threads:
                found = list(threads.map(self._run.log.read, lacking))
        else:
            found = []
        for one in [*found, commit]:
            # A run that was extended also evaluated its former last stage: a longer one would not have.
            if one.evaluation is not None and (one.stage + 1) % every == 0:
                self._returns[one.stage] = one.evaluation["mean_return"]
        self._next = commit.stage + 1
        return [value for stage, value in sorted(self._returns.items()) if stage <= commit.stage]
