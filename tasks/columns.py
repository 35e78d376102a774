"""Which columns a run's shards have, and how each is stored. Imports no torch: the flow checks settings with it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from storage.errors import ConfigError
from storage.specs import Spec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tasks.config import ShardSettings, TrainConfig


def shard_columns(observation: Spec, rows: Mapping[str, Spec]) -> dict[str, Spec]:
    """The environment's columns, the algorithm's `rows`, and who acted with what; all plain."""
    return {
        "observation": observation,
        "reward": Spec("float32"),
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


def check_stored_as(config: TrainConfig, environment: Mapping[str, Any]) -> None:
    """Refuse settings that shards of an environment, as its pool describes it, can't have.

    Raises:
        ConfigError: as `stored_as`.
    """
    observation, action = environment["observation"], environment["action"]
    rows = dict.fromkeys(config.algorithm.row_columns, Spec("float32"))
    rows["action"] = Spec("int64") if action["kind"] == "discrete" else Spec("float32", tuple(action["shape"]))
    stored_as(shard_columns(Spec(observation["dtype"], tuple(observation["shape"])), rows), config.shards)
