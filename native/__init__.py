"""Environment pools in C++: many environments stepped as one, equal to Gymnasium's seed for seed and step for step.

`make` gives a pool; a pool is a `gymnasium.vector.VectorEnv` and also writes rollouts straight into buffers
that the caller owns. `load` compiles a custom environment. `fill_noise` gives the random numbers of a round as a
pure function of where they are used. This package knows nothing of storage, learning or clusters.
"""

from typing import Any

from penstock.native._core import fill_noise
from penstock.native.compile.compiler import CompileError, CompilerNotFoundError, cmake_dir, include_dir
from penstock.native.compile.load import Library, load, load_library
from penstock.native.interface import EnvironmentPool, EnvironmentSpec, RoundEnd, StateNotSupportedError
from penstock.native.pool.pool import Pool
from penstock.native.registry.entry_points import load_installed
from penstock.native.registry.gymnasium_ids import register
from penstock.native.registry.registry import environment_ids, is_native, make, setting_types, takes_wrappers
from penstock.native.registry.single_env import SingleEnv

__all__ = [
    "CompileError",
    "CompilerNotFoundError",
    "EnvironmentPool",
    "EnvironmentSpec",
    "Library",
    "Pool",
    "RoundEnd",
    "SingleEnv",
    "StateNotSupportedError",
    "cmake_dir",
    "environment_ids",
    "fill_noise",
    "include_dir",
    "is_native",
    "load",
    "load_installed",
    "load_library",
    "make",
    "register",
    "setting_types",
    "takes_wrappers",
]

for _id in environment_ids():
    register(_id)


def __getattr__(name: str) -> Any:
    """Import `make_dm` and `make_pettingzoo` on first use, as they alone need dm_env and PettingZoo."""
    if name == "make_pettingzoo":
        try:
            from penstock.native.registry.team_env import make_pettingzoo  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise ImportError("native.make_pettingzoo needs PettingZoo: install penstock-rl[pettingzoo]") from error
        return make_pettingzoo
    if name != "make_dm":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from penstock.native.registry.dm_env import make_dm  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ImportError("native.make_dm needs dm_env: install penstock-rl[dm]") from error
    return make_dm
