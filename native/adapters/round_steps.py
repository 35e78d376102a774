"""Steps a vector environment in a round, which needs no infos: Gymnasium's SyncVectorEnv without merging them.

SyncVectorEnv makes an array and a mask of every entry of every info, and copies each result. A round uses neither: its
environments are stepped one after the other here, with the results of its same-step mode.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from gymnasium.vector import SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import iterate

from penstock.native.adapters.one_array import is_one_array

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray


class RoundStep(NamedTuple):
    """A step in same-step mode."""

    observation: NDArray[Any]
    """[num_envs, *observation], after the resets of episodes that ended."""
    reward: NDArray[Any]
    """[num_envs], or [num_envs, agents]; valid until the next step."""
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    final: Mapping[int, Any]
    """The last observations of the episodes that ended, by environment, in ascending order."""


class RoundVector(VectorEnv[Any, Any, Any]):
    """A vector environment that can leave out in a round what is for `step` alone."""

    @abstractmethod
    def round_step(self, actions: Any, out: NDArray[Any]) -> RoundStep:
        """Step in same-step mode; `out` `[num_envs, *observation]` may be filled and returned as the observations."""


def steps_of(vector_env: VectorEnv[Any, Any, Any]) -> Callable[[Any, NDArray[Any]], RoundStep]:
    """Return a function that steps a vector environment in same-step mode.

    It takes the actions, and an array `[num_envs, *observation]` that it may fill and return as the observations. It
    raises ValueError where an episode ended and the infos lack its last observation.
    """
    if type(vector_env) is SyncVectorEnv and is_one_array(vector_env.single_observation_space):
        return DirectSteps(vector_env)
    if isinstance(vector_env, RoundVector) and is_one_array(vector_env.single_observation_space):
        return vector_env.round_step

    def step(actions: Any, out: NDArray[Any]) -> RoundStep:  # noqa: ARG001  (others make an array of their own)
        observation, reward, terminated, truncated, infos = vector_env.step(actions)
        ended = np.flatnonzero(np.logical_or(terminated, truncated)).tolist()
        if ended and "final_obs" not in infos:
            raise ValueError(
                f"{type(vector_env.unwrapped).__name__} ended an episode, in same-step mode, without 'final_obs' in "
                "its infos: there it must have the last observation of each episode that ended, as Gymnasium's vector "
                "environments do"
            )
        final = {env: np.array(infos["final_obs"][env]) for env in ended}  # copies: it may be memory that is used again
        return RoundStep(observation, reward, terminated, truncated, final)

    return step


class DirectSteps:
    """Steps the environments of a SyncVectorEnv, which then has older observations of them than they show."""

    def __init__(self, vector_env: SyncVectorEnv[Any, Any]) -> None:
        self._envs, self._actions = vector_env.envs, vector_env.action_space
        shape = vector_env.single_observation_space.shape or ()
        self._flat, self._lengths = (-1, *shape[1:]), {shape[0]}
        self._reward = np.zeros(vector_env.num_envs)

    def __call__(self, actions: Any, out: NDArray[Any]) -> RoundStep:
        """Step all, and fill `out`."""
        reward, rows, final = self._reward, list[Any](), dict[int, Any]()
        terminated, truncated = (np.zeros(len(reward), dtype=np.bool_) for _ in range(2))
        for index, (env, action) in enumerate(zip(self._envs, iterate(self._actions, actions), strict=True)):
            observation, reward[index], is_terminated, is_truncated, _ = env.step(action)
            if is_terminated or is_truncated:
                terminated[index], truncated[index] = is_terminated, is_truncated
                final[index] = np.array(observation)  # a reset may fill the same array
                observation, _ = env.reset()
            rows.append(observation)
        if self._lengths == set(map(len, rows)):
            np.concatenate(rows, out=out.reshape(self._flat))
        else:
            np.stack(rows, out=out)  # says which shapes it found
        return RoundStep(out, reward, terminated, truncated, final)
