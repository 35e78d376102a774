"""The training flow: one flow run a training run, one task run a role and stage.

Needs nothing in the environment; uses `PREFECT_API_URL`, and the usual credentials if the store is on S3.
"""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.task_runners import ThreadPoolTaskRunner

from flows.deployed import as_deployed
from flows.identity import flow_run_name
from flows.reported import reported
from tasks.config import TrainConfig  # noqa: TC001  (Prefect reads the annotation when it runs)
from tasks.start import IfExists  # noqa: TC001


@flow(
    name="train",
    flow_run_name=flow_run_name,
    task_runner=ThreadPoolTaskRunner(max_workers=8),  # type: ignore[arg-type]
    persist_result=False,
    validate_parameters=True,
)
def train(config: TrainConfig, if_exists: IfExists = "refuse") -> dict[str, Any]:
    """Train stage by stage until the target return or the last stage is reached.

    A run that was stopped anywhere goes on from its last commit, to the same bytes as if it had never been stopped:
    retry this flow run, or start another with `if_exists = resume`.

    Args:
        config: Everything about the run; store and cluster are the deployment's unless they are given. To resume, its
            name, store and cluster are enough.
        if_exists: What to do if the run is in the store already: refuse, or resume it.
    """
    return reported(as_deployed(config), if_exists)
