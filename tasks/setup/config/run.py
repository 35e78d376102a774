"""The typed settings of a training run: one model, filled by a preset file, the command line or Prefect's form.

Nothing here imports torch, so that the process that drives a run starts quickly. Field order is the form's order.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, Self, TypedDict, TypeVar

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    StringConstraints,
    Tag,
    model_serializer,
    model_validator,
)

from penstock.tasks.settings import Settings
from penstock.tasks.setup.config.algorithm_base import AlgorithmSettings, check_row_steps
from penstock.tasks.setup.config.cluster import ClusterSettings
from penstock.tasks.setup.config.custom_algorithm import CUSTOM, CustomAlgorithmSettings, by_name
from penstock.tasks.setup.config.environment import EnvironmentSettings, LeagueSettings
from penstock.tasks.setup.config.initial import InitialSettings
from penstock.tasks.setup.config.off_policy import DQNSettings, QRDQNSettings, SACSettings, TD3Settings
from penstock.tasks.setup.config.on_policy import IMPALASettings, IPPOSettings, MAPPOSettings, PPOSettings
from penstock.tasks.setup.config.shards import ShardSettings
from penstock.tasks.setup.distribution.policies import AUTO, make_policy, owns_agents
from penstock.tasks.setup.distribution.settings import DistributionSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.tasks.setup.distribution.policies import DistributionPolicy


MOVABLE = ("act_tasks", "env_tasks", "min_act_tasks", "min_env_tasks", "device")
"""The settings of `distribution` that may change when a run resumes."""
_LABEL_LENGTH = 48
"""Characters of a generated name before its suffix, so that the whole fits a run's name."""
RunName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]


class ScheduleSettings(Settings):
    """Rounds, stages, lag, and when training ends."""

    round_steps: int = Field(64, ge=1, description="Steps of every environment in a round.")
    rounds_per_stage: int = Field(
        10,
        ge=1,
        le=1 << 20,
        description="Rounds in a stage; a stage ends with a commit, the resume point.",
    )
    max_stages: int = Field(20, ge=1, description="Stop after this many stages.")
    lag: int = Field(
        0,
        ge=0,
        le=8,
        description="Round r acts with version r - lag: 0 is synchronous, 1 overlaps.",
    )
    target_return: float | None = Field(
        None,
        description="Stop when the mean evaluation return reaches this; empty: no early stop.",
    )
    stop_patience_evaluations: int | None = Field(
        None,
        ge=1,
        description="Stop after so many evaluations in a row that are no improvement; empty: no early stop.",
    )
    stop_min_improvement: float = Field(
        0.0,
        ge=0,
        description="An evaluation is an improvement if its mean return exceeds the best one by more than this.",
    )
    evaluation_episodes: int = Field(
        100,
        ge=1,
        description="Episodes of each evaluation, on seeds that training does not use.",
    )
    evaluate_every_stages: int = Field(1, ge=1, description="Stages between evaluations.")

    @model_validator(mode="after")
    def _stops(self) -> Self:
        if self.stop_min_improvement and self.stop_patience_evaluations is None:
            raise ValueError(
                f"stop_min_improvement = {self.stop_min_improvement:g} has no effect without "
                f"stop_patience_evaluations; set that too, or leave it out"
            )
        return self

    @model_serializer(mode="wrap")
    def _without_unset(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave early stopping out unless it is set: runs without it keep the bytes of their `run.json`."""
        values: dict[str, Any] = handler(self)
        if self.stop_patience_evaluations is None:
            for name in ("stop_patience_evaluations", "stop_min_improvement"):
                values.pop(name, None)
        return values


class RunIdentity(TypedDict):
    """The settings that determine a run's bytes, as `run.json` has them; their digest is the first commit's parent."""

    seed: int
    environment: Mapping[str, object]
    algorithm: Mapping[str, object]
    schedule: Mapping[str, object]
    placement: Mapping[str, object]
    """Settings of the distribution, by their first name."""
    shards: NotRequired[Mapping[str, object]]
    """Settings of shards, in training runs where they are not the defaults."""
    league: NotRequired[Mapping[str, object]]
    """Settings of the other player, in training runs where it is a version of the policy."""
    continues: NotRequired[str]
    """Digest of the commit that it began from with other settings, in such training runs."""
    init_from: NotRequired[Mapping[str, object]]
    """Digest of the parameters of another run, in training runs that start with such."""
    plan: NotRequired[str | None]
    """Digest of the list of shards, in replays."""


class RunConfig(Settings):
    """Settings of any run; training runs and replays derive theirs from it."""

    name: RunName | None = Field(None, description="The run's name, a folder in the store; empty generates one.")
    seed: int = Field(1, ge=0, lt=2**32, description="Seed of all random numbers.")
    store: str = Field("runs", description="Folder or s3:// address that holds runs.")
    environment: EnvironmentSettings = Field(default_factory=EnvironmentSettings)
    algorithm: AlgorithmSettings
    schedule: ScheduleSettings = Field(default_factory=ScheduleSettings)
    distribution: DistributionSettings = Field(default_factory=DistributionSettings)
    cluster: ClusterSettings = Field(default_factory=ClusterSettings)

    @property
    def has_actors(self) -> bool:
        """Return whether the run has environments; otherwise it learns from shards of other runs."""
        return True

    def make_policy(self) -> DistributionPolicy:
        """Build the distribution policy that the settings name; ConfigError as the function `make_policy`."""
        return make_policy(self.distribution)

    @property
    def requires_full_round(self) -> bool:
        """Return whether a round is learned from all of its shards; otherwise from a quorum of them."""
        return self.distribution.quorum == 1.0

    @property
    def promises_same_bytes(self) -> bool:
        """Return whether the settings determine the run's bytes, on the same software and hardware."""
        return self.distribution.max_staleness is None and (self.requires_full_round or not self.has_actors)

    @property
    def shards_needed(self) -> int:
        """Return the number of a round's shards that learning waits for."""
        # 0.1 of 30 is 3; the product of floats is slightly more.
        return max(1, math.ceil(self.distribution.quorum * self.environment.tiles - 1e-9))

    @property
    def summary(self) -> str:
        """Describe the run in a few words."""
        return f"{self.environment.id}, {self.algorithm.name}"

    def with_name(self, suffix: str) -> Self:
        """Return the settings with a name: their own, or a generated one such as `cartpole-v1-0f3a99b1`.

        Args:
            suffix: the end of a generated name, which makes it the only one of its kind.
        """
        if self.name:
            return self
        kind = re.sub(r"[^a-z0-9._-]+", "-", self.environment.label.lower()).strip("-._")[:_LABEL_LENGTH] or "run"
        return self.model_copy(update={"name": f"{kind}-{suffix}"})

    def identity(self) -> RunIdentity:
        """Return the settings that determine a run's bytes: without name, store, number of processes and last stage."""
        distribution = {"policy", "torch_threads", "gradient_block_rows", "quorum"}
        if self.distribution.snapshot_dtype != "float32":  # omitted at the default: older runs keep their identity
            distribution.add("snapshot_dtype")
        if self.make_policy().reduce != "local":  # the split of rows among learners decides how sums are rounded
            distribution.add("learn_tasks")
        if self.distribution.roles:
            distribution.add("roles")
        if self.distribution.max_staleness is not None:
            distribution.add("max_staleness")
        return {  # the keys are stored, and their digest is the parent of a run's first commit: "placement" remains
            "seed": self.seed,
            "environment": self.environment.identity(),
            "algorithm": self.algorithm.identity(),
            "schedule": self.schedule.model_dump(mode="json", exclude={"max_stages"}),
            "placement": self.distribution.model_dump(mode="json", include=distribution),
        }


def any_of(schema: dict[str, Any]) -> None:
    """Replace `oneOf` by `anyOf` in a schema, for Prefect's form and its check of parameters.

    Settings without a `name` fit several of the models, and `oneOf` would refuse them.
    """
    schema["anyOf"] = schema.pop("oneOf")


class TrainConfig(RunConfig):
    """All settings of a training run."""

    algorithm: (
        Annotated[PPOSettings, Tag("ppo")]
        | Annotated[IMPALASettings, Tag("impala")]
        | Annotated[MAPPOSettings, Tag("mappo")]
        | Annotated[IPPOSettings, Tag("ippo")]
        | Annotated[DQNSettings, Tag("dqn")]
        | Annotated[QRDQNSettings, Tag("qr_dqn")]
        | Annotated[SACSettings, Tag("sac")]
        | Annotated[TD3Settings, Tag("td3")]
        | Annotated[CustomAlgorithmSettings, Tag(CUSTOM)]
    ) = Field(
        default_factory=PPOSettings,
        description="The algorithm and its settings.",
        discriminator=by_name("ppo"),
        json_schema_extra=any_of,
    )
    league: LeagueSettings = Field(default_factory=LeagueSettings)
    shards: ShardSettings = Field(default_factory=ShardSettings)
    continues: str | None = Field(
        None,
        description="Digest of another run's commit that this run began from; Penstock sets it.",
    )
    init_from: InitialSettings = Field(default_factory=InitialSettings)

    def identity(self) -> RunIdentity:
        """Return the identity of any run, and what older runs do not have, unless it is the default.

        This is the league, the shard settings, the commit that it continues with other settings and, resolved to a
        digest, the parameters of another run. Their digest alone counts: the same parameters give the same bytes,
        whichever run they come from.
        """
        identity = super().identity()
        if self.league.plays_itself:
            identity["league"] = self.league.identity()
        if self.shards != ShardSettings():
            identity["shards"] = self.shards.model_dump(mode="json")
        if self.continues is not None:
            identity["continues"] = self.continues
        if self.init_from.digest is not None:
            identity["init_from"] = {"digest": self.init_from.digest}
        return identity

    @property
    def summary(self) -> str:
        """Describe the run in a few words."""
        if self.distribution.policy == AUTO:
            return f"{super().summary}, policy not chosen yet, lag {self.schedule.lag}"
        parts = ", ".join(f"{role.replicas} {role.name}" for role in self.make_policy().roles)
        if self.distribution.policy == "single_learner_coarse":
            parts = f"{self.distribution.act_tasks} act tasks"
        return f"{super().summary}, {parts}, lag {self.schedule.lag}"

    @model_validator(mode="after")
    def _fits(self) -> TrainConfig:
        for kind in ("act", "env", "learn"):
            tasks = getattr(self.distribution, f"{kind}_tasks")
            if kind == "learn" and owns_agents(self.distribution):
                continue
            if tasks > self.environment.tiles:
                raise ValueError(
                    f"distribution.{kind}_tasks = {tasks}, but there are only {self.environment.tiles} tiles "
                    f"(environment.num_envs / environment.envs_per_tile); each {kind} task owns at least one"
                )
        row_steps = self.algorithm.row_steps
        check_row_steps(row_steps, self.schedule.round_steps)
        tile_rows = self.environment.envs_per_tile * self.schedule.round_steps
        self.algorithm.check_round(self.shards_needed * tile_rows // row_steps)
        if self.league.plays_itself:
            self._check_self_play()
        return self

    def _check_self_play(self) -> None:
        asked = f"league.opponents = '{self.league.opponents}'"
        if self.algorithm.name not in ("ppo", "impala"):
            raise ValueError(
                f"{asked}: algorithm.name = '{self.algorithm.name}', expected ppo or impala, whose policies sample "
                f"an action; choose one of them"
            )
        if self.algorithm.row_steps > 1:
            raise ValueError(
                f"{asked}: algorithm.network = 'recurrent' needs a memory for every opponent, which none has; choose "
                f"another network"
            )
        if self.environment.max_episode_steps is not None:
            raise ValueError(
                f"{asked}: environment.max_episode_steps = {self.environment.max_episode_steps} would count the moves "
                f"of both players; leave it out"
            )
        if not self.promises_same_bytes or not self.requires_full_round:
            raise ValueError(
                f"{asked}: opponents are drawn for whole rounds, expected distribution.quorum = 1 and no "
                f"max_staleness; leave them out"
            )

    @model_serializer(mode="wrap")
    def _without_league(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave the league out unless it is set: runs without it keep the bytes of their `run.json`."""
        values: dict[str, Any] = handler(self)
        if not self.league.plays_itself:
            values.pop("league", None)
        return values


ConfigT = TypeVar("ConfigT", bound=RunConfig)
