"""The settings of a run that say where it runs, and are no part of what it computes."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator

from tasks.role_settings import RoleName
from tasks.settings import Settings, at


class ClusterSettings(Settings):
    """Which Dask cluster, and how long to wait for it."""

    scheduler: str | None = Field(
        None, description="Address of a Dask scheduler; empty starts workers on this machine.", json_schema_extra=at(0)
    )
    act_workers: int | None = Field(
        None,
        ge=1,
        description="Act processes of the local cluster; empty takes one an act task.",
        json_schema_extra=at(1),
    )
    gang_seconds: float = Field(
        60.0,
        gt=0,
        description="All tasks of a stage must have reported within it; learners wait so long for each other.",
        json_schema_extra=at(2),
    )
    admission_seconds: float = Field(
        600.0,
        gt=0,
        description="Longest wait for another run's gang to leave, or for lost workers to come back.",
        json_schema_extra=at(3),
    )
    lease_seconds: float = Field(
        15.0, gt=0, description="Tasks leave when the flow was silent for so long.", json_schema_extra=at(4)
    )
    cache_folder: str | None = Field(
        None,
        description="The node's cache of stored files; empty takes one under the temporary folder.",
        json_schema_extra=at(5),
    )
    cache_limit_bytes: int = Field(
        4 << 30,
        ge=1 << 20,
        description="Size of the node's cache; what was not used for longest makes room.",
        json_schema_extra=at(6),
    )
    read_budget_bytes: int | None = Field(
        None,
        ge=1 << 20,
        description="Memory for shards that a learner has or reads ahead; empty takes 256 MiB, or more where two "
        "rounds need it.",
        json_schema_extra=at(7),
    )
    upload_threads: int = Field(
        8,
        ge=1,
        le=64,
        description="Writes of an act task that are on their way at once to a remote store; of 1 MiB and more, 8.",
        json_schema_extra=at(8),
    )
    upload_budget_bytes: int = Field(
        256 << 20,
        ge=1 << 20,
        description="Acted rounds of an act task that are not stored yet; beyond it, acting waits.",
        json_schema_extra=at(9),
    )
    window_budget_bytes: int = Field(
        1 << 30,
        ge=1 << 20,
        description="Memory for rows that an off-policy learner draws from; what does not fit is read when it is "
        "drawn.",
        json_schema_extra=at(10),
    )
    stall_seconds: float = Field(
        900.0,
        gt=0,
        description="Warn, and send the event penstock.run.stalled, where no round was learned for so long.",
        json_schema_extra=at(11),
    )
    schedulers: dict[RoleName, tuple[str, ...]] = Field(
        default_factory=dict,
        description="By role, Dask schedulers that have its tasks where cluster.scheduler has not; several share them, "
        "and none is this machine.",
        json_schema_extra=at(12),
    )

    @field_validator("schedulers", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        """Addresses with commas between them are a list; nothing is an empty one."""
        if not isinstance(value, dict):
            return value
        return {
            role: [part.strip() for part in told.split(",") if part.strip()] if isinstance(told, str) else told or []
            for role, told in value.items()
        }

    def schedulers_of(self, role: str) -> tuple[str | None, ...]:
        """Addresses of the schedulers that a role's tasks run on, each once; None is this machine."""
        named = self.schedulers.get(role)
        if named is None:
            return (self.scheduler or None,)
        return tuple(dict.fromkeys(named)) or (None,)
