"""Names that connect a flow run with the training run that it drives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prefect.runtime import deployment, flow_run

from penstock.storage.digest import digest
from penstock.tasks.setup.config.run import ConfigT, RunConfig

if TYPE_CHECKING:
    from penstock.tasks.setup.planning.resolve import IfExists


def named(config: ConfigT) -> ConfigT:
    """Return the configuration with a name; a generated one is derived from the flow run, so that a retry finds it."""
    return config if config.name else config.with_name(str(flow_run.id)[-8:])


def exists_policy(if_exists: IfExists) -> IfExists:
    """Return `resume` for a retry of a flow run, which always resumes the run of its first try."""
    return "resume" if (flow_run.run_count or 0) > 1 else if_exists


def is_unattended() -> bool:
    """Return whether nobody waits for the flow run: a retry, or a flow run of a deployment."""
    return (flow_run.run_count or 0) > 1 or deployment.id is not None


def flow_run_name() -> str:
    """Return a readable name for the UI, such as `train cartpole-1`."""
    kind = flow_run.flow_name or "train"
    config: Any = flow_run.parameters.get("config")
    return f"{kind} {named(config).name if isinstance(config, RunConfig) else (config or {}).get('name')}"


def resume_name() -> str:
    """Return a readable name for the UI, such as `resume cartpole-1`."""
    return f"resume {flow_run.parameters.get('run') or 'the newest unfinished run'}"


def artifact_key(run: str, kind: str) -> str:
    """Return an artifact's key, such as `cartpole-1-stages`; Prefect allows letters, digits and dashes.

    A name with other characters is told from one with dashes in their places by a part of its digest.
    """
    allowed = run.replace(".", "-").replace("_", "-")
    return f"{run}-{kind}" if allowed == run else f"{allowed}-{digest(run.encode())[:6]}-{kind}"
