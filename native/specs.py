"""Gymnasium's `EnvSpec` of environments: what `gymnasium.make` and `gymnasium.make_vec` need to make them again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gymnasium.envs.registration import ENV_ID_RE, EnvSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from native.faces import EnvironmentSpec

SINGLE_ENTRY_POINT = "native.registration:make_single"
VECTOR_ENTRY_POINT = "native.registration:make_vector"


def gymnasium_id(environment_id: str) -> str:
    """The id in Gymnasium's registry: in the namespace `penstock`, unless the id has a namespace of its own."""
    return environment_id if "/" in environment_id else f"penstock/{environment_id}"


def single_spec(environment: EnvironmentSpec, config: Mapping[str, Any], **kwargs: Any) -> EnvSpec | None:
    """Of one environment. Its time limit is the spec's: `make` wraps it around an environment that has none."""
    limit = environment["max_episode_steps"]
    return _spec(environment, limit, {**config, **kwargs})


def vector_spec(environment: EnvironmentSpec, config: Mapping[str, Any], **kwargs: Any) -> EnvSpec | None:
    """Of a pool; `gymnasium.make_vec` makes it again. JSON-able, as `EnvSpec.to_json` demands."""
    limit = environment["max_episode_steps"]
    unlimited = {} if limit is not None else {"max_episode_steps": -1}
    return _spec(environment, limit, {**config, **kwargs, **unlimited, "vectorization_mode": "vector_entry_point"})


def _spec(environment: EnvironmentSpec, limit: int | None, kwargs: dict[str, Any]) -> EnvSpec | None:
    name = gymnasium_id(environment["id"])
    if not ENV_ID_RE.fullmatch(name):  # a library may call its environment as it likes
        return None
    return EnvSpec(
        id=name,
        entry_point=SINGLE_ENTRY_POINT,
        reward_threshold=environment["reward_threshold"],
        max_episode_steps=limit,
        kwargs={"environment_id": environment["id"], **kwargs},
        vector_entry_point=VECTOR_ENTRY_POINT,
    )
