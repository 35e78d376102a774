"""Roles as Prefect sees them: one task run a role and stage, however many replicas it has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distributed.scheduler import KilledWorker
from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.runtime import task_run

from storage.errors import GangError
from tasks.gang import explain
from tasks.replica import run_evaluation

if TYPE_CHECKING:
    from distributed import Client
    from prefect.futures import PrefectFuture

    from tasks.assignment import Assignment
    from tasks.gang import Gang
    from tasks.policies import Role


class Evaluation:
    """What an evaluate task needs. A plain class, so that Prefect does not look for futures inside."""

    def __init__(
        self,
        client: Client,
        assignment: Assignment,
        resources: dict[str, float],
        snapshot: dict[str, Any],
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
    """A role's part in a gang, wrapped for the same reason."""

    def __init__(self, gang: Gang, role: Role) -> None:
        self.gang = gang
        self.role = role

    def run(self) -> list[dict[str, Any]]:
        """Submit the role's replicas and wait for them."""
        gang = self.gang
        return gang.results(gang.submit(self.role, str(task_run.id)))


@task(cache_policy=NO_CACHE, persist_result=False)
def _play(stage: int, part: RolePart) -> list[dict[str, Any]]:  # noqa: ARG001  (the stage is the run's name)
    """Play a role's part in a stage."""
    return part.run()


def submit_role(stage: int, part: RolePart) -> PrefectFuture[list[dict[str, Any]]]:
    """Play a role under its own name, in a thread of the flow's."""
    name = part.role.name
    return _play.with_options(name=name, task_run_name=f"{name} stage {{stage}}").submit(stage, part)


@task(name="evaluate", task_run_name="evaluate stage {stage}", cache_policy=NO_CACHE, persist_result=False)
def evaluate(stage: int, what: Evaluation) -> dict[str, Any]:
    """Act greedily with the stage's last snapshot, on seeds that training never saw."""
    future = what.client.submit(
        run_evaluation,
        what.assignment.to_json(),
        what.snapshot,
        what.episodes,
        stage,
        key=f"evaluate {what.assignment.topic} {task_run.id}",
        resources=what.resources,
        pure=False,
    )
    try:
        result: dict[str, Any] = future.result(timeout=what.timeout_seconds)
    except KilledWorker as error:
        raise explain(error) from error
    except TimeoutError as error:
        raise GangError(
            f"evaluating stage {stage} did not end within {what.timeout_seconds:g} s; look at the Dask workers, or "
            f"raise cluster.admission_seconds"
        ) from error
    return result
