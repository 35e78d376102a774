"""Gymnasium's MuJoCo tasks as functions of a batch's positions and speeds, for simulators that step a batch.

Models, rewards, ends and starts are those of Gymnasium's v5 tasks with their default arguments, in float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import gymnasium
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float32]

_MODELS = Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets"
_LEGGED_LIMIT = 100.0
"""Largest magnitude of a healthy Hopper's positions and speeds."""


@dataclass(frozen=True, slots=True)
class Task:
    """A task: all functions take and return arrays of a batch, `[num_envs, ...]`, but `start`."""

    model: Path
    frame_skip: int
    max_episode_steps: int
    reward_threshold: float | None
    observe: Callable[[Floats, Floats], Floats]
    """Returns observations of positions and speeds."""
    judge: Callable[[Floats, Floats, Floats, Floats, float], tuple[Floats, NDArray[np.bool_]]]
    """Returns reward and end from the positions before, positions and speeds after, actions and the step's seconds."""
    start: Callable[[Floats, Floats, np.random.Generator], tuple[Floats, Floats]]
    """Returns positions and speeds of one new episode, given the model's."""


def tasks() -> dict[str, Task]:
    """Return the tasks by Gymnasium's ids."""
    return {
        "InvertedPendulum-v5": Task(
            _MODELS / "inverted_pendulum.xml", 2, 1000, 950.0, _together, _pendulum, _uniform(0.01)
        ),
        "HalfCheetah-v5": Task(_MODELS / "half_cheetah.xml", 5, 1000, 4800.0, _without_place, _cheetah, _cheetah_start),
        "Hopper-v5": Task(_MODELS / "hopper.xml", 4, 1000, 3800.0, _legged, _hopper, _uniform(5e-3)),
        "Walker2d-v5": Task(_MODELS / "walker2d_v5.xml", 4, 1000, None, _legged, _walker, _uniform(5e-3)),
    }


def _together(qpos: Floats, qvel: Floats) -> Floats:
    return np.concatenate([qpos, qvel], axis=1)


def _without_place(qpos: Floats, qvel: Floats) -> Floats:
    return np.concatenate([qpos[:, 1:], qvel], axis=1)


def _legged(qpos: Floats, qvel: Floats) -> Floats:
    return np.concatenate([qpos[:, 1:], np.clip(qvel, -10, 10)], axis=1)


def _pendulum(_: Floats, qpos: Floats, qvel: Floats, __: Floats, ___: float) -> tuple[Floats, NDArray[np.bool_]]:
    done = ~np.isfinite(_together(qpos, qvel)).all(1) | (np.abs(qpos[:, 1]) > 0.2)
    return (~done).astype(np.float32), done


def _forward(before: Floats, qpos: Floats, action: Floats, seconds: float, cost: float) -> Floats:
    gained: Floats = (qpos[:, 0] - before[:, 0]) / np.float32(seconds) - np.float32(cost) * np.square(action).sum(1)
    return gained


def _cheetah(
    before: Floats, qpos: Floats, _: Floats, action: Floats, seconds: float
) -> tuple[Floats, NDArray[np.bool_]]:
    return _forward(before, qpos, action, seconds, 0.1), np.zeros(len(qpos), dtype=np.bool_)


def _hopper(
    before: Floats, qpos: Floats, qvel: Floats, action: Floats, seconds: float
) -> tuple[Floats, NDArray[np.bool_]]:
    rest = np.concatenate([qpos[:, 2:], qvel], axis=1)
    healthy = (qpos[:, 1] > 0.7) & (np.abs(qpos[:, 2]) < 0.2) & (np.abs(rest) < _LEGGED_LIMIT).all(1)
    return _forward(before, qpos, action, seconds, 1e-3) + healthy, ~healthy


def _walker(
    before: Floats, qpos: Floats, _: Floats, action: Floats, seconds: float
) -> tuple[Floats, NDArray[np.bool_]]:
    healthy = (qpos[:, 1] > 0.8) & (qpos[:, 1] < 2.0) & (np.abs(qpos[:, 2]) < 1.0)
    return _forward(before, qpos, action, seconds, 1e-3) + healthy, ~healthy


def _uniform(noise: float) -> Callable[[Floats, Floats, np.random.Generator], tuple[Floats, Floats]]:
    def start(qpos: Floats, qvel: Floats, drawn: np.random.Generator) -> tuple[Floats, Floats]:
        moved = qpos + drawn.uniform(-noise, noise, qpos.shape)
        return moved.astype(np.float32), (qvel + drawn.uniform(-noise, noise, qvel.shape)).astype(np.float32)

    return start


def _cheetah_start(qpos: Floats, qvel: Floats, drawn: np.random.Generator) -> tuple[Floats, Floats]:
    moved = qpos + drawn.uniform(-0.1, 0.1, qpos.shape)
    return moved.astype(np.float32), (qvel + 0.1 * drawn.standard_normal(qvel.shape)).astype(np.float32)
