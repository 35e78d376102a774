# Types of the extension module that native/src builds.

from collections.abc import Mapping, Sequence
from typing import Any, Literal, SupportsIndex, TypedDict

import numpy as np
from numpy.typing import NDArray

class Description(TypedDict):
    id: str
    max_episode_steps: int | None
    reward_threshold: float | None
    observation_low: NDArray[np.float32]
    observation_high: NDArray[np.float32]
    action_count: int
    action_low: NDArray[np.float32]
    action_high: NDArray[np.float32]
    config: dict[str, float | int | bool]

def environment_ids() -> tuple[str, ...]: ...
def describe(id: str) -> Description: ...  # noqa: A002
def fill_noise(
    kind: Literal["uniform", "normal", "gumbel"],
    seed: SupportsIndex,
    purpose: SupportsIndex,
    env_ids: NDArray[np.int64],
    round: SupportsIndex,  # noqa: A002
    out: NDArray[np.float32],
) -> None: ...
def philox(counter: Sequence[int], key: Sequence[int]) -> list[int]: ...
def seed_sequence(seed: int) -> list[int]: ...

class Rng:
    def __init__(self, seed: SupportsIndex) -> None: ...
    def random(self) -> float: ...
    def uniform(self, low: float, high: float) -> float: ...
    def next(self) -> int: ...
    def words(self) -> list[int]: ...

class Pool:
    def __init__(
        self,
        id: str,  # noqa: A002
        num_envs: int,
        num_threads: int,
        max_episode_steps: int,
        config: Mapping[str, NDArray[np.float64]],
    ) -> None: ...
    @property
    def num_envs(self) -> int: ...
    @property
    def observation(self) -> NDArray[np.float32]: ...
    def reset(self, seeds: NDArray[np.uint64], seeded: NDArray[np.bool_], mask: NDArray[np.bool_]) -> None: ...
    def step(
        self, actions: NDArray[Any]
    ) -> tuple[NDArray[np.float32], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], NDArray[np.float32]]: ...
    def begin_round(
        self,
        observation: NDArray[np.float32],
        reward: NDArray[np.float32],
        terminated: NDArray[np.uint8],
        truncated: NDArray[np.uint8],
        episode_id: NDArray[np.int32],
    ) -> None: ...
    def step_round(self, t: int, actions: NDArray[Any]) -> None: ...
    def end_round(self) -> tuple[NDArray[np.int64], NDArray[np.float32], dict[str, NDArray[Any]]]: ...
    def save(self) -> dict[str, NDArray[Any]]: ...
    def restore(self, state: Mapping[str, NDArray[Any]]) -> None: ...
    def close(self) -> None: ...
