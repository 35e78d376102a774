"""Gymnasium's MuJoCo tasks: the library that holds them, loaded when one of them is first asked for.

It runs on the shared library of the `mujoco` package and on the model files of the `gymnasium` package. Neither is
imported: both are only located, so no rendering library is loaded.
"""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

from penstock.native import _core

IDS = (
    "Ant-v5",
    "HalfCheetah-v5",
    "Hopper-v5",
    "Humanoid-v5",
    "HumanoidStandup-v5",
    "InvertedDoublePendulum-v5",
    "InvertedPendulum-v5",
    "Pusher-v5",
    "Reacher-v5",
    "Swimmer-v5",
    "Walker2d-v5",
)
_PREFIX = "libpenstock_mujoco-"
_INSTALL = "run: pip install 'penstock-rl[mujoco]'"
_INSTEAD = "; until then, use ids such as 'gymnasium/Ant-v5', which Gymnasium steps"
_MUJOCO_PREFIX = "libmujoco.so."


def load() -> None:
    """Make `IDS` known; does nothing where they are.

    Raises:
        ImportError: There is no `mujoco`, not the version that Penstock was compiled for, or Penstock was compiled
            without.
    """
    if _is_loaded():
        return
    load_tasks(_found(), _assets())


def load_tasks(found: tuple[Path, Path], models: Path) -> None:
    """Load a library of tasks with its MuJoCo, as `find_library` found them; `models` is their XML files' folder."""
    library, mujoco = found
    # Loaded first, by its path, so that the library finds it by name from any folder; Python's mujoco, if it is
    # imported as well, shares it.
    ctypes.CDLL(str(mujoco))
    ctypes.CDLL(str(library)).penstock_mujoco_dot_is_fused(ctypes.c_bool(_dot_is_fused()))
    _core.load_library(str(library), str(models))


def available() -> bool:
    """Return whether `load` would succeed, as far as can be seen without loading."""
    try:
        return _is_loaded() or bool(_found())
    except ImportError:
        return False


def model_path(xml_file: str) -> Path:
    """Return the path of a model: as Gymnasium takes it, a bare name is one of Gymnasium's own files.

    Raises:
        ValueError: There is no such file, or its name does not end in `.xml`.
    """
    path = Path(xml_file).expanduser()
    found = path.resolve() if xml_file.startswith((".", "/", "~")) else _assets() / path
    if found.suffix != ".xml" or not found.is_file():
        raise ValueError(
            f"xml_file = {xml_file!r}: found no file {str(found)!r} that ends in .xml, expected a path that begins "
            f"with . or / or ~, or the name of one of Gymnasium's models, such as 'ant.xml'"
        )
    return found


def with_body_numbers(environment_id: str, fields: dict[str, Any], xml_file: str | None) -> dict[str, Any]:
    """Return the fields with names of bodies as their numbers, where an environment takes a body (`main_body`).

    Raises:
        ValueError: The model has no body of that name; the message lists the names.
    """
    value = fields.get("main_body")
    several = isinstance(value, (list, tuple, np.ndarray))
    given = list(value) if isinstance(value, (list, tuple, np.ndarray)) else [value]
    if environment_id not in IDS or not any(isinstance(one, str) for one in given):
        return fields
    load()
    names = body_names(model_path(xml_file or "ant.xml"))
    unknown = [one for one in given if isinstance(one, str) and (one not in names or not one)]
    if unknown:
        raise ValueError(
            f"main_body = {unknown[0]!r}: expected a number, or one of the model's bodies: "
            f"{', '.join(filter(None, names))}"
        )
    numbers = [names.index(one) if isinstance(one, str) else one for one in given]
    return {**fields, "main_body": numbers if several else numbers[0]}


def body_names(path: Path) -> list[str]:
    """Return the names of a model's bodies in MuJoCo's order, the first is the world; empty where one has none.

    Raises:
        ValueError: MuJoCo cannot load it.
    """
    library, _ = _found()
    text = ctypes.create_string_buffer(1 << 20)
    ask = ctypes.CDLL(str(library)).penstock_mujoco_body_names
    ask.restype = ctypes.c_bool
    found = ask(str(path).encode(), text, ctypes.c_size_t(len(text)))
    if not found:
        raise ValueError(text.value.decode(errors="replace"))
    return text.value.decode().split("\n")


def _assets() -> Path:
    return package_folder("gymnasium") / "envs" / "mujoco" / "assets"


def _is_loaded() -> bool:
    return IDS[0] in _core.environment_ids()


def _found() -> tuple[Path, Path]:
    return find_library(_PREFIX, _INSTEAD)


def find_library(prefix: str, instead: str) -> tuple[Path, Path]:
    """Return a library of tasks, whose file's name begins so, and the MuJoCo for it.

    Raises:
        ImportError: One of them is missing, or they do not fit; the message ends with `instead`.
    """
    compiled = {path.stem.removeprefix(prefix): path for path in Path(_core.__file__).parent.glob(f"{prefix}*.so")}
    if not compiled:
        raise ImportError(
            "this Penstock was compiled without the MuJoCo tasks: install a wheel of it, or install mujoco before you "
            "compile it" + instead
        )
    wanted = " or ".join(sorted(compiled))
    try:
        folder = package_folder("mujoco")
    except ModuleNotFoundError:
        raise ModuleNotFoundError(f"the MuJoCo tasks need mujoco {wanted}, and none is installed; {_INSTALL}") from None
    there = {path.name.removeprefix(_MUJOCO_PREFIX): path for path in folder.glob(f"{_MUJOCO_PREFIX}*")}
    for version, library in compiled.items():
        if version in there:
            return library, there[version]
    installed = " or ".join(sorted(there)) or "none"
    raise ImportError(
        f"the MuJoCo tasks were compiled for mujoco {wanted}, but {installed} is installed in {folder}; {_INSTALL}"
        + instead
    )


def package_folder(name: str) -> Path:
    """Return the folder of an installed package, without importing it; raises ModuleNotFoundError if there is none."""
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:  # sys.modules says None: the import is forbidden
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"no package {name}")
    return Path(next(iter(spec.submodule_search_locations)))


def _dot_is_fused() -> bool:
    """Return whether NumPy's dot product of two values adds the second product without rounding it first.

    It depends on NumPy's BLAS and the processor, and Gymnasium's distances depend on it.
    """
    near_one = 1 + 2.0**-30
    return bool(np.array([-1.0, near_one]).dot(np.array([1.0, near_one])) != near_one * near_one - 1)
