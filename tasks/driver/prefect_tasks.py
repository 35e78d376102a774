"""Prefect tasks: one task run for each role and stage, however many replicas the role has."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from distributed import span
from distributed.scheduler import KilledWorker
from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.context import FlowRunContext
from prefect.runtime import task_run

from penstock.storage.errors import GangError
from penstock.tasks.driver.failures import explain
from penstock.tasks.driver.forgetting import SPAN
from penstock.tasks.driver.worker_slots import is_running
from penstock.tasks.roles.worker.entrypoint import run_evaluation

if TYPE_CHECKING:
    from distributed import Client, Future
    from prefect.futures import PrefectFuture

    from penstock.storage.refs import SnapshotRef
    from penstock.tasks.driver.gang import Gang
    from penstock.tasks.runtime.assignment import Assignment
    from penstock.tasks.runtime.results import MemberResult
    from penstock.tasks.setup.distribution.policies import Role

logger = logging.getLogger(__name__)


class Evaluation:
    """The input of an evaluate task. A plain class, so that Prefect does not search it for futures."""

    def __init__(
        self,
        client: Client,
        assignment: Assignment,
        resources: dict[str, float],
        snapshot: SnapshotRef,
        episodes: int,
        timeout_seconds: float,
    ) -> None:
        self.client = client
        self.assignment = assignment
        self.resources = resources
        self.snapshot = snapshot
        self.episodes = episodes
        self.timeout_seconds = timeout_seconds


class RolePart:
    """A role's part in a gang; a plain class for the same reason."""

    def __init__(self, gang: Gang, role: Role) -> None:
        self.gang = gang
        self.role = role

    def run(self) -> list[MemberResult]:
        """Submit the role's replicas and wait for them."""
        gang = self.gang
        return gang.results(gang.submit(self.role, str(task_run.id)))


@task(cache_policy=NO_CACHE, persist_result=False)
def _play(stage: int, part: RolePart) -> list[MemberResult]:  # noqa: ARG001  (the stage is the run's name)
    """Run a role's part in a stage."""
    return part.run()


def submit_role(stage: int, part: RolePart) -> PrefectFuture[list[MemberResult]]:
    """Submit a role as a Prefect task of its name, which runs in a thread of the flow."""
    name = part.role.name
    return _play.with_options(name=name, task_run_name=f"{name} stage {{stage}}").submit(stage, part)


def forget_task_runs() -> None:
    """Release what Prefect keeps of the flow run's task runs, all of which have ended, until the flow run ends."""
    context = FlowRunContext.get()
    if context is not None:
        context.run_results.clear()  # which trace a task's inputs to the task runs that returned them
        getattr(context.task_runner, "_cancel_events", {}).clear()


@task(name="evaluate", task_run_name="evaluate stage {stage}", cache_policy=NO_CACHE, persist_result=False)
def evaluate(stage: int, evaluation: Evaluation) -> dict[str, float]:
    """Act greedily with the stage's last snapshot, on seeds that training never saw."""
    with span(SPAN):
        future = evaluation.client.submit(
            run_evaluation,
            evaluation.assignment.to_json(),
            evaluation.snapshot,
            evaluation.episodes,
            stage,
            key=f"evaluate {evaluation.assignment.topic} {task_run.id}",
            resources=evaluation.resources,
            pure=False,
        )
    try:
        return _result_of(future, stage, evaluation)
    except BaseException as error:
        with suppress(Exception):  # the cluster was lost, and the task with it
            future.cancel()
        if isinstance(error, KilledWorker):
            raise explain(error) from error
        raise


def _result_of(future: Future[dict[str, float]], stage: int, evaluation: Evaluation) -> dict[str, float]:
    """Wait for an evaluation as long as it runs: only the wait for a worker has a time-out."""
    seconds = evaluation.timeout_seconds
    while True:
        try:
            return future.result(timeout=seconds)
        except TimeoutError as error:
            if future.done():
                return future.result()  # or its own error, which an environment behind a socket may raise
            if not evaluation.client.run_on_scheduler(is_running, key=future.key):
                raise GangError(
                    f"no worker runs the evaluation of stage {stage} after {seconds:g} s; check the Dask workers, or "
                    f"raise cluster.admission_seconds"
                ) from error
        logger.warning("the evaluation of stage %d takes more than %g s: does each episode end?", stage, seconds)
