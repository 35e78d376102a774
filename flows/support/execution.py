"""Executes a run inside a flow run: drives it until it is finished, and reports it to Prefect's UI."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.flows.display.naming import exists_policy, is_unattended, named
from penstock.flows.display.run_report import RunReport
from penstock.flows.display.summary import flow_result
from penstock.flows.observers.callbacks.delivery import Delivery
from penstock.flows.observers.telemetry.run_telemetry import RunTelemetry
from penstock.flows.observers.tracking.open import open_followers
from penstock.flows.support.head_start import take_head_start
from penstock.storage.errors import RunFinishedError, SchedulerLostError
from penstock.storage.runs.run import RunFolder
from penstock.storage.stores.open import open_store
from penstock.tasks.driver.recovery import wait_for_clusters
from penstock.tasks.driver.run import drive_run
from penstock.tasks.setup.planning.resolve import resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.flows.display.summary import FlowResult
    from penstock.storage.runs.commit_schema import Commit
    from penstock.tasks.setup.config.run import RunConfig
    from penstock.tasks.setup.planning.resolve import IfExists

_LOSSES = 5
"""Limit of lost schedulers per flow run: with more, waiting does not remove the cause."""
_leaving: list[Callable[[Commit], bool]] = []


@contextmanager
def leave_when(is_reached: Callable[[Commit], bool]) -> Iterator[None]:
    """Let runs that this process drives be left, to be resumed later, after the first commit that fulfils a condition.

    Args:
        is_reached: called after each commit that does not finish its run.
    """
    _leaving.append(is_reached)
    try:
        yield
    finally:
        _leaving.remove(is_reached)


def execute_run(config: RunConfig, if_exists: IfExists) -> FlowResult:
    """Drive a run inside a flow run; return its result, and raise as `resolve` and `drive_run` do.

    Go on with a run that this process has begun already (`HeadStart`). Where a cluster's scheduler is lost, wait for it
    and resume as `penstock resume` does. A retry, or a deployment's flow run, that finds its run finished is a success.
    """
    begun = take_head_start()
    followers = begun.followers if begun else open_followers(config.cluster)
    config, policy = named(config), exists_policy(if_exists)
    try:
        resolved = resolve(config, policy)
    except RunFinishedError:
        if policy != "resume" or not is_unattended():
            raise
        # It was stopped between its last commit and Prefect's record of it.
        run = RunFolder(open_store(config.store), str(config.name))
        return flow_result(config, run.log.newest(), 0.0)
    with (
        RunTelemetry(resolved.config) as telemetry,
        RunReport(resolved.config) as report,
        Delivery(followers, config.cluster.callback_seconds) as delivery,
    ):
        for losses_left in reversed(range(_LOSSES + 1)):
            training = None
            try:
                on_event = telemetry.watched(report.handle_event)
                driven = begun.driven(on_event) if begun else drive_run(telemetry.counted(resolved), on_event)
                begun = None
                with driven as training, telemetry.driving(training):
                    report.begin(training)
                    delivery.begin(training.run, training.newest)
                    for commit, timings in training.stages():
                        report.stage(commit, timings)
                        delivery.stage(commit, timings)
                        telemetry.stage(commit, timings)
                        if commit.finished is None and any(is_reached(commit) for is_reached in _leaving):
                            break
                    return report.summary()
            except SchedulerLostError:
                if not losses_left or training is None:
                    raise
                # Its policy may have been chosen by `drive_run`.
                wait_for_clusters(training.run, training.driver.policy, training.config.cluster)
                resolved = resolve(training.config, "resume")
        raise AssertionError("the loop returns or raises")
