"""The sweep flow: trains one run per point of a grid of settings, and compares them in one table.

Needs nothing in the environment; uses `PREFECT_API_URL`, and the usual credentials if the store is on S3.
"""

from __future__ import annotations

from typing import Annotated, Any

from prefect import flow
from pydantic import Field

from penstock.flows.display.artifact import table_artifact
from penstock.flows.support.deployment import with_deployment_defaults
from penstock.flows.support.sweep_points import SweepRow, grid_points, train_points
from penstock.tasks.setup.config.run import TrainConfig


@flow(name="sweep", flow_run_name="sweep {name}", persist_result=False, validate_parameters=True)
def sweep(
    name: str,
    grid: dict[str, list[Any]],
    config: TrainConfig = TrainConfig(),  # noqa: B008  (frozen)
    runs_at_once: Annotated[int, Field(ge=1)] = 1,
) -> list[SweepRow]:
    """Train one run per point of a grid of settings, and compare them in one table, the best first.

    Each point is its own run and flow run; the name is derived from its settings. Started again, the sweep skips
    finished runs and resumes the others.

    Args:
        name: Name of the sweep; its runs begin with it.
        grid: Values by the name of a setting, such as {"learning_rate": [0.01, 0.003], "seed": [1, 2]}.
        config: What the runs have in common; store and cluster default to the deployment's.
        runs_at_once: Number of runs trained concurrently.
    """
    return train_points(
        name, grid_points(name, grid, with_deployment_defaults(config)), runs_at_once, table_artifact(name, "sweep")
    )
