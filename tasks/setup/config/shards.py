"""Columns of a run's shards, and how each is stored. Imports no torch: the flow checks settings with it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator, model_validator

from penstock.storage.errors import ConfigError
from penstock.storage.shards.specs import Leaf, Spec
from penstock.tasks.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.tasks.setup.config.run import TrainConfig


class ShardSettings(Settings):
    """Encoding of columns in shards; readers decode it transparently."""

    compression: dict[str, Literal["lz4", "zstd"]] = Field(
        default_factory=dict,
        description="Compression codecs by column, such as observation = lz4; one codec for all columns.",
    )
    stacked: tuple[str, ...] = Field(
        (),
        description="Columns whose values are stacks of frames; each frame is stored once.",
    )

    @field_validator("stacked", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("stacked")
    @classmethod
    def _in_order(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(sorted(set(value)))  # the order has no meaning and must not change the identity

    @model_validator(mode="after")
    def _one_codec(self) -> ShardSettings:
        codecs = sorted(set(self.compression.values()))
        if len(codecs) > 1:
            raise ValueError(f"compression by {' and '.join(codecs)}: a shard has one codec; choose one of them")
        return self


def shard_columns(observation: Spec, reward: Spec, rows: Mapping[str, Spec]) -> dict[str, Spec]:
    """Return the plain columns of a shard: the environment's, the algorithm's `rows`, ids and policy version."""
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
    """Return the columns with the encoding that the settings name.

    Raises:
        ConfigError: a column does not exist, or is not a stack of frames.
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


def check_stored_as(
    config: TrainConfig, environment: Mapping[str, Any], custom: Mapping[str, Spec] | None = None
) -> None:
    """Refuse shard settings that do not fit the environment.

    Args:
        config: The run's settings.
        environment: The environment's spec, from its pool.
        custom: Row columns of a custom algorithm.

    Raises:
        ConfigError: as `stored_as`.
    """
    observed, action = environment["observation"], environment["action"]
    leaves = tuple(Leaf.from_json(leaf) for leaf in observed.get("leaves", ()))
    observation = Spec(observed["dtype"], tuple(observed["shape"]), leaves=leaves)
    rows = dict(custom or dict.fromkeys(config.algorithm.columns, Spec("float32")))
    rows["action"] = Spec("int64" if action["kind"] == "discrete" else "float32", tuple(action.get("shape", ())))
    reward = Spec("float32", (environment["agents"],) if environment["agents"] else ())
    stored_as(shard_columns(observation, reward, rows), config.shards)
