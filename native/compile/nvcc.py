"""Finds nvcc, NVIDIA's compiler, and explains its errors.

It takes the one that NVCC names, that of the extra `cuda` (the package `nvidia-cuda-nvcc`), or the one in PATH. Floats
are computed as on the host, without contraction; only functions such as sine differ, in their last digits.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.native.compile.compiler import Compiler, CompilerNotFoundError, find_compiler, include_dir, version_of

if TYPE_CHECKING:
    from collections.abc import Sequence

VARIABLE = "NVCC"
_FLAGS = (
    *("-x", "cu", "-std=c++20", "--expt-relaxed-constexpr", "--fmad=false", "-O3"),
    # Without this, a function that only the host has is a warning, and a trap when it is called.
    *("-Werror", "cross-execution-space-call"),
    # An own copy of CUDA's runtime: torch's may be of another version, and both share the driver.
    *("-cudart", "static", "-Xcompiler", "-fPIC,-fvisibility=hidden,-ffp-contract=off,-pthread"),
)
_SHOWN = 6
_ERROR = re.compile(r"^(?P<file>[^\s(][^(]*)\((?P<line>\d+)\): (?:fatal )?error(?: #[\w-]+)?: (?P<text>.*)$")
_CALL = re.compile(r"calling a \S*__host__ function(?:\(\"(?P<name>[^\"]+)\"\))?")


@dataclass(frozen=True, slots=True)
class Nvcc(Compiler):
    """nvcc, with the host's compiler that it calls."""

    host_command: str
    library_folder: str = ""
    """The folder of CUDA's runtime, where nvcc does not find it itself."""

    @property
    def flags(self) -> tuple[str, ...]:
        """Return the flags of every compilation, except the GPU's architecture."""
        folder = ("-L", self.library_folder) if self.library_folder else ()
        return (*_FLAGS, *folder, "-ccbin", self.host_command, "-I", str(include_dir()))

    def explain(self, output: str, sources: Sequence[Path], log: Path) -> str:
        """Return the first errors of nvcc's output; a function that is not marked for GPUs with the remedy."""
        said = output.splitlines()
        matches = ((_ERROR.match(line), said[index + 1 : index + 2]) for index, line in enumerate(said))
        errors = [(match, source) for match, source in matches if match]
        found = list(dict.fromkeys(_problem(match, *source) for match, source in errors)) or output.strip().splitlines()
        lines = [f"{sources[0].name} does not compile for a GPU:", *(f"  {line}" for line in found[:_SHOWN])]
        return "\n".join([*lines, f"full output of the compiler: {log}"])


def _problem(error: re.Match[str], source: str = "") -> str:
    place = f"{Path(error['file']).name}:{error['line']}"
    if not (call := _CALL.search(error["text"])):
        return f"{place}: {error['text']}"
    called = call["name"] or source.strip()
    return f"{place}: {called}: a function that the host alone has; write PENSTOCK_HOST_DEVICE before it"


def find_nvcc() -> Nvcc:
    """Return nvcc.

    Raises:
        CompilerNotFoundError: There is none, not the one that NVCC names, or no C++ compiler for it to call.
    """
    host = find_compiler()
    command = _find()
    version = version_of((command,), Path(command).stat().st_mtime_ns)
    libraries = Path(command).resolve().parent.parent / "lib"
    # The package's folder is not the one that nvcc expects beside itself.
    folder = str(libraries) if (libraries / "libcudart_static.a").exists() else ""
    return Nvcc((command,), f"{version}\n{host.version}", host.command[0], folder)


def _find() -> str:
    if wanted := os.environ.get(VARIABLE):
        if (found := shutil.which(wanted)) is None:
            raise CompilerNotFoundError(
                f"{VARIABLE} is {wanted!r}, which is not a command here; unset it or correct it"
            )
        return found
    if found := packaged_nvcc() or shutil.which("nvcc"):
        return found
    raise CompilerNotFoundError(
        "found no nvcc, which compiles environments for a GPU: NVCC is not set, the extra `cuda` is not installed, and "
        "there is none in PATH; install one (pip install 'penstock-rl[cuda]')"
    )


def packaged_nvcc() -> str | None:
    """Return the path of the nvcc that the package `nvidia-cuda-nvcc` installed, or None."""
    spec = importlib.util.find_spec("nvidia")
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    found = sorted(file for place in places for file in Path(place).glob("*/bin/nvcc") if os.access(file, os.X_OK))
    return str(found[-1]) if found else None
