"""A pool in JAX programs: `reset` and `step` as functions that `jax.jit`, `jax.lax.scan` and `fori_loop` take.

The environments are stepped on the host in the order of the program: an ordered callback is neither left out nor
repeated.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector import AutoresetMode

from penstock.native.interface import EnvironmentPool
from penstock.native.trainers.common import missing

try:
    import jax
    from jax.experimental import io_callback
except ModuleNotFoundError as error:
    raise missing("JAX", error, "pip install 'penstock-rl[jax]'") from error


class JaxStep(NamedTuple):
    """The results of one step, JAX arrays."""

    observation: Any
    """`[num_envs, ...]`, of the pool's dtype; without `jax_enable_x64` float64 is float32."""
    reward: Any
    """float32 `[num_envs]`, or `[num_envs, agents]`."""
    terminated: Any
    """bool `[num_envs]`."""
    truncated: Any
    """bool `[num_envs]`."""
    final_observation: Any
    """`[num_envs, ...]`: where an episode ended in a same-step pool, its last observation; otherwise `observation`."""


class JaxPool:
    """A pool whose `reset` and `step` may be called within compiled functions.

    They are effects: each call in a program happens once, in the program's order, as the environments keep their state
    in the pool. `jax.vmap` and `jax.grad` are refused by JAX: a pool is a batch already, and has no gradient.
    """

    def __init__(self, pool: EnvironmentPool) -> None:
        """Take a pool, which nothing else may step meanwhile.

        Raises:
            TypeError: It is another vector environment.
            ValueError: Its observations or actions are no single arrays, or it does not reset by itself.
        """
        if not isinstance(pool, EnvironmentPool):
            raise TypeError(f"expected a pool, as penstock.native.make gives, got {pool}")
        if pool.autoreset_mode == AutoresetMode.DISABLED:
            raise ValueError(
                f"{pool}: autoreset_mode is Disabled, and compiled loops can't reset; expected another one"
            )
        spec, self.pool = pool.environment, pool
        shape = (pool.num_envs, *spec["observation"]["shape"])
        flags = jax.ShapeDtypeStruct((pool.num_envs,), np.bool_)
        observed = jax.ShapeDtypeStruct(shape, jax.dtypes.canonicalize_dtype(spec["observation"]["dtype"]))
        agents = (spec["agents"],) if spec["agents"] else ()
        reward = jax.ShapeDtypeStruct((pool.num_envs, *agents), np.float32)
        self._observed, self._result = observed, JaxStep(observed, reward, flags, flags, observed)
        self._action_dtype = np.dtype(spec["action"]["dtype"])

    def reset(self, seed: Any = None) -> Any:
        """Start episodes; returns the observations, `[num_envs, ...]`.

        Args:
            seed: A whole number from 0, which may be traced: environment i has the seed `seed + i`. None draws seeds.
        """
        if seed is None:
            return io_callback(self._reset, self._observed, ordered=True)
        if jax.numpy.shape(seed) or not _is(seed, jax.numpy.integer):
            raise ValueError(
                f"seed: expected one whole number, got {jax.numpy.result_type(seed)} of shape {jax.numpy.shape(seed)}; "
                f"keys of jax.random are for its functions"
            )
        return io_callback(self._reset, self._observed, seed, ordered=True)

    def step(self, actions: Any) -> JaxStep:
        """Step every environment.

        Args:
            actions: Integers `[num_envs]`, or floats `[num_envs, ...]`, as the pool's `step` takes them.

        Raises:
            ValueError: Their shape or type is another one. Values that the pool refuses are an error of JAX's when they
                are there, with the pool's words in it.
        """
        expected = self.pool.action_space.shape
        if tuple(jax.numpy.shape(actions)) != tuple(expected or ()):
            raise ValueError(f"actions: expected an array of shape {expected}, got {jax.numpy.shape(actions)}")
        whole = self._action_dtype.kind in "iu"
        if not (_is(actions, jax.numpy.integer) or (not whole and _is(actions, jax.numpy.floating))):
            raise ValueError(
                f"actions: expected {'integers' if whole else 'floats'}, got {jax.numpy.result_type(actions)}"
            )
        stepped: JaxStep = io_callback(self._step, self._result, actions, ordered=True)
        return stepped

    def _reset(self, *seed: Any) -> Any:
        observation, _ = self.pool.reset(seed=int(seed[0]) if seed else None)
        return np.asarray(observation, dtype=self._observed.dtype)

    def _step(self, actions: Any) -> JaxStep:
        given = np.asarray(actions, dtype=self._action_dtype)
        observation, reward, terminated, truncated, infos = self.pool.step(given)
        seen = np.array(observation, dtype=self._observed.dtype)
        final = seen
        if "final_obs" in infos:
            final = seen.copy()
            for env in np.flatnonzero(infos["_final_obs"]).tolist():
                final[env] = infos["final_obs"][env]
        flags = (np.array(terminated, dtype=np.bool_), np.array(truncated, dtype=np.bool_))
        return JaxStep(seen, np.array(reward, dtype=np.float32), *flags, final)


def _is(values: Any, kind: Any) -> bool:
    """Return whether values, or those that a trace stands for, are of a kind of numbers."""
    return bool(jax.numpy.issubdtype(jax.numpy.result_type(values), kind))
