"""Compiles the kernels of environments for a GPU, from the headers that the pool was compiled from, and loads them.

It needs nvcc and a C++ compiler (`penstock.native.compile.nvcc`), once for each kind of GPU: the library is kept where
`penstock.native.load` keeps its own. THE KERNELS NEVER RAN: no machine that Penstock was tested on has a GPU. Tests
compile and load them, and compare their layout with the host's.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from penstock.native.batch.kernels import BatchKernels
from penstock.native.compile.compiler import include_dir
from penstock.native.compile.load import Build, build_behind
from penstock.native.compile.nvcc import find_nvcc

if TYPE_CHECKING:
    from pathlib import Path

_ENTRY_POINT = "penstock_cuda_kernels"
_KEPT_FLAGS = ("-D", "-U", "-I")
"""Flags of a header's own build that mean the same to nvcc."""


def cuda_kernels(environment_id: str, capability: tuple[int, int]) -> BatchKernels:
    """Return the kernels of an environment for GPUs of a compute capability, compiled unless that was done before.

    Args:
        environment_id: One of `penstock.native.batch.host.batch_ids()`.
        capability: As `torch.cuda.get_device_capability()` gives it.

    Raises:
        CompilerNotFoundError: There is no nvcc, or no C++ compiler beside it.
        CompileError: nvcc does not compile the header; the message says what to mark where.
        LookupError: The environment came as a library without its header, or is none that a batch steps.
    """
    library = cuda_library(environment_id, capability)
    entry_point = getattr(ctypes.CDLL(str(library)), _ENTRY_POINT)
    entry_point.argtypes, entry_point.restype = [ctypes.c_char_p], ctypes.c_void_p
    table = entry_point(environment_id.encode())
    if not table:
        raise LookupError(f"{library} has no kernels of {environment_id!r}, which is none that a batch steps")
    return BatchKernels(table)


def cuda_library(environment_id: str, capability: tuple[int, int]) -> Path:
    """Return the path of the library that has the kernels, compiled unless that was done before; errors as above."""
    architecture = f"-arch=sm_{capability[0]}{capability[1]}"
    known, build = build_behind(environment_id)
    if known and build is None:
        raise LookupError(
            f"{environment_id} came as a compiled library, of which no kernels for a GPU can be made: load its header "
            f"with native.load"
        )
    if build is None:
        header = (include_dir() / "penstock" / "envs" / "built_in.hpp").resolve()
        return Build(header, ("PENSTOCK_BUILT_IN",), (architecture,), (), find_nvcc()).result()[0]
    arguments = (architecture, *_kept(build.arguments))
    return Build(build.source, build.environments, arguments, (), find_nvcc()).result()[0]


def _kept(arguments: tuple[str, ...]) -> tuple[str, ...]:
    kept: list[str] = []
    follows = False
    for argument in arguments:
        if follows or argument.startswith(_KEPT_FLAGS):
            kept.append(argument)
        follows = not follows and argument in _KEPT_FLAGS
    return tuple(kept)
