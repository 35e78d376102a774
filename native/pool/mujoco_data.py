"""MuJoCo's model and data of the environments of a pool, for Python: to look at, to draw, and to place a robot.

The pool steps without Python's `mujoco`. Here an environment's saved state is loaded into the MjData of Gymnasium's
environment of the same id, or of the control suite's model, so everything that MuJoCo computes can be read from it.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from penstock.native.pool import control_suite
from penstock.native.pool.attributes import get_attribute, set_attribute
from penstock.native.pool.control_suite import SuiteModel

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike, NDArray

    from penstock.native.pool.attributes import AttributesMixin

_BODIES = ("cinert", "cvel", "qfrc_actuator", "cfrc_ext")
SAVED_ARRAYS: dict[str, tuple[str, ...]] = {
    "Ant-v5": ("xpos", "cfrc_ext"),
    "HalfCheetah-v5": (),
    "Hopper-v5": (),
    "Humanoid-v5": ("xipos", *_BODIES),
    "HumanoidStandup-v5": _BODIES,
    "InvertedDoublePendulum-v5": ("qfrc_constraint",),
    "InvertedPendulum-v5": (),
    "Pusher-v5": ("xpos",),
    "Reacher-v5": ("xpos",),
    "Swimmer-v5": (),
    "Walker2d-v5": (),
}
"""By task, the arrays of MjData that a saved state holds after MuJoCo's own integration state, in this order."""
FRAMES_PER_SECOND = {
    "Ant-v5": 20,
    "HalfCheetah-v5": 20,
    "Hopper-v5": 125,
    "Humanoid-v5": 67,
    "HumanoidStandup-v5": 67,
    "InvertedDoublePendulum-v5": 20,
    "InvertedPendulum-v5": 25,
    "Pusher-v5": 20,
    "Reacher-v5": 50,
    "Swimmer-v5": 25,
    "Walker2d-v5": 125,
}
"""By task, the rate at which frames of each step show real time, with the task's own `frame_skip`."""
RENDER_MODES = ("rgb_array", "depth_array")


def use_egl_without_display() -> None:
    """Let MuJoCo draw by EGL, which needs no window, where there is no display; the variable MUJOCO_GL is kept."""
    if sys.platform == "linux" and not os.environ.get("DISPLAY"):
        os.environ.setdefault("MUJOCO_GL", "egl")


def bare_environment(
    environment_id: str, render_mode: str | None = None, resources: Mapping[str, Any] | None = None, **camera: Any
) -> Any:
    """Return Gymnasium's environment, without wrappers, which would demand to be reset and stepped.

    Args:
        environment_id: One of `SAVED_ARRAYS`.
        render_mode: One of Gymnasium's modes, to draw with it. Without a display and the variable MUJOCO_GL, frames are
            drawn by EGL, which needs no window.
        resources: The pool's settings that are text: another model, with `xml_file`.
        camera: Gymnasium's `width` and `height` of frames in pixels, and `camera_name`.
    """
    if render_mode not in (None, "human"):
        use_egl_without_display()
    import mujoco  # noqa: PLC0415  (a pool steps without it)

    # The pool has loaded the same model without a word.
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda _: None)
    try:
        return gymnasium.make(environment_id, render_mode=render_mode, **(resources or {}), **camera).unwrapped
    finally:
        mujoco.set_mju_user_warning(before)


def load_state(environment: Any, state: NDArray[np.float64]) -> None:
    """Load a pool's saved state, one row, into Gymnasium's environment, and compute what follows from it.

    Positions of bodies are those of the state's coordinates; within a step of MuJoCo they are one substep older.
    """
    import mujoco  # noqa: PLC0415  (a pool steps without it)

    model, data = environment.model, environment.data
    size = mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_INTEGRATION)
    mujoco.mj_setState(model, data, state[:size], mujoco.mjtState.mjSTATE_INTEGRATION)
    for name in SAVED_ARRAYS[environment.spec.id]:
        array = getattr(data, name)
        array[...] = state[size : size + array.size].reshape(array.shape)
        size += array.size
    mujoco.mj_forward(model, data)


def row_of(environment: Any) -> NDArray[np.float64]:
    """Return what `load_state` loads: the state of Gymnasium's environment as a pool saves it."""
    import mujoco  # noqa: PLC0415  (a pool steps without it)

    row = np.empty(mujoco.mj_stateSize(environment.model, mujoco.mjtState.mjSTATE_INTEGRATION))
    mujoco.mj_getState(environment.model, environment.data, row, mujoco.mjtState.mjSTATE_INTEGRATION)
    arrays = [getattr(environment.data, name).reshape(-1) for name in SAVED_ARRAYS[environment.spec.id]]
    return np.concatenate([row, *arrays])


class _TaskModel:
    """The model and data of Gymnasium's environment of the same id; `SuiteModel` is its like."""

    def __init__(self, environment_id: str, resources: Mapping[str, Any]) -> None:
        self._environment = bare_environment(environment_id, resources=resources)
        self.model, self.data = self._environment.model, self._environment.data

    def load(self, state: NDArray[np.float64]) -> None:
        load_state(self._environment, state)

    def row(self) -> NDArray[np.float64]:
        return row_of(self._environment)


def has_mujoco_model(environment_id: str) -> bool:
    """Tell whether environments of that id have a `MujocoView`."""
    return environment_id in SAVED_ARRAYS or environment_id in control_suite.IDS


class MujocoView:
    """MuJoCo's view of a pool's environments: `model`, `data`, positions and velocities, and `set_state`.

    Raises:
        ValueError: The pool's environments are not simulated by MuJoCo.
    """

    def __init__(self, pool: AttributesMixin) -> None:
        environment_id = pool.environment["id"]
        if not has_mujoco_model(environment_id):
            raise ValueError(
                f"{environment_id} has no MuJoCo model, expected one of {', '.join(SAVED_ARRAYS)}, or a task of the "
                f"control suite such as {control_suite.IDS[0]}"
            )
        self._pool = pool
        self._loaded: _TaskModel | SuiteModel = (
            _TaskModel(environment_id, pool.resources) if environment_id in SAVED_ARRAYS else SuiteModel(environment_id)
        )

    @property
    def model(self) -> Any:
        """Return the `mujoco.MjModel` that all environments have. Changing it changes this object alone.

        Tasks of the control suite have a model for each environment, with its own targets, springs or ground: this is
        the first one's, and another's is `data(index).model`.

        Raises:
            RuntimeError: Nothing was reset yet, in a task of the control suite.
        """
        if isinstance(self._loaded, SuiteModel):
            self._load(0)
        return self._loaded.model

    def data(self, index: int = 0) -> Any:
        """Return a `mujoco.MjData` of environment `index` as it is now, after `mj_forward`: a copy.

        Raises:
            RuntimeError: Nothing was reset yet.
        """
        import mujoco  # noqa: PLC0415  (a pool steps without it)

        self._load(index)
        copy = mujoco.MjData(self._loaded.model)
        mujoco.mj_copyData(copy, self._loaded.model, self._loaded.data)
        return copy

    @property
    def qpos(self) -> NDArray[np.float64]:
        """Return the positions of all environments, float64 [num_envs, nq]."""
        return self._coordinates()[0]

    @property
    def qvel(self) -> NDArray[np.float64]:
        """Return the velocities of all environments, float64 [num_envs, nv]."""
        return self._coordinates()[1]

    def set_state(self, qpos: ArrayLike, qvel: ArrayLike) -> None:
        """Place the robots, as `set_state` of Gymnasium's environments does, then `mj_forward`.

        Episodes and generators go on as they were.

        Args:
            qpos: Positions, [num_envs, nq], or [nq] for all environments.
            qvel: Velocities, [num_envs, nv], or [nv] for all environments.

        Raises:
            ValueError: Another shape, or a value that is not finite; nothing has then changed.
            RuntimeError: Nothing was reset yet.
        """
        import mujoco  # noqa: PLC0415  (a pool steps without it)

        count, model = self._pool.num_envs, self.model
        given = [
            _finite_rows(name, values, (count, width))
            for name, values, width in (("qpos", qpos, model.nq), ("qvel", qvel, model.nv))
        ]
        rows = []
        for state, positions, velocities in zip(get_attribute(self._pool, "state"), *given, strict=True):
            self._loaded.load(state)
            data = self._loaded.data
            data.qpos[:] = positions
            data.qvel[:] = velocities
            mujoco.mj_forward(self._loaded.model, data)
            rows.append(self._loaded.row())
        set_attribute(self._pool, "state", np.array(rows))

    def _load(self, index: int) -> None:
        self._loaded.load(get_attribute(self._pool, "state")[index])

    def _coordinates(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return positions and velocities: MuJoCo's integration state begins with the time and both of them."""
        states, model = np.array(get_attribute(self._pool, "state")), self.model
        nq, nv = model.nq, model.nv
        return states[:, 1 : 1 + nq].copy(), states[:, 1 + nq : 1 + nq + nv].copy()


def _finite_rows(name: str, values: ArrayLike, shape: tuple[int, int]) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if array.shape not in (shape, shape[1:]):
        raise ValueError(f"{name} needs the shape {shape}, or {shape[1:]} for all environments; got {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite numbers")
    return np.broadcast_to(array, shape)
