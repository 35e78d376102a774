"""Settings of the distribution of fragments over processes, and of the roles of a custom policy."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    StringConstraints,
    field_validator,
    model_serializer,
    model_validator,
)

from penstock.tasks.settings import Settings


class DistributionSettings(Settings):
    """Distribution of the algorithm's fragments over processes."""

    policy: str = Field(
        "single_learner_coarse",
        description="Distribution policy; auto chooses the one with the shortest predicted round.",
    )
    act_tasks: int = Field(
        1,
        ge=1,
        description="Act tasks, under policies that have them; each owns whole tiles.",
    )
    env_tasks: int = Field(
        1,
        ge=1,
        description="Tasks that only step environments, under policies that have them; each owns whole tiles.",
    )
    learn_tasks: int = Field(
        1,
        ge=1,
        description="Learners, under policies that have several; each owns whole tiles and reduces gradients with the "
        "others, or owns agents.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="Device that learning runs on.")
    torch_threads: int = Field(1, ge=1, description="Torch's threads in a learn task.")
    gradient_block_rows: int = Field(
        4096,
        ge=1,
        description="Rows per gradient computation; blocks are summed in a fixed tree.",
    )
    quorum: float = Field(
        1.0,
        gt=0.0,
        le=1.0,
        description="Share of a round's shards that learning waits for; only 1.0 keeps the same-bytes promise.",
    )
    max_staleness: int | None = Field(
        None,
        ge=0,
        description="Under a parameter server, learners take steps independently, at most so many minibatches ahead of "
        "the slowest; empty: all together, with the same-bytes promise.",
    )
    snapshot_dtype: Literal["float32", "bfloat16", "int8"] = Field(
        "float32",
        description="Type of the actors' weights: int8 and bfloat16 take a quarter and half of the bytes, and round.",
    )
    snapshot_differences: bool = Field(
        False,
        description="With snapshot_dtype = bfloat16 on a remote store, store each version's difference from the one "
        "before as well, which nodes that keep that one read instead.",
    )
    roles: dict[RoleName, RoleSettings] = Field(
        default_factory=dict,
        description="Roles of a custom policy, by name; distribution.policy is then its name.",
    )
    min_act_tasks: int | None = Field(
        None,
        ge=1,
        description="Fewest act tasks with which a stage may begin if worker slots are short; empty: all.",
    )
    min_env_tasks: int | None = Field(None, ge=1, description="As min_act_tasks, for environment tasks.")

    @model_validator(mode="after")
    def _fewest(self) -> DistributionSettings:
        for name in ("act_tasks", "env_tasks"):
            fewest, most = getattr(self, f"min_{name}"), getattr(self, name)
            if fewest is not None and fewest > most:
                raise ValueError(f"min_{name} = {fewest} is more than {name} = {most}; choose at most {most}")
        return self

    @model_validator(mode="after")
    def _differences(self) -> DistributionSettings:
        if self.snapshot_differences and self.snapshot_dtype != "bfloat16":
            raise ValueError(
                f"snapshot_differences = true needs snapshot_dtype = bfloat16, but it is {self.snapshot_dtype}: "
                f"differences of other types are not small enough; choose bfloat16, or leave them out"
            )
        return self


Fragment = Literal["env", "act", "collect", "buffer", "learn", "sync"]
FRAGMENTS: tuple[Fragment, ...] = ("env", "act", "collect", "buffer", "learn", "sync")


RoleName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,31}$")]


class RoleSettings(Settings):
    """Fragments that share a process, the number of replicas, and the Dask resources of each."""

    fragments: tuple[Fragment, ...] = Field(min_length=1, description="Some of env, act, collect, buffer, learn, sync.")
    replicas: Literal[1, "act_tasks", "env_tasks", "learn_tasks"] = Field(
        1, description="1, or the setting that gives the number."
    )
    resources: dict[str, Annotated[float, Field(gt=0)]] = Field(
        default_factory=dict,
        description="Dask resources of each replica; empty: learner, server or actor 1, by its fragments.",
    )
    pools: Literal["native", "torch"] = Field(
        "native",
        description="Pools of a role that holds env: native, or torch on the learner's device.",
    )
    agents: tuple[tuple[int, ...], ...] | None = Field(
        None,
        description="Agents whose parameters each replica of a role that holds learn trains, as in [[0, 1], [2]], or "
        "[0, 1, 2] for one each; empty: learners train all parameters together.",
    )

    @field_validator("agents", mode="before")
    @classmethod
    def _one_each(cls, agents: Any) -> Any:
        return [[item] if isinstance(item, int) else item for item in agents] if isinstance(agents, list) else agents

    @model_serializer(mode="wrap")
    def _without_unset(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave agents out unless they are set: runs without them keep the bytes of their identity."""
        values: dict[str, Any] = handler(self)
        if self.agents is None:
            del values["agents"]
        return values
