"""A pool behind dm_env's interface: batched time steps, and one environment as `dm_env.Environment`.

It needs `penstock-rl[dm]`; nothing else of this package imports it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import dm_env
import numpy as np
from dm_env import specs
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode

from penstock.native.registry.registry import make_native

if TYPE_CHECKING:
    from gymnasium.spaces import Space
    from numpy.typing import NDArray

    from penstock.native.interface import Infos
    from penstock.native.pool.pool import Pool


class _Specs:
    """The specs of one environment of a pool."""

    pool: Pool

    def observation_spec(self) -> specs.BoundedArray:
        """Return the observation spec of one environment."""
        return _spec_of(self.pool.single_observation_space, "observation")

    def action_spec(self) -> specs.Array:
        """Return the action spec of one environment: a `DiscreteArray` or a `BoundedArray`."""
        return _spec_of(self.pool.single_action_space, "action")

    def reward_spec(self) -> specs.Array:
        """Return the reward spec of one environment: a float64, or one per agent."""
        agents = self.pool.environment["agents"]
        return specs.Array((agents,) if agents else (), np.float64, "reward")

    def discount_spec(self) -> specs.BoundedArray:
        """Return the discount spec of one environment: 0 where it terminated, else 1."""
        return specs.BoundedArray((), np.float64, 0.0, 1.0, "discount")

    def close(self) -> None:
        """Release the environments; every later call raises that they are closed."""
        self.pool.close()


class DmPool(_Specs):
    """A pool whose steps are `dm_env.TimeStep`s of arrays: step_type, reward and discount [num_envs], observation.

    After a LAST row the next step makes that row a FIRST one, and ignores its action. In FIRST rows the reward is 0 and
    the discount 1. A row that was truncated is LAST with discount 1; one that terminated has discount 0, even if it was
    truncated too. The specs are of one environment.
    """

    def __init__(self, pool: Pool, seed: int | None = None) -> None:
        self.pool = pool
        self.num_envs = pool.num_envs
        self.infos: Infos = {}
        """Reports of the environments in the latest step, as Gymnasium's infos."""
        self._seed = seed
        self._over: NDArray[np.bool_] | None = None

    def reset(self) -> dm_env.TimeStep:
        """Start an episode everywhere; the first time with the seed, later on with the generators that there are."""
        observation, self.infos = self.pool.reset(seed=self._seed)
        self._seed = None
        self._over = np.zeros(self.num_envs, dtype=np.bool_)
        first = np.full(self.num_envs, dm_env.StepType.FIRST, dtype=np.int64)
        agents = self.pool.environment["agents"]
        rewards = np.zeros((self.num_envs, agents) if agents else self.num_envs)
        return dm_env.TimeStep(first, rewards, np.ones(self.num_envs), observation)

    def step(self, actions: Any) -> dm_env.TimeStep:
        """Step every environment, or `reset` if nothing was reset yet.

        Raises:
            ValueError: Type, shape or value of an action, of rows that ignore it too.
        """
        if self._over is None:
            return self.reset()
        observation, reward, terminated, truncated, self.infos = self.pool.step(actions)
        over = terminated | truncated
        step_type = np.full(self.num_envs, dm_env.StepType.MID, dtype=np.int64)
        step_type[over] = dm_env.StepType.LAST
        step_type[self._over] = dm_env.StepType.FIRST
        self._over = over
        return dm_env.TimeStep(step_type, reward, 1.0 - terminated, observation)


class DmEnvironment(_Specs, dm_env.Environment):
    """One environment as `dm_env.Environment`."""

    def __init__(self, pool: Pool, seed: int | None = None) -> None:
        self.pool = pool
        self._seed = seed
        self._is_over = True

    def reset(self) -> dm_env.TimeStep:
        """Start an episode; the first time with the seed."""
        observation, _ = self.pool.reset(seed=self._seed)
        self._seed = None
        self._is_over = False
        return dm_env.restart(observation[0])

    def step(self, action: Any) -> dm_env.TimeStep:
        """Step, or `reset` before the first episode and after the last step of one; the action is then ignored.

        Raises:
            ValueError: Type, shape or value of the action.
        """
        if self._is_over:
            return self.reset()
        observation, rewards, terminated, truncated, _ = self.pool.step(np.asarray(action)[None])
        self._is_over = bool(terminated[0] or truncated[0])
        reward = rewards[0] if self.pool.environment["agents"] else float(rewards[0])
        if terminated[0]:
            return dm_env.termination(reward, observation[0])
        return dm_env.truncation(reward, observation[0]) if truncated[0] else dm_env.transition(reward, observation[0])


def make_dm(
    environment_id: str, num_envs: int | None = None, *, seed: int | None = None, **options: Any
) -> DmPool | DmEnvironment:
    """Make a `DmPool` of `num_envs` environments, or one `dm_env.Environment` if there is no number.

    Args:
        environment_id: One of `environment_ids()`.
        num_envs: How many.
        seed: Environment i gets `seed + i`; None lets the operating system choose.
        options: As in `native.make`: num_threads, max_episode_steps and the configuration.

    Raises:
        ValueError: As `native.make`, and for an autoreset mode, which dm_env defines.
    """
    if "autoreset_mode" in options:
        raise ValueError("dm_env defines that the step after the last one resets: make_dm takes no autoreset_mode")
    if num_envs is None:
        return DmEnvironment(make_native(environment_id, 1, autoreset_mode=AutoresetMode.DISABLED, **options), seed)
    return DmPool(make_native(environment_id, num_envs, autoreset_mode=AutoresetMode.NEXT_STEP, **options), seed)


def _spec_of(space: Space[Any], name: str) -> Any:
    if isinstance(space, Discrete):
        return specs.DiscreteArray(int(space.n), np.int64, name)
    if isinstance(space, Box):
        return specs.BoundedArray(space.shape, space.dtype, space.low, space.high, name)
    highest = space.nvec - 1  # type: ignore[attr-defined]
    return specs.BoundedArray(space.shape, np.int64, np.zeros_like(highest), highest, name)
