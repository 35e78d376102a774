"""What every pool offers, whoever steps its environments: the two faces, as abstract methods.

`native.make` returns this type. Acting and training are written against it and ask no pool what it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NotRequired, TypedDict

from gymnasium.vector import VectorEnv

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from gymnasium.vector import AutoresetMode
    from numpy.typing import NDArray


class EnvironmentSpec(TypedDict):
    """What an environment takes and gives, as plain JSON-able data (bounds may be infinite)."""

    id: str
    observation: dict[str, Any]
    """dtype, shape; where there is a mask of allowed choices, which the first numbers of the then flat observation are,
    also behind_mask, the shape of the rest"""
    action: dict[str, Any]
    """kind 'discrete' with n, dtype, shape () or (agents,); or kind 'box' with dtype, shape, low, high"""
    agents: int
    """0, or the length of the agent axis that rewards then have."""
    max_episode_steps: int | None
    reward_threshold: float | None
    facts: NotRequired[dict[str, NDArray[np.float64]]]
    """Numbers that are the same in every episode, by name; here alone there are arrays."""


@dataclass(frozen=True, slots=True)
class RoundEnd:
    """What a round leaves beside its buffers, in row order; row = t * num_envs + environment."""

    bootstrap_rows: NDArray[np.int64]
    """[K], ascending: rows whose successor is not the same environment's next row: an episode's end, the last step."""
    bootstrap_observation: NDArray[Any]
    """[K, *observation]: what was observed after those rows, before any reset."""
    episodes: dict[str, NDArray[Any]]
    """Episodes that ended in this round: row (of the last step), env, episode_id, length (all int64), return (float64),
    terminated, truncated (uint8)."""


class EnvironmentPool(VectorEnv[Any, Any, Any], ABC):
    """Many environments of one kind: a Gymnasium vector environment (`reset`, `step`) that also fills rounds.

    In a round an environment is reset in the step in which its episode ends, whatever the autoreset mode of `step`.
    A pool is for one thread at a time and for the process that made it.
    """

    autoreset_mode: AutoresetMode
    """What follows the end of an episode in `step`."""
    repeats_state: ClassVar[bool] = False
    """Whether `save` gives all actions since `reset_ids`, and `restore` takes them again: both grow until the next."""

    @property
    @abstractmethod
    def environment(self) -> EnvironmentSpec:
        """What one environment takes and gives, as plain data."""

    @abstractmethod
    def reset_ids(self, seeds: NDArray[np.uint64]) -> None:
        """Seed environment b with `seeds[b]` and start its first episode, which has the id 0."""

    @property
    @abstractmethod
    def observation(self) -> NDArray[Any]:
        """What every environment shows now, [num_envs, *observation]; a copy."""

    @abstractmethod
    def begin_round(
        self,
        observation: NDArray[Any],
        reward: NDArray[np.float32],
        terminated: NDArray[np.uint8],
        truncated: NDArray[np.uint8],
        episode_id: NDArray[np.int32],
    ) -> None:
        """Take the buffers of a round, all [T, num_envs] and `observation` [T, num_envs, *observation].

        They are written in place until `end_round`, and the current observations now, into row 0.
        """

    @abstractmethod
    def step_round(self, t: int, action: NDArray[Any]) -> None:
        """Make step t: int64 [num_envs], or float32 [num_envs, *action]; nothing is converted.

        Writes row t of reward, terminated, truncated and episode_id, and row t + 1 of the observations.
        """

    @abstractmethod
    def end_round(self) -> RoundEnd:
        """Let the buffers go and say what lies beside them. All T steps must have been made."""

    @abstractmethod
    def save(self) -> dict[str, NDArray[Any]]:
        """Everything that the next step depends on, as named arrays [num_envs, ...].

        Raises:
            StateNotSupportedError: Nobody could go on from here; see `repeats_state`.
        """

    @abstractmethod
    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from a saved state, bit for bit."""


class StateNotSupportedError(NotImplementedError):
    """A pool whose environments cannot give their state was asked to save or to restore it."""
