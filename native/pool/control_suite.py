"""DeepMind's control suite (Tassa et al. 2018, arXiv 1801.00690), stepped by Penstock: the library that has its tasks.

It runs on the shared library of the `mujoco` package and on the model files of the `dm_control` package, which is only
located: nothing of it is imported.
"""

from __future__ import annotations

import ctypes
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.native import _core
from penstock.native.pool.mujoco_library import find_library, load_tasks, package_folder

if TYPE_CHECKING:
    from numpy.typing import NDArray

PREFIX = "dmc/"
TASKS: dict[str, tuple[str, ...]] = {
    "acrobot": ("swingup", "swingup_sparse"),
    "ball_in_cup": ("catch",),
    "cartpole": ("balance", "balance_sparse", "swingup", "swingup_sparse", "two_poles", "three_poles"),
    "cheetah": ("run",),
    "dog": ("stand", "walk", "trot", "run", "fetch"),
    "finger": ("spin", "turn_easy", "turn_hard"),
    "fish": ("upright", "swim"),
    "hopper": ("stand", "hop"),
    "humanoid": ("stand", "walk", "run", "run_pure_state"),
    "humanoid_CMU": ("stand", "walk", "run"),
    "lqr": ("lqr_2_1", "lqr_6_2"),
    "manipulator": ("bring_ball", "bring_peg", "insert_ball", "insert_peg"),
    "pendulum": ("swingup",),
    "point_mass": ("easy", "hard"),
    "quadruped": ("walk", "run", "escape", "fetch"),
    "reacher": ("easy", "hard"),
    "stacker": ("stack_2", "stack_4"),
    "swimmer": ("swimmer6", "swimmer15"),
    "walker": ("stand", "walk", "run"),
}
"""By domain."""
IDS = tuple(sorted(f"{PREFIX}{domain}-{task}" for domain, tasks in TASKS.items() for task in tasks))
MAX_EPISODE_STEPS = {name: None if name.startswith(f"{PREFIX}lqr-") else 1000 for name in IDS}
"""By id, the time limit; None: there is none."""
_CONTROL_SECONDS = {
    "acrobot": 0.01,
    "cartpole": 0.01,
    "cheetah": 0.01,
    "dog": 0.015,
    "fish": 0.04,
    "humanoid": 0.025,
    "lqr": 0.03,
    "manipulator": 0.01,
    "stacker": 0.01,
    "swimmer": 0.03,
    "walker": 0.025,
}
STEP_SECONDS = {name: _CONTROL_SECONDS.get(name[len(PREFIX) :].split("-")[0], 0.02) for name in IDS}
"""By id, the simulated time of a step."""
FRAMES_PER_SECOND = {name: round(1 / seconds) for name, seconds in STEP_SECONDS.items()}
"""By id, the rate at which frames of each step show real time."""

_LIBRARY_PREFIX = "libpenstock_dmc-"
_INSTEAD = "; until then, EnvPool has the same tasks under ids such as 'envpool/CartpoleBalance-v1'"


def load() -> None:
    """Make `IDS` known; does nothing where they are.

    Raises:
        ImportError: There is no `mujoco`, not the version that Penstock was compiled for, no `dm_control` with the
            suite's models, or Penstock was compiled without.
    """
    if not _is_loaded():
        load_tasks(find_library(_LIBRARY_PREFIX, _INSTEAD), _models())


def available() -> bool:
    """Return whether `load` would succeed, as far as can be seen without loading."""
    try:
        return _is_loaded() or bool(find_library(_LIBRARY_PREFIX, _INSTEAD) and _models())
    except ImportError:
        return False


def save_model(environment_id: str, state: NDArray[np.float64], path: Path) -> None:
    """Write the model of an environment with that saved state, one row, as a binary file of MuJoCo's.

    It has the environment's own arrays: targets, springs, the ground.

    Raises:
        ValueError: the state is none of that task.
    """
    library, _ = find_library(_LIBRARY_PREFIX, _INSTEAD)
    save = ctypes.CDLL(str(library)).penstock_dmc_save_model
    save.restype = ctypes.c_bool
    said, row = ctypes.create_string_buffer(1 << 12), np.ascontiguousarray(state, np.float64)
    values = row.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(row.size)
    folder, name, file = (str(text).encode() for text in (_models(), environment_id, path))
    if not save(folder, name, *values, file, said, ctypes.c_size_t(len(said))):
        raise ValueError(f"{environment_id}: {said.value.decode(errors='replace')}")


class SuiteModel:
    """A task's `mujoco.MjModel` and `mujoco.MjData` for Python, into which saved states are loaded.

    A model with other targets, springs or ground, which each environment may have, is another object.
    """

    model: Any
    data: Any

    def __init__(self, environment_id: str) -> None:
        self._id = environment_id
        self._own: NDArray[np.float64] = np.empty(0)
        self.model = self.data = None

    def load(self, state: NDArray[np.float64]) -> bool:
        """Load a saved state, one row, compute what follows from it, and return whether the model is another one now.

        Sensors are those of the environment: of forces and accelerations, those of its last step.
        """
        import mujoco  # noqa: PLC0415  (a pool steps without it)

        is_other = self.model is None or not np.array_equal(self._parts(state)[2], self._own)
        if is_other:
            with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
                path = Path(folder) / "model.mjb"
                save_model(self._id, state, path)
                self.model = mujoco.MjModel.from_binary_path(str(path))
            self.data = mujoco.MjData(self.model)
            self._own = self._parts(state)[2].copy()
        integration, sensors, _ = self._parts(state)
        mujoco.mj_setState(self.model, self.data, integration, mujoco.mjtState.mjSTATE_INTEGRATION)
        mujoco.mj_forward(self.model, self.data)
        self.data.sensordata[:] = sensors
        return is_other

    def row(self) -> NDArray[np.float64]:
        """Return what `load` loads: the state of `data` as a pool saves it, its model's own part among it."""
        import mujoco  # noqa: PLC0415  (a pool steps without it)

        kind = mujoco.mjtState.mjSTATE_INTEGRATION
        integration = np.empty(mujoco.mj_stateSize(self.model, kind))
        mujoco.mj_getState(self.model, self.data, integration, kind)
        return np.concatenate([integration, self.data.sensordata, self._own])

    def _parts(self, state: NDArray[np.float64]) -> list[NDArray[np.float64]]:
        """Return MuJoCo's integration state, the sensors, and the environment's own part of the model."""
        import mujoco  # noqa: PLC0415  (a pool steps without it)

        size = mujoco.mj_stateSize(self.model, mujoco.mjtState.mjSTATE_INTEGRATION)
        return np.split(state, [size, size + self.model.nsensordata])


def _is_loaded() -> bool:
    return IDS[0] in _core.environment_ids()


def _models() -> Path:
    try:
        folder = package_folder("dm_control") / "suite"
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "the control suite's models come with the package dm_control, and none is installed; run: "
            "pip install 'penstock-rl[dm]', or, since nothing of it is imported, pip install --no-deps dm-control"
        ) from None
    if missing := [f"{domain}.xml" for domain in TASKS if not (folder / f"{domain}.xml").is_file()]:
        raise ImportError(
            f"{folder} has no {', '.join(missing)}, expected those of dm_control 1.0.50; install it again"
        )
    return folder
