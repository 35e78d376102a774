"""What flows that drive a run have in common: it is driven to its end, and Prefect's UI shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flows.artifacts import RunReport
from flows.identity import exists_policy, named
from storage.errors import SchedulerLostError
from tasks.recovery import wait_for_clusters
from tasks.training import driving

if TYPE_CHECKING:
    from tasks.config import RunConfig
    from tasks.start import IfExists

_LOSSES = 5
"""A scheduler that goes away more often under one flow run has a cause that waiting does not cure."""


def reported(config: RunConfig, if_exists: IfExists) -> dict[str, Any]:
    """Drive a run inside a flow run; returns what was reached, and raises as `tasks.training.driving`.

    Where a cluster's scheduler goes away, wait for it and go on as `penstock resume` does.
    """
    config, exists = named(config), exists_policy(if_exists)
    with RunReport(config) as report:
        for losses_left in reversed(range(_LOSSES + 1)):
            try:
                with driving(config, exists, report.hear) as training:
                    config = training.config  # whose policy may have been chosen just now
                    report.begin(training)
                    for commit, timings in training.stages():
                        report.stage(commit, timings)
                    return report.summary()
            except SchedulerLostError:
                if not losses_left:
                    raise
                wait_for_clusters(config)
                exists = "resume"
        raise AssertionError("the loop returns or raises")
