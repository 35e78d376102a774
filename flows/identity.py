"""How a flow run and the training run that it drives find each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prefect.runtime import flow_run

from tasks.config import ConfigT, RunConfig

if TYPE_CHECKING:
    from tasks.start import IfExists


def named(config: ConfigT) -> ConfigT:
    """The configuration with a name; one that is made up follows from the flow run, so that a retry finds its run."""
    if config.name:
        return config
    return config.model_copy(update={"name": f"{config.environment.id.lower()}-{str(flow_run.id)[-8:]}"})


def exists_policy(if_exists: IfExists) -> IfExists:
    """A retry of a flow run always goes on with what its first try began."""
    return "resume" if (flow_run.run_count or 0) > 1 else if_exists


def flow_run_name() -> str:
    """`train cartpole-1`: readable in the UI."""
    kind = flow_run.flow_name or "train"
    config: Any = flow_run.parameters.get("config")
    return f"{kind} {named(config).name if isinstance(config, RunConfig) else (config or {}).get('name')}"


def resume_name() -> str:
    """`resume cartpole-1`, or whatever is found."""
    return f"resume {flow_run.parameters.get('run') or 'what is not finished'}"


def artifact_key(run: str, kind: str) -> str:
    """`cartpole-1-stages`: of what the UI shows of a run; Prefect allows no other characters than these."""
    return f"{run.replace('.', '-').replace('_', '-')}-{kind}"
