"""A pool behind Stable-Baselines3's VecEnv interface, for its algorithms, wrappers and callbacks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import AutoresetMode

from penstock import native
from penstock.native.trainers.attributes import call_method, get_attribute, set_attribute
from penstock.native.trainers.common import missing
from penstock.native.trainers.infos import pop_ended, split_infos

try:
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import VecEnv
except ModuleNotFoundError as error:
    raise missing("Stable-Baselines3", error) from error

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gymnasium.vector import VectorEnv
    from numpy.typing import NDArray

    from penstock.native.interface import Infos


def make(id: str, num_envs: int, num_threads: int = 1, **options: Any) -> PoolVecEnv:  # noqa: A002
    """`native.make` in the mode that Stable-Baselines3 needs, with episode statistics, as a `VecEnv`.

    Args:
        id: As in `native.make`.
        num_envs: As in `native.make`.
        num_threads: As in `native.make`.
        options: Whatever else `native.make` takes, but `autoreset_mode` and `record_episode_statistics`.
    """
    return PoolVecEnv(
        native.make(id, num_envs, num_threads, autoreset_mode="SameStep", record_episode_statistics=True, **options)
    )


class PoolVecEnv(VecEnv):
    """A pool behind the interface of Stable-Baselines3, equal to its DummyVecEnv over the same environments.

    `step` gives observations, rewards float32 [num_envs], dones bool [num_envs] and one dictionary an environment.
    Where an episode ended that holds `terminal_observation`, `TimeLimit.truncated` (truncated and not terminated, which
    is what the algorithms bootstrap on) and, if the pool records them, `episode` with the return `r` (not rounded), the
    length `l` and the seconds `t` since this object was made. Elsewhere it is empty, or what the environment reports;
    DummyVecEnv says `"TimeLimit.truncated": False` there, which is what every reader takes its absence for.
    """

    def __init__(self, pool: VectorEnv[Any, Any, Any]) -> None:
        """Take over a pool; `close` closes it.

        Raises:
            ValueError: The pool does not reset in the step in which an episode ends, or has several agents in one
                environment.
        """
        mode = pool.metadata.get("autoreset_mode")
        if mode != AutoresetMode.SAME_STEP:
            raise ValueError(
                f"the pool's autoreset_mode is {mode}, and Stable-Baselines3 expects the first observation of the next "
                "episode in the step in which one ends: make the pool with autoreset_mode='SameStep'"
            )
        agents = pool.environment["agents"] if isinstance(pool, native.Pool) else getattr(pool, "num_agents", 0)
        if agents:
            raise ValueError(
                f"each environment of the pool has {agents} agents with a reward each, and Stable-Baselines3 takes one "
                "reward an environment"
            )
        self.pool: Any = pool
        self._actions: Any = None
        self._started_at = time.perf_counter()
        super().__init__(pool.num_envs, pool.single_observation_space, pool.single_action_space)

    def reset(self) -> Any:
        """Start an episode everywhere, with the seeds and options that were set since the last reset."""
        observation, infos = self.pool.reset(seed=list(self._seeds), options=self._one_for_all(self._options))
        self.reset_infos = split_infos(infos, self.num_envs)
        self._reset_seeds()
        self._reset_options()
        return observation

    def step_async(self, actions: NDArray[Any]) -> None:
        """Take the actions of the next `step_wait`, which makes the step: the pool's threads start within it."""
        self._actions = actions

    def step_wait(self) -> tuple[NDArray[Any], NDArray[np.float32], NDArray[np.bool_], list[Infos]]:
        """Make the step. The arrays are the caller's for as long as they are kept."""
        observation, reward, terminated, truncated, infos = self.pool.step(self._actions)
        self._actions = None
        done = terminated | truncated
        rows = split_infos(infos, self.num_envs)
        for row in np.flatnonzero(done).tolist():
            last_observation, info, episode = pop_ended(rows[row])
            self.reset_infos[row] = rows[row]
            info["TimeLimit.truncated"] = bool(truncated[row] and not terminated[row])
            info["terminal_observation"] = last_observation
            if episode is not None:
                info["episode"] = episode | {"t": round(time.perf_counter() - self._started_at, 6)}
            rows[row] = info
        return observation, reward.astype(np.float32), done, rows

    def close(self) -> None:
        """Close the pool."""
        self.pool.close()

    def get_images(self) -> Sequence[NDArray[np.uint8] | None]:
        """Return one image an environment."""
        return list(self.pool.render() or [None] * self.num_envs)

    def get_attr(self, attr_name: str, indices: int | Iterable[int] | None = None) -> list[Any]:
        """Return one value for each of these environments, as `Pool.get_attr` finds it.

        Raises:
            AttributeError: There is no such value; also before the first reset, if it belongs to an episode.
        """
        return get_attribute(self.pool, attr_name, self._get_indices(indices))

    def set_attr(self, attr_name: str, value: Any, indices: int | Iterable[int] | None = None) -> None:
        """Give an attribute this value in these environments, as `Pool.set_attr` does.

        Raises:
            AttributeError: There is no such attribute that can be set.
        """
        set_attribute(self.pool, attr_name, value, self._get_indices(indices))

    def env_method(
        self, method_name: str, *method_args: Any, indices: int | Iterable[int] | None = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method of all environments; those of a pool in C++ have `render` alone.

        Raises:
            AttributeError: There is no such method, or only some environments are chosen.
        """
        return call_method(self.pool, method_name, self._get_indices(indices), *method_args, **method_kwargs)

    def env_is_wrapped(self, wrapper_class: type[Any], indices: int | Iterable[int] | None = None) -> list[bool]:
        """Return whether infos carry what the wrapper would add: true for Monitor if the pool records episodes."""
        recorded = wrapper_class is Monitor and bool(getattr(self.pool, "records_episode_statistics", False))
        return [recorded for _ in self._get_indices(indices)]

    @staticmethod
    def _one_for_all(options: Sequence[Mapping[str, object]]) -> Mapping[str, object] | None:
        if any(one != options[0] for one in options):
            raise ValueError("a pool takes the same reset options for all environments; they differ")
        return options[0] or None
