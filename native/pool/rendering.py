"""Draws frames with Gymnasium's environment of the same id, which is given the state and rendered.

Classic control needs `gymnasium[classic-control]`, which brings pygame, and MuJoCo's tasks need `gymnasium[mujoco]` and
OpenGL; Gymnasium says so where that is missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import load_env_creator

from penstock.native.pool.mujoco_data import (
    FRAMES_PER_SECOND,
    RENDER_MODES,
    SAVED_ARRAYS,
    bare_environment,
    load_state,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

# The picture of these follows from `state`, the configuration and, for Pendulum, the torque.
_DRAWN = ("Acrobot-v1", "CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1")


def metadata_of(environment_id: str) -> dict[str, object]:
    """Return Gymnasium's metadata: `render_modes` and `render_fps`; no modes for environments that cannot be drawn."""
    if environment_id in SAVED_ARRAYS:  # Gymnasium's class would import Python's mujoco
        return {"render_modes": ["human", *RENDER_MODES], "render_fps": FRAMES_PER_SECOND[environment_id]}
    if environment_id not in _DRAWN:
        return {"render_modes": []}
    creator: Any = load_env_creator(str(gymnasium.spec(environment_id).entry_point))
    return dict(creator.metadata)


def checked_render_mode(environment_id: str, render_mode: str | None, *modes: str) -> str | None:
    """Return the mode, if the environment can be drawn and it is one of these.

    Raises:
        ValueError: It is not.
    """
    if render_mode is None:
        return None
    if environment_id in SAVED_ARRAYS:
        modes = tuple(dict.fromkeys((*modes, *RENDER_MODES)))
    elif environment_id not in _DRAWN:
        raise ValueError(f"{environment_id} cannot be drawn: make it without render_mode, got {render_mode!r}")
    if render_mode not in modes:
        raise ValueError(f"render_mode is {render_mode!r}, expected {' or '.join(map(repr, modes))}")
    return render_mode


class Renderer:
    """Draws one environment at a time; with `human` into a window, otherwise into an array."""

    def __init__(self, environment_id: str, render_mode: str) -> None:
        self._simulates = environment_id in SAVED_ARRAYS
        # Bare, for it is never reset or stepped, which the wrappers would demand.
        self._canvas: Any = (
            bare_environment(environment_id, render_mode)
            if self._simulates
            else gymnasium.make(environment_id, render_mode=render_mode).unwrapped
        )

    def draw(
        self, state: NDArray[np.float64], config: Mapping[str, float], action: NDArray[np.float32] | None
    ) -> NDArray[Any] | None:
        """Return the frame, uint8 [height, width, 3] (float32 [height, width] of depths), or None in a window.

        Args:
            state: The environment's state as one row.
            config: Its configuration; lengths change the picture.
            action: The episode's latest action, None before the first.
        """
        frame: NDArray[Any] | None
        if self._simulates:
            load_state(self._canvas, state)
            frame = self._canvas.render()
            return frame
        for name, value in config.items():
            if hasattr(self._canvas, name):
                setattr(self._canvas, name, value)
        self._canvas.state = state
        limit = getattr(self._canvas, "max_torque", None)
        if limit is not None:
            self._canvas.last_u = None if action is None else np.clip(action, -limit, limit)[0]
        frame = self._canvas.render()
        return frame

    def close(self) -> None:
        """Close the window, if there is one."""
        self._canvas.close()
