"""A role of a distribution policy of one's own, as a preset describes it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from tasks.policies import Fragment
from tasks.settings import Settings, at

RoleName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,31}$")]


class RoleSettings(Settings):
    """Fragments that share a process, how many replicas there are, and what each takes from a Dask worker."""

    fragments: tuple[Fragment, ...] = Field(
        min_length=1, description="Of env, act, collect, buffer, learn, sync.", json_schema_extra=at(0)
    )
    replicas: Literal[1, "act_tasks", "env_tasks", "learn_tasks"] = Field(
        1, description="One, or the setting that counts them.", json_schema_extra=at(1)
    )
    resources: dict[str, Annotated[float, Field(gt=0)]] = Field(
        default_factory=dict,
        description="What each takes from its Dask worker; empty: learner, server or actor 1, by its fragments.",
        json_schema_extra=at(2),
    )
    pools: Literal["native", "torch"] = Field(
        "native",
        description="What steps the environments of a role that holds env: torch on the learner's device, or native.",
        json_schema_extra=at(3),
    )
