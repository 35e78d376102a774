"""The training flow: one flow run per training run, one task run per role and stage.

Needs nothing in the environment; uses `PREFECT_API_URL`, and the usual credentials if the store is on S3.
"""

from __future__ import annotations

from prefect import flow
from prefect.task_runners import ThreadPoolTaskRunner

from penstock.flows.display.naming import flow_run_name
from penstock.flows.display.summary import FlowResult  # noqa: TC001  (Prefect reads annotations when it runs)
from penstock.flows.support.deployment import with_deployment_defaults, with_own_seed
from penstock.flows.support.execution import execute_run
from penstock.tasks.setup.config.run import TrainConfig  # noqa: TC001  (Prefect reads the annotation when it runs)
from penstock.tasks.setup.planning.resolve import IfExists  # noqa: TC001


@flow(
    name="train",
    flow_run_name=flow_run_name,
    task_runner=ThreadPoolTaskRunner(max_workers=8),  # type: ignore[arg-type]
    persist_result=False,
    validate_parameters=True,
)
def train(config: TrainConfig, if_exists: IfExists = "refuse") -> FlowResult:
    """Train stage by stage until the target return or the last stage is reached.

    A run that was stopped anywhere resumes from its last commit, to the same bytes as if it had never been stopped:
    retry this flow run, or start another with `if_exists = resume`.

    Args:
        config: Everything about the run; store and cluster default to the deployment's. To resume, its
            name, store and cluster are enough.
        if_exists: Action if the run is in the store already: refuse, or resume it.
    """
    return execute_run(with_own_seed(with_deployment_defaults(config)), if_exists)
