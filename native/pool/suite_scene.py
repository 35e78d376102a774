"""Draws the control suite's tasks with Python's `mujoco`: a pool gives it the state."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.native.pool.control_suite import save_model
from penstock.native.pool.mujoco_data import use_egl_without_display

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_HEIGHT, _WIDTH = 240, 320
"""The size of dm_control's frames."""


class SuiteScene:
    """Shows environments of one task as the model's first camera sees them.

    A model with other targets, springs or ground, which each environment may have, is loaded anew.
    """

    def __init__(self, environment_id: str) -> None:
        use_egl_without_display()
        self._id = environment_id
        self._own: bytes | None = None
        self._model: Any = None
        self._data: Any = None
        self._renderer: Any = None

    def draw(self, state: NDArray[np.float64]) -> NDArray[np.uint8]:
        """Return the frame of a saved state, one row: uint8 [240, 320, 3].

        Raises:
            RuntimeError: MuJoCo has no OpenGL to draw with.
        """
        import mujoco  # noqa: PLC0415  (a pool steps without it)

        if self._model is None or self._own_of(state) != self._own:
            self._load(state)
        kind = mujoco.mjtState.mjSTATE_INTEGRATION
        mujoco.mj_setState(self._model, self._data, state[: mujoco.mj_stateSize(self._model, kind)], kind)
        mujoco.mj_forward(self._model, self._data)
        self._renderer.update_scene(self._data, camera=0 if self._model.ncam else -1)
        frame: NDArray[np.uint8] = self._renderer.render().copy()
        return frame

    def close(self) -> None:
        """Give back what the frames were drawn with."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None
        self._model = None

    def _load(self, state: NDArray[np.float64]) -> None:
        import mujoco  # noqa: PLC0415  (a pool steps without it)

        self.close()
        with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
            path = Path(folder) / "model.mjb"
            save_model(self._id, state, path)
            self._model = mujoco.MjModel.from_binary_path(str(path))
        self._data = mujoco.MjData(self._model)
        try:
            self._renderer = mujoco.Renderer(self._model, _HEIGHT, _WIDTH)
        except mujoco.FatalError as error:
            raise RuntimeError(
                f"MuJoCo cannot draw {self._id}: {error}; without a display set MUJOCO_GL=egl before mujoco is imported"
            ) from error
        self._own = self._own_of(state)

    def _own_of(self, state: NDArray[np.float64]) -> bytes:
        """Return what follows MuJoCo's own state and the sensors: the environment's part of the model."""
        import mujoco  # noqa: PLC0415  (a pool steps without it)

        size = mujoco.mj_stateSize(self._model, mujoco.mjtState.mjSTATE_INTEGRATION)
        return state[size + self._model.nsensordata :].tobytes()
