"""Settings of the cluster that a run uses, and of what follows the run; they do not change its results."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from penstock.tasks.settings import Settings
from penstock.tasks.setup.distribution.settings import RoleName

TRACKERS = ("tensorboard", "wandb", "mlflow")
_CALLBACK = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


class ClusterSettings(Settings):
    """The Dask cluster, time-outs, trackers and callbacks."""

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
        description="Longest wait for another run's gang to leave, for lost workers to return, or for one to evaluate.",
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
    metrics_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="Port of the flow's process at which Prometheus finds metrics, at /metrics; 0 chooses a free one, "
        "empty: none.",
    )
    metrics_host: str = Field(
        "127.0.0.1",
        min_length=1,
        description="Address that the port for metrics listens on; there is no password.",
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

    track: tuple[str, ...] = Field(
        (),
        description="Trackers that get curves, settings and the report: tensorboard[:FOLDER], wandb[:PROJECT], "
        "mlflow[:URI].",
    )
    callbacks: tuple[str, ...] = Field(
        (), description="Callbacks, as module:Name, that are called in the flow's process after each commit."
    )
    callback_seconds: float = Field(
        60.0,
        gt=0,
        description="Longest wait for callbacks and trackers at the end of a run.",
    )

    @field_validator("track", "callbacks", mode="before")
    @classmethod
    def _several(cls, value: Any) -> Any:
        """Split names at commas."""
        if value is None:
            return ()
        return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value

    @field_validator("track")
    @classmethod
    def _known(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for one in value:
            kind, colon, where = one.partition(":")
            if kind not in TRACKERS or (colon and not where):
                raise ValueError(
                    f"'{one}' is no tracker, expected tensorboard[:FOLDER], wandb[:PROJECT] or mlflow[:URI]"
                )
            if kind == "mlflow" and "@" in urlsplit(where).netloc:
                raise ValueError(
                    "mlflow's address has a user or a password in it, which Prefect would store and show; expected "
                    "mlflow:http://HOST:PORT, and MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
                )
        return value

    @field_validator("callbacks")
    @classmethod
    def _named(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for one in value:
            if not _CALLBACK.fullmatch(one):
                raise ValueError(f"'{one}' names no callback, expected module:Name, such as my_callbacks:Notify")
        return value

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
