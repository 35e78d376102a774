"""Environment pools in C++: many environments stepped as one, equal to Gymnasium's seed for seed and step for step.

`make` gives a pool; a pool is a `gymnasium.vector.VectorEnv` and, beside that, writes rollouts straight into buffers
that the caller owns. `load` compiles an environment of one's own. `fill_noise` gives the random numbers of a round as a
pure function of where they are used. This package knows nothing of storage, learning or clusters.
"""

from typing import Any

from native._core import fill_noise
from native.compiler import CompileError, CompilerNotFoundError, cmake_dir, include_dir
from native.faces import EnvironmentPool, EnvironmentSpec, RoundEnd, StateNotSupportedError
from native.installed import load_installed
from native.load import Library, load, load_library
from native.pool import Pool
from native.registration import register
from native.registry import environment_ids, make
from native.single import SingleEnv

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
    "load",
    "load_installed",
    "load_library",
    "make",
    "register",
]

for _id in environment_ids():
    register(_id)


def __getattr__(name: str) -> Any:
    """`make_dm`, which alone needs dm_env."""
    if name != "make_dm":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from native.dm import make_dm  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ImportError("native.make_dm needs dm_env: install penstock[dm]") from error
    return make_dm
