"""Says which environments can be drawn, and draws frames of those that Gymnasium draws: it is given the state.

Classic control needs `gymnasium[classic-control]`, which brings pygame, and MuJoCo's tasks need `gymnasium[mujoco]` and
OpenGL; Gymnasium says so where that is missing. The control suite's need OpenGL. Environments with a `draw` of their
own need nothing: the pool in C++ paints them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import load_env_creator

from penstock.native.pool import control_suite
from penstock.native.pool.mujoco_data import (
    FRAMES_PER_SECOND,
    RENDER_MODES,
    SAVED_ARRAYS,
)
from penstock.native.pool.mujoco_scenes import SuiteScene, TaskScene

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from penstock.native._core import Description

# The picture of these follows from `state`, the configuration and, for Pendulum, the torque.
_DRAWN = ("Acrobot-v1", "CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1")

_FRAMES_PER_SECOND = 20
"""For environments that draw themselves: their steps have no duration that the pool knows."""


def metadata_of(described: Description) -> dict[str, object]:
    """Return Gymnasium's metadata: `render_modes` and `render_fps`; no modes for environments that cannot be drawn."""
    environment_id = described["id"]
    if draws_itself(described):
        return {"render_modes": ["rgb_array"], "render_fps": _FRAMES_PER_SECOND}
    if environment_id in SAVED_ARRAYS:  # Gymnasium's class would import Python's mujoco
        return {"render_modes": ["human", *RENDER_MODES], "render_fps": FRAMES_PER_SECOND[environment_id]}
    if environment_id in control_suite.IDS:
        return {"render_modes": [*RENDER_MODES], "render_fps": control_suite.FRAMES_PER_SECOND[environment_id]}
    if environment_id not in _DRAWN:
        return {"render_modes": []}
    creator: Any = load_env_creator(str(gymnasium.spec(environment_id).entry_point))
    return dict(creator.metadata)


def draws_itself(described: Description) -> bool:
    """Return whether the environment has a `draw` in its header."""
    return "frame" in described


def checked_render_mode(described: Description, render_mode: str | None, *modes: str) -> str | None:
    """Return the mode, if the environment can be drawn so; where Gymnasium does not draw it, into arrays alone.

    Raises:
        ValueError: It is not.
    """
    if render_mode is None:
        return None
    environment_id = described["id"]
    if draws_itself(described):
        modes = ("rgb_array",)
    elif environment_id in control_suite.IDS:
        modes = RENDER_MODES
    elif environment_id in SAVED_ARRAYS:
        modes = tuple(dict.fromkeys((*modes, *RENDER_MODES)))
    elif environment_id not in _DRAWN:
        raise ValueError(
            f"{environment_id} cannot be drawn: make it without render_mode, got {render_mode!r}; a header that has "
            f"`frame` and `draw` can be"
        )
    if render_mode not in modes:
        raise ValueError(f"render_mode is {render_mode!r}, expected {' or '.join(map(repr, modes))}")
    return render_mode


class Renderer:
    """Draws one environment at a time; with `human` into a window, otherwise into an array."""

    def __init__(self, environment_id: str, render_mode: str, resources: Mapping[str, Any]) -> None:
        self._looks_at: dict[int, NDArray[np.float64]] = {}
        self._scene: SuiteScene | TaskScene | None = None
        if environment_id in control_suite.IDS:
            self._scene = SuiteScene(environment_id, depths=render_mode == "depth_array")
        elif environment_id in SAVED_ARRAYS:
            self._scene = TaskScene(environment_id, render_mode, resources)
        else:
            # Bare, for it is never reset or stepped, which the wrappers would demand.
            self._canvas: Any = gymnasium.make(environment_id, render_mode=render_mode).unwrapped

    def draw(
        self,
        state: NDArray[np.float64],
        config: Mapping[str, float],
        action: NDArray[np.float32] | None,
        environment: int = 0,
    ) -> NDArray[Any] | None:
        """Return the frame, uint8 [height, width, 3] (float32 [height, width] of depths), or None in a window.

        Args:
            state: The environment's state as one row.
            config: Its configuration; lengths change the picture.
            action: The episode's latest action, None before the first.
            environment: Its number: each has a camera of its own, which stays where the environment's first frame put
                it, as in Gymnasium.
        """
        if isinstance(self._scene, SuiteScene):
            return self._scene.draw(state)
        if isinstance(self._scene, TaskScene):
            return self._draw_task(self._scene, state, environment)
        for name, value in config.items():
            if hasattr(self._canvas, name):
                setattr(self._canvas, name, value)
        self._canvas.state = state
        limit = getattr(self._canvas, "max_torque", None)
        if limit is not None:
            self._canvas.last_u = None if action is None else np.clip(action, -limit, limit)[0]
        frame: NDArray[Any] | None = self._canvas.render()
        return frame

    def _draw_task(self, scene: TaskScene, state: NDArray[np.float64], environment: int) -> NDArray[Any] | None:
        scene.load(state)
        if self._looks_at:
            scene.free_camera.lookat[:] = self._looks_at.setdefault(environment, scene.default_center)
        frame = scene.draw()
        self._looks_at.setdefault(environment, scene.free_camera.lookat.copy())
        return frame

    def close(self) -> None:
        """Close the window, if there is one."""
        (self._scene or self._canvas).close()
