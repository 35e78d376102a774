"""Draws the control suite's tasks with Python's `mujoco`: a pool gives it the state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.native.pool.control_suite import SuiteModel
from penstock.native.pool.mujoco_data import use_egl_without_display

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_HEIGHT, _WIDTH = 240, 320
"""The size of dm_control's frames."""


class SuiteScene:
    """Shows environments of one task as the model's first camera sees them: colours, or depths in metres."""

    def __init__(self, environment_id: str, *, depths: bool = False) -> None:
        use_egl_without_display()
        self._id, self._depths = environment_id, depths
        self._suite = SuiteModel(environment_id)
        self._renderer: Any = None

    def draw(self, state: NDArray[np.float64]) -> NDArray[Any]:
        """Return the frame of a saved state, one row: uint8 [240, 320, 3], or float32 [240, 320] of depths.

        Raises:
            RuntimeError: MuJoCo has no OpenGL to draw with.
        """
        if self._suite.load(state) or self._renderer is None:
            self._renew()
        self._renderer.update_scene(self._suite.data, camera=0 if self._suite.model.ncam else -1)
        frame: NDArray[Any] = self._renderer.render().copy()
        return frame

    def close(self) -> None:
        """Give back what the frames were drawn with."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None

    def _renew(self) -> None:
        """Make a renderer for the model that was loaded."""
        import mujoco  # noqa: PLC0415  (a pool steps without it)

        self.close()
        try:
            self._renderer = mujoco.Renderer(self._suite.model, _HEIGHT, _WIDTH)
        except mujoco.FatalError as error:
            raise RuntimeError(
                f"MuJoCo cannot draw {self._id}: {error}; without a display set MUJOCO_GL=egl before mujoco is imported"
            ) from error
        if self._depths:
            self._renderer.enable_depth_rendering()
