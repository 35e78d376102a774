"""Which columns a run's shards have, and how each is stored. Imports no torch: the flow checks settings with it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator, model_validator

from storage.errors import ConfigError
from storage.specs import Spec
from tasks.settings import Settings, at

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tasks.config import TrainConfig


class ShardSettings(Settings):
    """How columns are stored in shards. Readers see no difference."""

    compression: dict[str, Literal["lz4", "zstd"]] = Field(
        default_factory=dict,
        description="Columns to compress and by what, such as observation = lz4; the same codec for all.",
        json_schema_extra=at(0),
    )
    stacked: tuple[str, ...] = Field(
        (),
        description="Columns whose values are stacks of frames; each frame is then stored once.",
        json_schema_extra=at(1),
    )

    @field_validator("stacked", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("stacked")
    @classmethod
    def _in_order(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(sorted(set(value)))  # the order has no meaning, and may not make another identity

    @model_validator(mode="after")
    def _one_codec(self) -> ShardSettings:
        codecs = sorted(set(self.compression.values()))
        if len(codecs) > 1:
            raise ValueError(f"compression by {' and '.join(codecs)}: a shard has one codec; choose one of them")
        return self


def shard_columns(observation: Spec, reward: Spec, rows: Mapping[str, Spec]) -> dict[str, Spec]:
    """The environment's columns, the algorithm's `rows`, and who acted with what; all plain."""
    return {
        "observation": observation,
        "reward": reward,
        "terminated": Spec("uint8"),
        "truncated": Spec("uint8"),
        **rows,
        "env_id": Spec("int32"),
        "episode_id": Spec("int32"),
        "policy_version": Spec("int32"),
    }


def stored_as(columns: Mapping[str, Spec], shards: ShardSettings) -> dict[str, Spec]:
    """The same columns, stored as the settings say.

    Raises:
        ConfigError: there is no such column, or it is no stack of frames.
    """
    unknown = sorted({*shards.compression, *shards.stacked} - set(columns))
    if unknown:
        raise ConfigError(f"shards: there is no column {', '.join(unknown)}; there are: {', '.join(columns)}")
    stored = dict(columns)
    for name, codec in shards.compression.items():
        stored[name] = replace(stored[name], compression=codec)
    for name in shards.stacked:
        try:
            stored[name] = replace(stored[name], stacked=True)
        except ConfigError as error:
            raise ConfigError(f"shards.stacked: '{name}': {error} Leave it out") from error
    return stored


def check_stored_as(config: TrainConfig, environment: Mapping[str, Any], own: Mapping[str, Spec] | None = None) -> None:
    """Refuse settings that shards of an environment, as its pool describes it, can't have.

    Args:
        config: of the run.
        environment: what its pool says of it.
        own: row columns of an algorithm from outside the repository.

    Raises:
        ConfigError: as `stored_as`.
    """
    observation, action = environment["observation"], environment["action"]
    rows = dict(own or dict.fromkeys(config.algorithm.columns, Spec("float32")))
    rows["action"] = Spec("int64" if action["kind"] == "discrete" else "float32", tuple(action.get("shape", ())))
    reward = Spec("float32", (environment["agents"],) if environment["agents"] else ())
    stored_as(shard_columns(Spec(observation["dtype"], tuple(observation["shape"])), reward, rows), config.shards)
