"""Prefect tasks: one task run for each role and stage, however many replicas the role has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distributed.scheduler import KilledWorker
from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.context import FlowRunContext
from prefect.runtime import task_run

from penstock.storage.errors import GangError
from penstock.tasks.driver.gang import explain
from penstock.tasks.roles.worker.entrypoint import run_evaluation

if TYPE_CHECKING:
    from distributed import Client
    from prefect.futures import PrefectFuture

    from penstock.storage.refs import SnapshotRef
    from penstock.tasks.driver.gang import Gang
    from penstock.tasks.runtime.assignment import Assignment
    from penstock.tasks.runtime.results import MemberResult
    from penstock.tasks.setup.distribution.policies import Role


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
        result: dict[str, float] = future.result(timeout=evaluation.timeout_seconds)
    except KilledWorker as error:
        raise explain(error) from error
    except TimeoutError as error:
        raise GangError(
            f"the evaluation of stage {stage} did not finish within {evaluation.timeout_seconds:g} s; check the Dask "
            f"workers, or raise cluster.admission_seconds"
        ) from error
    return result
