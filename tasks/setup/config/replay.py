"""The typed settings of a replay: a run that learns from the shards of earlier runs. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, Tag, field_validator, model_validator

from penstock.storage.errors import ConfigError
from penstock.storage.runs.run import stored_settings
from penstock.tasks.settings import Settings
from penstock.tasks.setup.config.custom_algorithm import CUSTOM, CustomAlgorithmSettings, by_name
from penstock.tasks.setup.config.loading import build_config, merge, validate
from penstock.tasks.setup.config.offline import BehaviourCloningSettings, IQLSettings, TD3BCSettings
from penstock.tasks.setup.config.run import RunConfig, RunIdentity, RunName, ScheduleSettings, any_of
from penstock.tasks.setup.distribution.settings import DistributionSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.tasks.setup.distribution.policies import DistributionPolicy

_POLICY = "learner_over_storage"
_POLICIES = (_POLICY, "multiple_learners", "central")


class Bounds(Settings):
    """A range with both ends included; an omitted end is unbounded."""

    first: int = Field(0, ge=0, description="Lower bound.")
    last: int | None = Field(None, ge=0, description="Upper bound; empty: unbounded.")

    @model_validator(mode="after")
    def _ordered(self) -> Bounds:
        if self.last is not None and self.last < self.first:
            raise ValueError(f"{self.first}:{self.last} is empty; expected FIRST:LAST, and LAST not smaller than FIRST")
        return self

    def __contains__(self, value: int) -> bool:
        return self.first <= value and (self.last is None or value <= self.last)


class SourceSettings(Settings):
    """The stored rows that a replay learns from."""

    runs: tuple[RunName, ...] = Field(min_length=1, description="Runs in the same store whose shards are read.")
    stages: Bounds = Field(default_factory=Bounds, description="Stages of these runs, both ends included.")
    versions: Bounds = Field(default_factory=Bounds, description="Versions that acted the rows, both ends included.")
    min_return: float | None = Field(None, description="Only rows of whole episodes with at least this return.")

    @model_validator(mode="after")
    def _once(self) -> SourceSettings:
        twice = sorted({run for run in self.runs if self.runs.count(run) > 1})
        if twice:
            raise ValueError(f"{', '.join(twice)} more than once in source.runs; name each run once")
        return self


class ReplaySchedule(ScheduleSettings):
    """Rounds, stages, and when learning ends."""

    shards_per_round: int = Field(16, ge=1, description="Shards whose rows are mixed in a round.")


class ReplayConfig(RunConfig):
    """All settings of a replay. Its environment is that of its sources, which all have the same one."""

    source: SourceSettings = Field()
    algorithm: (
        Annotated[BehaviourCloningSettings, Tag("behaviour_cloning")]
        | Annotated[IQLSettings, Tag("iql")]
        | Annotated[TD3BCSettings, Tag("td3_bc")]
        | Annotated[CustomAlgorithmSettings, Tag(CUSTOM)]
    ) = Field(
        default_factory=BehaviourCloningSettings,
        description="The algorithm and its settings.",
        discriminator=by_name("behaviour_cloning"),
        json_schema_extra=any_of,
    )
    schedule: ReplaySchedule = Field(default_factory=ReplaySchedule)
    distribution: DistributionSettings = Field(default_factory=lambda: DistributionSettings(policy=_POLICY))
    plan: str | None = Field(
        None,
        pattern=r"^[0-9a-f]{32}$",
        description="Digest of the list of shards, computed and stored when the run begins.",
    )

    @field_validator("distribution", mode="before")
    @classmethod
    def _over_storage(cls, value: object) -> object:
        """Fill in the policy where other settings of the table are given."""
        return {"policy": _POLICY, **value} if isinstance(value, dict) else value

    @property
    def has_actors(self) -> bool:
        """Return False: a replay has no environments."""
        return False

    def make_policy(self) -> DistributionPolicy:
        """Build the learning part of the policy that the settings name."""
        return super().make_policy().over_storage()

    @property
    def summary(self) -> str:
        """Describe the run in a few words."""
        return f"{super().summary} from {', '.join(self.source.runs)}"

    @model_validator(mode="after")
    def _only_learns(self) -> ReplayConfig:
        if self.distribution.policy not in _POLICIES:
            raise ValueError(
                f"distribution.policy = '{self.distribution.policy}': a replay only learns, expected "
                f"{', '.join(_POLICIES)}"
            )
        if self.distribution.learn_tasks > self.schedule.shards_per_round:
            raise ValueError(
                f"distribution.learn_tasks = {self.distribution.learn_tasks}, but a round has only "
                f"{self.schedule.shards_per_round} shards (schedule.shards_per_round); each learner has at least one"
            )
        for field in ("round_steps", "lag"):
            value = getattr(self.schedule, field)
            if value != ScheduleSettings.model_fields[field].default:
                raise ValueError(f"schedule.{field} = {value}: a replay does not act; leave it out")
        return self

    def identity(self) -> RunIdentity:
        """Return the identity of any run and the plan, which names every shard of the sources by its digest."""
        return {**super().identity(), "plan": self.plan}


def build_replay_config(values: Mapping[str, Any]) -> ReplayConfig:
    """Validate the settings of a replay.

    Raises:
        ConfigError: one line per mistake, with the field, the value and the expectation.
    """
    return validate(ReplayConfig, values)


def build_stored_config(values: Mapping[str, Any], given: Mapping[str, Any] | None = None) -> RunConfig:
    """Validate the settings in a `run.json` of a training run or a replay.

    Args:
        values: that the run stores.
        given: that count instead, table by table; those of `cluster` and `store` are taken from here alone.

    Raises:
        ConfigError: as `build_replay_config`; or they name a header without its text, as no run stores it: a file of
            this machine would be compiled.
    """
    values = merge(stored_settings(values), given or {})
    config = build_replay_config(values) if "source" in values else build_config(values)
    if config.environment.header is not None and config.environment.header_text is None:
        raise ConfigError(
            f"environment.header = '{config.environment.header}' without environment.header_text: a stored run has the "
            f"text of its header, so these settings were altered; restore `run.json` from a copy"
        )
    return config
