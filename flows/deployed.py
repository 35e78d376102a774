"""Where the flow run of a deployment lies and runs, as far as its own parameters leave that open.

Prefect replaces a parameter whole. Whoever starts a deployment with a `config` of their own means another run and not
another place: without this, it would be trained into a folder of whichever machine the flow run came to.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from prefect import get_client
from prefect.context import FlowRunContext
from prefect.exceptions import ObjectNotFound

if TYPE_CHECKING:
    from uuid import UUID

    from tasks.config import ConfigT

logger = logging.getLogger(__name__)

_WHERE = {"scheduler", "schedulers"}
"""Who names one place means no other."""


def as_deployed(config: ConfigT) -> ConfigT:
    """A configuration with `store` and settings of `cluster` that it leaves out as the flow run's deployment has them.

    Unchanged where the flow run is of no deployment, or its deployment is gone.
    """
    context = FlowRunContext.get()
    deployment = context.flow_run.deployment_id if context and context.flow_run else None
    table = _table_of(deployment) if deployment else {}
    changed: dict[str, Any] = {}
    if "store" in table and "store" not in config.model_fields_set:
        changed["store"] = table["store"]
    given = config.cluster.model_fields_set
    if given & _WHERE:
        given = given | _WHERE
    left_out = {name: value for name, value in table.get("cluster", {}).items() if name not in given}
    if left_out:
        cluster = config.cluster.model_dump(exclude_unset=True)
        changed["cluster"] = type(config.cluster).model_validate({**cluster, **left_out})
    if changed:
        logger.info("as its deployment has it: %s", ", ".join(changed))
    return config.model_copy(update=changed)


def _table_of(deployment: UUID) -> dict[str, Any]:
    """The parameter `config` of a deployment."""
    with get_client(sync_client=True) as client:
        try:
            return dict(client.read_deployment(deployment).parameters.get("config", {}))
        except ObjectNotFound:
            return {}
