"""Draws MuJoCo's tasks, Gymnasium's and the control suite's, with Python's `mujoco`: a pool gives them the state.

OpenGL draws into the context that is current in the thread. A scene makes its own one current while it draws, and
leaves none: scenes may be beside each other, and each may be drawn in any thread, one at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.native.pool.control_suite import SuiteModel
from penstock.native.pool.mujoco_data import bare_environment, load_state, use_egl_without_display

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

_HEIGHT, _WIDTH = 240, 320
"""The size of dm_control's frames."""


def _leave_context(kind: Any) -> None:
    """Let no context of OpenGL be current in this thread.

    Renderers leave theirs current. Where it is another scene's, frames of this one are black, and a context that is
    current in one thread can't be used in another. No kind of context gives itself back, but one that is freed does.

    Args:
        kind: The class of the context that is current.
    """
    passing = kind(1, 1)
    passing.make_current()
    passing.free()


class TaskScene:
    """Shows environments of one of Gymnasium's tasks as its renderer does.

    Args:
        environment_id: One of `SAVED_ARRAYS`.
        render_mode: One of Gymnasium's modes.
        resources: The pool's settings that are text.
        camera: Gymnasium's `width` and `height` of frames in pixels.

    Raises:
        gymnasium.error.DependencyNotInstalled: What Gymnasium draws with is not installed.
    """

    def __init__(self, environment_id: str, render_mode: str, resources: Mapping[str, Any], **camera: int) -> None:
        self._canvas = bare_environment(environment_id, render_mode, resources, **camera)
        self._into_window = render_mode == "human"

    @property
    def cameras(self) -> list[str]:
        """Return the names of the model's cameras."""
        return [self._canvas.model.camera(index).name for index in range(self._canvas.model.ncam)]

    def choose_camera(self, name: str | None) -> None:
        """Draw what a camera of the model sees; None: the free camera."""
        self._canvas.mujoco_renderer.camera_id = -1 if name is None else self.cameras.index(name)

    @property
    def free_camera(self) -> Any:
        """Return the `mujoco.MjvCamera` that the first frame makes."""
        return self._canvas.mujoco_renderer.viewer.cam

    @property
    def default_center(self) -> NDArray[np.float64]:
        """Return the point at which the free camera looks if the first frame is of what is loaded now, float64 [3]."""
        fixed = (self._canvas.mujoco_renderer.default_cam_config or {}).get("lookat")
        data = self._canvas.data
        center: NDArray[np.float64] = np.median(data.geom_xpos, axis=0) if fixed is None else np.array(fixed)
        return center

    def load_start(self) -> None:
        """Show the model as it is made in the next frame."""
        import mujoco  # noqa: PLC0415  (a pool steps without it)

        mujoco.mj_forward(self._canvas.model, self._canvas.data)

    def load(self, state: NDArray[np.float64]) -> None:
        """Show a saved state, one row, in the next frame."""
        load_state(self._canvas, state)

    def draw(self) -> NDArray[Any] | None:
        """Return the frame, uint8 [height, width, 3] (float32 [height, width] of depths), or None in a window."""
        if self._into_window:
            self._canvas.render()
            return None
        frame: NDArray[Any]
        if (viewer := self._canvas.mujoco_renderer.viewer) is None:
            frame = self._canvas.render()
            # Gymnasium chooses what it draws with, which may differ from what MuJoCo chose when it was imported.
            _leave_context(type(self._canvas.mujoco_renderer.viewer.opengl_context))
            return frame
        with viewer.opengl_context.as_current():
            frame = self._canvas.render()
        return frame

    def close(self) -> None:
        """Close the window, or give back what the frames were drawn with."""
        viewer = self._canvas.mujoco_renderer.viewer
        if viewer is not None and not self._into_window:
            with viewer.opengl_context.as_current():
                viewer.con.free()  # later, it would free another context's buffers, which have the same numbers
        self._canvas.close()


class SuiteScene:
    """Shows environments of one task as the model's first camera sees them: colours, or depths in metres."""

    def __init__(self, environment_id: str, *, depths: bool = False) -> None:
        use_egl_without_display()
        self._id, self._depths = environment_id, depths
        self._suite = SuiteModel(environment_id)
        self._renderer: Any = None
        self._outer: Any = None
        """A context that is current around the renderer's, which it leaves current, and gives back the one before."""

    def draw(self, state: NDArray[np.float64]) -> NDArray[Any]:
        """Return the frame of a saved state, one row: uint8 [240, 320, 3], or float32 [240, 320] of depths.

        Raises:
            RuntimeError: MuJoCo has no OpenGL to draw with.
        """
        is_other = self._suite.load(state)
        if self._renderer is None:
            self._renew()
            self._outer = _new_outer()
            is_other = False
        with self._outer.as_current():
            if is_other:
                self._renew()
            self._renderer.update_scene(self._suite.data, camera=0 if self._suite.model.ncam else -1)
            frame: NDArray[Any] = self._renderer.render().copy()
        return frame

    def close(self) -> None:
        """Give back what the frames were drawn with."""
        self._close_renderer()
        if self._outer is not None:
            self._outer.free()
            self._outer = None

    def _close_renderer(self) -> None:
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None

    def _renew(self) -> None:
        """Make a renderer for the model that was loaded."""
        import mujoco  # noqa: PLC0415  (a pool steps without it)

        self._close_renderer()
        try:
            self._renderer = mujoco.Renderer(self._suite.model, _HEIGHT, _WIDTH)
        except mujoco.FatalError as error:
            raise RuntimeError(
                f"MuJoCo cannot draw {self._id}: {error}; without a display set MUJOCO_GL=egl before mujoco is imported"
            ) from error
        if self._depths:
            self._renderer.enable_depth_rendering()


def _new_outer() -> Any:
    """Return a context of the kind that MuJoCo's renderer has left current, which is none afterwards."""
    from mujoco.gl_context import GLContext  # noqa: PLC0415  (a pool steps without it)

    _leave_context(GLContext)
    return GLContext(1, 1)
