"""Settings of the cluster that a run uses; they do not change its results."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator

from penstock.tasks.settings import Settings
from penstock.tasks.setup.distribution.settings import RoleName


class ClusterSettings(Settings):
    """The Dask cluster, and time-outs."""

    scheduler: str | None = Field(
        None, description="Address of a Dask scheduler; empty starts workers on this machine."
    )
    act_workers: int | None = Field(
        None,
        ge=1,
        description="Act processes of the local cluster; empty: one per act task.",
    )
    gang_seconds: float = Field(
        60.0,
        gt=0,
        description="Time-out for all tasks of a stage to report, and for learners that wait for each other.",
    )
    admission_seconds: float = Field(
        600.0,
        gt=0,
        description="Longest wait for another run's gang to leave, or for lost workers to return.",
    )
    lease_seconds: float = Field(15.0, gt=0, description="Tasks leave if the flow's lease is this old.")
    cache_folder: str | None = Field(
        None,
        description="The node's cache of stored files; empty: one in the user's cache folder.",
    )
    cache_limit_bytes: int = Field(
        4 << 30,
        ge=1 << 20,
        description="Size of the node's cache; the least recently used files are evicted.",
    )
    read_budget_bytes: int | None = Field(
        None,
        ge=1 << 20,
        description="Memory for shards that a learner holds or prefetches; empty: 256 MiB, or more if two rounds "
        "need it.",
    )
    upload_threads: int = Field(
        8,
        ge=1,
        le=64,
        description="Concurrent writes of an act task to a remote store; of 1 MiB and more, at most 8.",
    )
    upload_budget_bytes: int = Field(
        256 << 20,
        ge=1 << 20,
        description="Bytes of an act task's rounds that are not stored yet; beyond it, acting waits.",
    )
    window_budget_bytes: int = Field(
        1 << 30,
        ge=1 << 20,
        description="Memory for rows that an off-policy learner samples; rows that do not fit are read when they are "
        "sampled.",
    )
    stall_seconds: float = Field(
        900.0,
        gt=0,
        description="Warn, and send the event penstock.run.stalled, if no round is learned for this long.",
    )
    allow_unfenced: bool = Field(
        False,
        description="Accept a store that lets two flows write one commit, where their bytes may differ; a conflict is "
        "an error at the next read.",
    )
    schedulers: dict[RoleName, tuple[str, ...]] = Field(
        default_factory=dict,
        description="Dask schedulers by role, in place of cluster.scheduler; several share the role's tasks, an empty "
        "list is this machine.",
    )

    @field_validator("schedulers", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        """Split addresses at commas; an empty value is an empty list."""
        if not isinstance(value, dict):
            return value
        return {
            role: [part.strip() for part in given.split(",") if part.strip()] if isinstance(given, str) else given or []
            for role, given in value.items()
        }

    def schedulers_of(self, role: str) -> tuple[str | None, ...]:
        """Return the addresses of the schedulers that run a role's tasks, each once; None is this machine."""
        named = self.schedulers.get(role)
        if named is None:
            return (self.scheduler or None,)
        return tuple(dict.fromkeys(named)) or (None,)
