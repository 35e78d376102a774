"""A simulated flow: the real protocol of a driver, from the lease to the commit, around simulated members."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.storage import system
from penstock.storage.errors import RunExistsError, RunFinishedError
from penstock.storage.runs.commits import commit_ref
from penstock.storage.runs.continuing.extensions import Limits, extension_after, limits_at, list_extensions
from penstock.storage.runs.lease import acquire
from penstock.storage.runs.timings import timings_name
from penstock.tasks.driver.attempts import repeat_until_done
from penstock.tasks.driver.open_stage import continue_from
from penstock.tasks.driver.results import by_component, check_agreement, merge_learned, stage_commit
from penstock.tasks.runtime.assignment import Assignment
from penstock.tasks.setup.planning.extending import extend_from
from penstock.tasks.simulation.cluster import RUN
from penstock.tasks.simulation.gang import SimulatedGang

if TYPE_CHECKING:
    from penstock.storage.runs.commit_schema import Commit
    from penstock.storage.runs.lease import LeaseKeeper
    from penstock.storage.runs.run import RunFolder
    from penstock.tasks.setup.config.run import ScheduleSettings
    from penstock.tasks.simulation.cluster import SimulatedCluster

LEASE_SECONDS = 15.0


def drive(cluster: SimulatedCluster) -> None:
    """Create the run if it does not exist, drive it to its end, and extend it if that is asked for.

    Raises as the real flow does.

    Raises:
        LeaseHeldError: another process drives the run.
        PenstockError: a stage failed for good.
    """
    run = cluster.run
    if not run.exists():
        try:
            run.create({"identity": {"seed": 1}, "name": RUN})
        except RunExistsError:
            cluster.world.note("the run was created meanwhile")
    _drive(cluster, run)
    if cluster.extended_stages:
        with suppress(RunFinishedError):
            extend_from(run, _configured(cluster), lambda limits: limits._replace(max_stages=cluster.extended_stages))
            _drive(cluster, run)


def _configured(cluster: SimulatedCluster) -> Limits:
    return Limits(cluster.config.schedule.max_stages)


def _drive(cluster: SimulatedCluster, run: RunFolder) -> None:
    lease = acquire(run.store, cluster.world.thread.process.name, LEASE_SECONDS)
    try:
        newest = continue_from(run)
        first = newest
        is_extended = newest is not None and newest.finished is not None and extension_after(run.store, newest)
        extensions = list_extensions(run.store).values()
        limits = limits_at(_configured(cluster), extensions, newest.stage + 1 if newest else 0)
        schedule = cluster.config.schedule.model_copy(update=limits._asdict())
        while newest is None or newest.finished is None or (newest is first and is_extended):
            newest = _run_stage(cluster, run, schedule, lease, newest, is_first=newest is first)
    finally:
        lease.release()


def _run_stage(
    cluster: SimulatedCluster,
    run: RunFolder,
    schedule: ScheduleSettings,
    lease: LeaseKeeper,
    before: Commit | None,
    *,
    is_first: bool,
) -> Commit:
    stage = before.stage + 1 if before else 0
    commit = repeat_until_done(
        run,
        stage,
        lambda attempt, _: _run_attempt(cluster, run, schedule, lease, before, attempt),
        is_first=is_first,
        check=lease.check,
    )
    run.store.write(timings_name(stage, lease.generation), [b"{}"])
    return commit


def _run_attempt(
    cluster: SimulatedCluster,
    run: RunFolder,
    schedule: ScheduleSettings,
    lease: LeaseKeeper,
    before: Commit | None,
    attempt: int,
) -> Commit:
    stage = before.stage + 1 if before else 0
    reference = commit_ref(before) if before else None
    template = replace(
        _TEMPLATE,
        stage=stage,
        attempt=attempt,
        generation=lease.generation,
        gang=system.token(),
        before=reference.to_json() if reference else None,
    )
    merged = by_component(SimulatedGang(cluster, template).run())
    learned = merge_learned(stage, merged)
    check_agreement(stage, learned.shards, merged.act, whole=cluster.config.requires_full_round)
    lease.check()
    parent = reference.digest if reference else run.genesis()
    commit = stage_commit(schedule, stage, parent, before, learned, merged.act, None)
    run.log.append(commit)
    return commit


_TEMPLATE = Assignment(
    store="",
    run=RUN,
    stage=0,
    attempt=0,
    gang="",
    generation=0,
    role="",
    replica=0,
    replicas=0,
    task_run="",
    cache_folder="",
    device="cpu",
    upload_threads=2,
)
