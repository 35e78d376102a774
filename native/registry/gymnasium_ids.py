"""Gymnasium's registry: `gymnasium.make("penstock/CartPole-v1")` and `gymnasium.make_vec` of the same.

Importing `native` registers what is built in. Gymnasium has loaded no plugins since 1.0; where nothing imports
`native`, the id `penstock.native:penstock/CartPole-v1` makes it do so.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium

from penstock.native import _core
from penstock.native.pool import control_suite, mujoco_library
from penstock.native.pool.spaces import SINGLE_ENTRY_POINT, VECTOR_ENTRY_POINT, gymnasium_id
from penstock.native.registry.registry import make_native
from penstock.native.registry.single_env import SingleEnv

if TYPE_CHECKING:
    from penstock.native.pool.pool import Pool


_registering = threading.Lock()
"""Gymnasium iterates over its registry while it registers: another thread that registers ends that with an error."""


def register(environment_id: str) -> str:
    """Register an environment with Gymnasium, replacing one of the same id; return its id there.

    Call it for what a library brought, once the library is loaded.

    Raises:
        gymnasium.error.Error: The id is not one that Gymnasium accepts: `[namespace/]name[-v<number>]`.
    """
    agents, reward_threshold, max_episode_steps = _limits(environment_id)
    name = gymnasium_id(environment_id)
    with _registering:
        gymnasium.registry.pop(name, None)  # a library may be loaded again
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
    # MuJoCo need not be loaded to register its tasks.
    if environment_id in control_suite.IDS:
        return 0, None, control_suite.MAX_EPISODE_STEPS[environment_id]
    if environment_id in mujoco_library.IDS:  # Gymnasium has them under the same id
        theirs = gymnasium.spec(environment_id)
        return 0, theirs.reward_threshold, theirs.max_episode_steps
    described = _core.describe(environment_id)
    return described["agents"], described["reward_threshold"], described["max_episode_steps"]


class SingleEntryPoint:
    """Gymnasium's entry point for one environment."""

    metadata: ClassVar[dict[str, object]] = {"render_modes": ["human", "rgb_array"], "render_fps": 50}
    """From it `gymnasium.make` knows that it may collect frames for `rgb_array_list`."""

    def __call__(self, environment_id: str, **kwargs: Any) -> SingleEnv:
        """Make an environment without a time limit; `gymnasium.make` adds the one that it was asked for."""
        return SingleEnv(environment_id, **{"max_episode_steps": -1, **kwargs})


make_single = SingleEntryPoint()


def make_vector(environment_id: str, **kwargs: Any) -> Pool:
    """Gymnasium's entry point for `make_vec`, whose `kwargs` are those of `native.make`."""
    return make_native(environment_id, **kwargs)
