"""Executes a run inside a flow run: drives it until it is finished, and reports it to Prefect's UI."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.flows.display.naming import exists_policy, named
from penstock.flows.display.run_report import RunReport
from penstock.storage.errors import SchedulerLostError
from penstock.tasks.driver.recovery import wait_for_clusters
from penstock.tasks.driver.run import drive_run
from penstock.tasks.setup.planning.resolve import resolve

if TYPE_CHECKING:
    from penstock.flows.display.summary import FlowResult
    from penstock.tasks.setup.config.run import RunConfig
    from penstock.tasks.setup.planning.resolve import IfExists

_LOSSES = 5
"""Limit of lost schedulers per flow run: with more, waiting does not remove the cause."""


def execute_run(config: RunConfig, if_exists: IfExists) -> FlowResult:
    """Drive a run inside a flow run; return its result, and raise as `resolve` and `drive_run` do.

    Where a cluster's scheduler is lost, wait for it and resume as `penstock resume` does.
    """
    resolved = resolve(named(config), exists_policy(if_exists))
    with RunReport(resolved.config) as report:
        for losses_left in reversed(range(_LOSSES + 1)):
            training = None
            try:
                with drive_run(resolved, report.handle_event) as training:
                    report.begin(training)
                    for commit, timings in training.stages():
                        report.stage(commit, timings)
                    return report.summary()
            except SchedulerLostError:
                if not losses_left or training is None:
                    raise
                # Its policy may have been chosen by `drive_run`.
                wait_for_clusters(training.run.name, training.driver.policy, training.config.cluster)
                resolved = resolve(training.config, "resume")
        raise AssertionError("the loop returns or raises")
