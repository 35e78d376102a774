"""The resuming flow: goes on with a run that was stopped, whichever it is; for schedules, automations and people.

Needs nothing in the environment; uses `PREFECT_API_URL`, and the usual credentials if the store is on S3.
"""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State  # noqa: TC002  (Prefect reads annotations when it runs)
from prefect.states import Completed
from prefect.task_runners import ThreadPoolTaskRunner

from flows.identity import resume_name
from flows.reported import reported
from flows.resuming import unfinished_config
from tasks.cluster_settings import ClusterSettings
from tasks.config import RunName  # noqa: TC001  (the same)


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
) -> dict[str, Any] | State[None]:
    """Go on with a run from its last commit, to the same bytes as if it had never been stopped.

    Without a name it is the newest run of the store that is neither finished nor driven by somebody; if there is none,
    the flow run is completed and says so.

    Args:
        run: Name of the run; empty takes the newest that is not finished.
        store: Folder or s3:// address that holds it.
        cluster: Where it goes on; empty starts workers on this machine.
    """
    config = unfinished_config(store, run, cluster)
    if config is None:
        return Completed(message=f"run '{run}' is finished" if run else f"no unfinished run in {store}")
    return reported(config, "resume")
