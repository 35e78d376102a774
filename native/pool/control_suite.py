"""DeepMind's control suite (Tassa et al. 2018, arXiv 1801.00690), stepped by Penstock: the library that has its tasks.

It runs on the shared library of the `mujoco` package and on the model files of the `dm_control` package, which is only
located: nothing of it is imported.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import numpy as np

from penstock.native import _core
from penstock.native.pool.mujoco_library import find_library, load_tasks, package_folder

if TYPE_CHECKING:
    from pathlib import Path

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
FRAMES_PER_SECOND = {name: round(1 / _CONTROL_SECONDS.get(name[len(PREFIX) :].split("-")[0], 0.02)) for name in IDS}
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
