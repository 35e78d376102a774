"""Fills in store and cluster of a deployment's flow run where its own parameters leave them out.

Prefect replaces a parameter whole. A user who starts a deployment with a custom `config` means another run and not
another place: without this, it would be trained into a folder of the machine on which the flow run happens to start.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from prefect import get_client
from prefect.context import FlowRunContext
from prefect.exceptions import ObjectNotFound

if TYPE_CHECKING:
    from uuid import UUID

    from penstock.tasks.setup.config.run import ConfigT

logger = logging.getLogger(__name__)

_WHERE = {"scheduler", "schedulers"}
"""Settings that name a place: giving one replaces all of them."""


def with_deployment_defaults(config: ConfigT) -> ConfigT:
    """Fill in `store` and settings of `cluster` that a configuration leaves out, from the flow run's deployment.

    Returns:
        The configuration, unchanged where the flow run has no deployment, or its deployment is gone.
    """
    context = FlowRunContext.get()
    deployment = context.flow_run.deployment_id if context and context.flow_run else None
    table = _table_of(deployment) if deployment else {}
    changed: dict[str, object] = {}
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
        logger.info("taken from the deployment: %s", ", ".join(changed))
    return config.model_copy(update=changed)


def with_own_seed(config: ConfigT) -> ConfigT:
    """Give a scheduled flow run a seed of its own, unless its parameters set one; retries keep it.

    Otherwise each night would train the same bytes as the last.
    """
    context = FlowRunContext.get()
    flow_run = context.flow_run if context else None
    if flow_run is None or not flow_run.auto_scheduled or "seed" in config.model_fields_set:
        return config
    seed = int.from_bytes(flow_run.id.bytes[-4:], "big")
    logger.info("seed %d is derived from this scheduled flow run; set `seed` to choose one", seed)
    return config.model_copy(update={"seed": seed})


def _table_of(deployment: UUID) -> dict[str, Any]:
    """Return the parameter `config` of a deployment."""
    with get_client(sync_client=True) as client:
        try:
            return dict(client.read_deployment(deployment).parameters.get("config", {}))
        except ObjectNotFound:
            return {}
