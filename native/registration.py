"""Gymnasium's registry: `gymnasium.make("penstock/CartPole-v1")` and `gymnasium.make_vec` of the same.

Importing `native` registers what is built in. Gymnasium has loaded no plugins since 1.0; where nothing imports
`native`, the id `native:penstock/CartPole-v1` makes it do so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium

from native import _core, mujoco
from native.registry import make_own
from native.single import SingleEnv
from native.specs import SINGLE_ENTRY_POINT, VECTOR_ENTRY_POINT, gymnasium_id

if TYPE_CHECKING:
    from native.pool import Pool


def register(environment_id: str) -> str:
    """Make an environment known to Gymnasium, in place of one of the same id; the id that it has there.

    Call it for what a library brought, once the library is loaded.

    Raises:
        gymnasium.error.Error: The id is not one that Gymnasium accepts: `[namespace/]name[-v<number>]`.
    """
    agents, reward_threshold, max_episode_steps = _limits(environment_id)
    name = gymnasium_id(environment_id)
    gymnasium.registry.pop(name, None)  # a library that is loaded again is no news
    gymnasium.register(
        name,
        entry_point=SINGLE_ENTRY_POINT if agents == 0 else None,
        vector_entry_point=VECTOR_ENTRY_POINT,
        reward_threshold=reward_threshold,
        max_episode_steps=max_episode_steps,
        kwargs={"environment_id": environment_id},
    )
    return name


def _limits(environment_id: str) -> tuple[int, float | None, int | None]:
    """Agents, reward threshold and time limit."""
    if environment_id in mujoco.IDS:  # Gymnasium has them under the same id: MuJoCo need not be loaded to register them
        theirs = gymnasium.spec(environment_id)
        return 0, theirs.reward_threshold, theirs.max_episode_steps
    described = _core.describe(environment_id)
    return described["agents"], described["reward_threshold"], described["max_episode_steps"]


def make_single(environment_id: str, **kwargs: Any) -> SingleEnv:
    """Gymnasium's entry point: without a time limit, for `gymnasium.make` adds the one that it was asked for."""
    return SingleEnv(environment_id, **{"max_episode_steps": -1, **kwargs})


def make_vector(environment_id: str, **kwargs: Any) -> Pool:
    """Gymnasium's entry point for `make_vec`, whose `kwargs` are those of `native.make`."""
    return make_own(environment_id, **kwargs)
