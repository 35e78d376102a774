"""The typed settings of a replay: a run that learns from the shards of earlier runs. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, Tag, model_validator

from tasks.algorithm_settings.behaviour_cloning import BehaviourCloningSettings
from tasks.algorithm_settings.iql import IQLSettings
from tasks.algorithm_settings.own import OWN, OwnSettings, by_name
from tasks.config import (
    PlacementSettings,
    RunConfig,
    RunName,
    ScheduleSettings,
    any_of,
    build_config,
    validate,
)
from tasks.settings import Settings, at

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tasks.policies import DistributionPolicy

_POLICY = "learner_over_storage"
_POLICIES = (_POLICY, "multiple_learners", "central")


class Bounds(Settings):
    """A range with both ends included; an end that is left out is open."""

    first: int = Field(0, ge=0, description="The first that counts.", json_schema_extra=at(0))
    last: int | None = Field(None, ge=0, description="The last that counts; empty: no end.", json_schema_extra=at(1))

    @model_validator(mode="after")
    def _ordered(self) -> Bounds:
        if self.last is not None and self.last < self.first:
            raise ValueError(f"{self.first}:{self.last} is empty; expected the first, a colon, and no smaller last")
        return self

    def __contains__(self, value: int) -> bool:
        return self.first <= value and (self.last is None or value <= self.last)


class SourceSettings(Settings):
    """Which stored rows are learned from."""

    runs: tuple[RunName, ...] = Field(
        min_length=1, description="Runs in the same store whose shards are read.", json_schema_extra=at(0)
    )
    stages: Bounds = Field(
        default_factory=Bounds, description="Stages of these runs, both ends included.", json_schema_extra=at(1)
    )
    versions: Bounds = Field(
        default_factory=Bounds, description="Versions that acted, both ends included.", json_schema_extra=at(2)
    )
    min_return: float | None = Field(
        None, description="Only rows of whole episodes with at least this return.", json_schema_extra=at(3)
    )

    @model_validator(mode="after")
    def _once(self) -> SourceSettings:
        twice = sorted({run for run in self.runs if self.runs.count(run) > 1})
        if twice:
            raise ValueError(f"{', '.join(twice)} more than once in source.runs; name each run once")
        return self


class ReplaySchedule(ScheduleSettings):
    """How much is learned, in which portions, and when it is enough."""

    shards_per_round: int = Field(
        16, ge=1, description="Shards whose rows are mixed in a round.", json_schema_extra=at(7)
    )


class ReplayConfig(RunConfig):
    """Everything that describes a replay. Its environment is that of its sources, which are told apart by it."""

    source: SourceSettings = Field(json_schema_extra=at(8))
    algorithm: (
        Annotated[BehaviourCloningSettings, Tag("behaviour_cloning")]
        | Annotated[IQLSettings, Tag("iql")]
        | Annotated[OwnSettings, Tag(OWN)]
    ) = Field(
        default_factory=BehaviourCloningSettings,
        description="The algorithm and its settings.",
        discriminator=by_name("behaviour_cloning"),
        json_schema_extra=any_of,
    )
    schedule: ReplaySchedule = Field(default_factory=ReplaySchedule, json_schema_extra=at(5))
    placement: PlacementSettings = Field(
        default_factory=lambda: PlacementSettings(policy=_POLICY), json_schema_extra=at(6)
    )
    plan: str | None = Field(
        None,
        pattern=r"^[0-9a-f]{32}$",
        description="Digest of the list of shards; made when the run begins, and kept.",
        json_schema_extra=at(9),
    )

    @property
    def acts(self) -> bool:
        """It does not."""
        return False

    @property
    def policy(self) -> DistributionPolicy:
        """What learns of the policy that is named."""
        return super().policy.over_storage()

    @property
    def story(self) -> str:
        """What runs, in a few words."""
        return f"{super().story} from {', '.join(self.source.runs)}"

    @model_validator(mode="after")
    def _only_learns(self) -> ReplayConfig:
        if self.placement.policy not in _POLICIES:
            raise ValueError(
                f"placement.policy = '{self.placement.policy}': a replay only learns, expected {', '.join(_POLICIES)}"
            )
        if self.placement.learn_tasks > self.schedule.shards_per_round:
            raise ValueError(
                f"placement.learn_tasks = {self.placement.learn_tasks}, but a round has only "
                f"{self.schedule.shards_per_round} shards (schedule.shards_per_round); each learner has at least one"
            )
        for field in ("round_steps", "lag"):
            value = getattr(self.schedule, field)
            if value != ScheduleSettings.model_fields[field].default:
                raise ValueError(f"schedule.{field} = {value}: a replay acts nothing; leave it out")
        return self

    def identity(self) -> dict[str, Any]:
        """As of every run; of its sources it is the plan that counts, which names every shard by its digest."""
        return {**super().identity(), "plan": self.plan}


def build_replay_config(values: Mapping[str, Any]) -> ReplayConfig:
    """Validate the settings of a replay.

    Raises:
        ConfigError: one line a mistake, each naming the field, the value and what would be right.
    """
    return validate(ReplayConfig, values)


def build_stored_config(values: Mapping[str, Any]) -> RunConfig:
    """The settings in a `run.json`, of whichever kind; raises as `build_replay_config`."""
    return build_replay_config(values) if "source" in values else build_config(values)
