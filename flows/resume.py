"""The resume flow: resumes a named run, or the newest unfinished one; for schedules, automations and people.

Needs nothing in the environment; uses `PREFECT_API_URL`, and the usual credentials if the store is on S3.
"""

from __future__ import annotations

from prefect import flow
from prefect.client.schemas.objects import State  # noqa: TC002  (Prefect reads annotations when it runs)
from prefect.states import Completed
from prefect.task_runners import ThreadPoolTaskRunner

from penstock.flows.display.naming import resume_name
from penstock.flows.display.summary import FlowResult  # noqa: TC001  (Prefect reads annotations when it runs)
from penstock.flows.support.execution import execute_run
from penstock.flows.support.find_resumable import unfinished_config
from penstock.tasks.setup.config.cluster import ClusterSettings
from penstock.tasks.setup.config.run import RunName  # noqa: TC001  (the same)


@flow(
    name="resume",
    flow_run_name=resume_name,
    task_runner=ThreadPoolTaskRunner(max_workers=8),  # type: ignore[arg-type]
    persist_result=False,
    validate_parameters=True,
)
def resume(
    run: RunName | None = None,
    store: str = "runs",
    cluster: ClusterSettings = ClusterSettings(),  # noqa: B008  (frozen)
    trust: bool = False,
) -> FlowResult | State[None]:
    """Resume a run from its last commit, to the same bytes as if it had never been stopped.

    Without a name it is the newest run of the store that is neither finished nor driven by a flow; if there is none,
    the flow run is completed and says so.

    Args:
        run: Name of the run; empty takes the newest that is not finished.
        store: Folder or s3:// address that holds it.
        cluster: Where it is resumed; empty starts workers on this machine.
        trust: Import the code that the run names, also where Python finds it in the flow run's working directory.
    """
    config = unfinished_config(store, run, cluster, trust=trust)
    if config is None:
        return Completed(message=f"run '{run}' is finished" if run else f"no unfinished run in {store}")
    return execute_run(config, "resume")
