"""The sweeping flow: one training run a point of a grid of settings, compared in one table.

Needs nothing in the environment; uses `PREFECT_API_URL`, and the usual credentials if the store is on S3.
"""

from __future__ import annotations

from typing import Annotated, Any

from prefect import flow
from pydantic import Field

from flows.deployed import as_deployed
from flows.shown import shown_table
from flows.sweeping import grid_points, train_points
from tasks.config import TrainConfig


@flow(name="sweep", flow_run_name="sweep {name}", persist_result=False, validate_parameters=True)
def sweep(
    name: str,
    grid: dict[str, list[Any]],
    config: TrainConfig = TrainConfig(),  # noqa: B008  (frozen)
    runs_at_once: Annotated[int, Field(ge=1)] = 1,
) -> list[dict[str, Any]]:
    """Train one run a point of a grid of settings, and compare them in one table, the best first.

    Each is a run and a flow run of its own, whose name follows from its settings. Started again, the sweep leaves out
    what is finished and goes on with what is not.

    Args:
        name: Name of the sweep; its runs begin with it.
        grid: Values by the name of a setting, such as {"learning_rate": [0.01, 0.003], "seed": [1, 2]}.
        config: What the runs have in common; store and cluster are the deployment's unless they are given.
        runs_at_once: So many are trained at the same time.
    """
    return train_points(name, grid_points(name, grid, as_deployed(config)), runs_at_once, shown_table(name, "sweep"))
