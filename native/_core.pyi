# Types of the extension module that native/src builds.

from collections.abc import Mapping, Sequence
from typing import Any, Literal, SupportsIndex, TypedDict

import numpy as np
from numpy.typing import NDArray

class Description(TypedDict):
    id: str
    max_episode_steps: int | None
    reward_threshold: float | None
    observation_dtype: np.dtype[Any]
    observation_low: NDArray[np.float64]
    observation_high: NDArray[np.float64]
    action_count: int
    action_shape: tuple[int, ...]
    action_low: NDArray[np.float32]
    action_high: NDArray[np.float32]
    agents: int
    reports: tuple[str, ...]
    reset_reports: int
    config: dict[str, float | int | bool]

def environment_ids() -> tuple[str, ...]: ...
def load_library(path: str, resources: str = "") -> list[str]: ...
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
        autoreset: str,
        config: Mapping[str, NDArray[np.float64]],
    ) -> None: ...
    @property
    def num_envs(self) -> int: ...
    @property
    def observation(self) -> NDArray[Any]: ...
    @property
    def report(self) -> NDArray[np.float64]: ...
    def reset(self, seeds: NDArray[np.uint64], seeded: NDArray[np.bool_], mask: NDArray[np.bool_]) -> None: ...
    def step(
        self, actions: NDArray[Any]
    ) -> tuple[NDArray[Any], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], int]: ...
    def ended(
        self, rows: NDArray[np.int64]
    ) -> tuple[NDArray[np.bool_], NDArray[np.float64], NDArray[np.int64], NDArray[Any], NDArray[np.float64]]: ...
    def begin_round(
        self,
        observation: NDArray[Any],
        reward: NDArray[np.float32],
        terminated: NDArray[np.uint8],
        truncated: NDArray[np.uint8],
        episode_id: NDArray[np.int32],
    ) -> None: ...
    def step_round(self, t: int, actions: NDArray[Any]) -> None: ...
    def end_round(self) -> tuple[NDArray[np.int64], NDArray[Any], dict[str, NDArray[Any]]]: ...
    def save(self) -> dict[str, NDArray[Any]]: ...
    def restore(self, state: Mapping[str, NDArray[Any]]) -> None: ...
    def close(self) -> None: ...
