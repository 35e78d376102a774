"""The interface of every pool: the Gymnasium API and the rollout API, as abstract methods.

`native.make` returns this type. Acting and training are written against it and ask no pool what it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NotRequired, TypeAlias, TypedDict

from gymnasium.vector import VectorEnv

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from gymnasium.spaces import Space
    from gymnasium.vector import AutoresetMode
    from numpy.typing import NDArray


Infos: TypeAlias = dict[str, Any]
"""Infos as the Gymnasium API types them: the environments choose the names, and each `name` has its mask `_name`."""


class ObservationLeafFormat(TypedDict):
    """The format of a leaf: a part of a structured observation, which is a run of numbers in its one array."""

    name: str
    """Keys and indices on the way to it, such as `camera`, `arm.position` or `0.goal`; `value` if it is everything."""
    kind: Literal["numbers", "image", "choice", "bits"]
    """A `choice` is one-hot in the array; the others are its numbers in row-major order. An `image` has bytes, and its
    channels first or last, whichever axis is shorter, or none."""
    dtype: str
    """Type that holds the leaf's own values exactly."""
    shape: tuple[int, ...]
    sizes: tuple[int, ...]
    """Only of a `choice`: the number of choices of each of its values; otherwise ()."""


class ObservationFormat(TypedDict):
    """The format of one environment's observation."""

    dtype: str
    shape: tuple[int, ...]
    behind_mask: NotRequired[tuple[int, ...]]
    """Only for flat observations that begin with the mask of allowed choices: the shape of the rest."""
    leaves: NotRequired[tuple[ObservationLeafFormat, ...]]
    """Only for structured observations, which are flat: their parts in order, the mask among them."""


class ActionLeafFormat(TypedDict):
    """A part of a structured action: choices (`discrete`), or numbers (`box`)."""

    name: str
    """Keys and places on the way to it, such as `arm/0`; empty if it is the whole action."""
    kind: Literal["discrete", "box"]
    dtype: str
    """The environment's own; vectors are float32."""
    shape: tuple[int, ...]
    sizes: NotRequired[list[int]]
    """Choices of each number, in row-major order; so are the lists below."""
    start: NotRequired[list[int]]
    """The environment's own number of choice 0."""
    low: NotRequired[list[float]]
    high: NotRequired[list[float]]
    scaled: NotRequired[bool]
    """True if vectors hold -1 for `low` and 1 for `high`; False if they hold the environment's own numbers."""


class AgentFormat(TypedDict):
    """An agent's part of a team's structured action: the first numbers of its row."""

    name: str
    leaves: list[ActionLeafFormat]


class ActionFormat(TypedDict):
    """The format of one environment's action: `discrete` has `n`, `box` has `low` and `high`, `structured` `leaves`.

    A `structured` action of several agents has `agents` in place of `leaves`, and `n`.
    """

    kind: Literal["discrete", "box", "structured"]
    dtype: str
    shape: tuple[int, ...]
    """For `discrete` () or (agents,); for `structured` (numbers,), those of its leaves one after the other, or
    (agents, numbers), padded to the longest."""
    n: NotRequired[int]
    """Choices of one action, also the numbers of its mask; for `structured` those of an agent's mask."""
    low: NotRequired[list[Any]]
    """Lists nested as deep as `shape`; so is `high`."""
    high: NotRequired[list[Any]]
    leaves: NotRequired[list[ActionLeafFormat]]
    agents: NotRequired[list[AgentFormat]]


class EnvironmentSpec(TypedDict):
    """The action and observation format of an environment, as plain JSON-able data (bounds may be infinite)."""

    id: str
    observation: ObservationFormat
    action: ActionFormat
    agents: int
    """0, or the length of the agent axis that rewards then have."""
    max_episode_steps: int | None
    reward_threshold: float | None
    facts: NotRequired[dict[str, NDArray[np.float64]]]
    """Numbers that are the same in every episode, by name; here alone there are arrays."""


@dataclass(frozen=True, slots=True)
class RoundEnd:
    """The result of a round in addition to its buffers, in row order; row = t * num_envs + environment."""

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
    """The behaviour of `step` after the end of an episode."""
    restores_by_replay: ClassVar[bool] = False
    """True if `save` records all actions since `reset_ids` and `restore` replays them: both grow until the next one."""

    @property
    @abstractmethod
    def environment(self) -> EnvironmentSpec:
        """Return the action and observation format of one environment, as plain data."""

    @property
    def own_action_space(self) -> Space[Any]:
        """Return the action space that one environment itself has, whatever the pool takes for its actions."""
        return self.single_action_space

    @abstractmethod
    def reset_ids(self, seeds: NDArray[np.uint64]) -> None:
        """Seed environment b with `seeds[b]` and start its first episode, which has the id 0."""

    @property
    @abstractmethod
    def observation(self) -> NDArray[Any]:
        """Return a copy of the current observations, [num_envs, *observation]."""

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
        """Make step t: int64 [num_envs], or float32 [num_envs, *action]; nothing is converted but structured actions.

        Writes row t of reward, terminated, truncated and episode_id, and row t + 1 of the observations.
        """

    @abstractmethod
    def end_round(self) -> RoundEnd:
        """Release the buffers and return the rest of the round's result. All T steps must have been made."""

    @abstractmethod
    def save(self) -> dict[str, NDArray[Any]]:
        """Return everything that the next step depends on, as named arrays [num_envs, ...].

        Raises:
            StateNotSupportedError: No pool could resume from here; see `restores_by_replay`.
        """

    @abstractmethod
    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Resume from a saved state, bit for bit."""


class SeedsRefusedError(ValueError):
    """A vector environment that an id brings takes one seed for all of its environments, and several were given."""


class ResetRefusedError(ValueError):
    """A reset has options that the environments do not take; nothing was reset."""


class StateNotSupportedError(NotImplementedError):
    """The pool's environments cannot read or set their state, so it can be neither saved nor restored."""
