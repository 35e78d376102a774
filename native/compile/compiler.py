"""Finds the C++ compiler of this machine, and the headers of the pool.

Environments are compiled as the pool is: C++20, bit for bit (no contraction, no fast math), and nothing exported but
the entry point, so that two versions of a library live next to each other in one process.
"""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.native.compile.diagnostics import explain

if TYPE_CHECKING:
    from collections.abc import Sequence

_CANDIDATES = ("c++", "g++", "clang++")
_FLAGS = ("-std=c++20", "-fPIC", "-pthread", "-ffp-contract=off", "-fvisibility=hidden", "-fdiagnostics-color=never")
# A function that ends without its result gives any: a warning that nobody would see.
_ERRORS = ("-Werror=return-type",)
OF_STORED_HEADERS = ("-Wno-error=return-type", "-DPENSTOCK_STORED_HEADER")
"""Flags of headers that runs have stored, which must compile although later versions refuse new ones like them."""
# GCC makes inline variables of templates unique in the process, whatever the visibility: a second version of a library
# would then use the first one's.
_GCC_FLAGS = ("-fno-gnu-unique",)


class CompilerNotFoundError(RuntimeError):
    """This machine has no C++ compiler, or not the one that CXX names."""


class CompileError(RuntimeError):
    """The source does not compile. The message has place and reason, `log` is the file of the compiler's output."""

    def __init__(self, message: str, log: Path) -> None:
        super().__init__(message)
        self.log = log


def include_dir() -> Path:
    """Return the folder to give to a compiler as `-I`: `#include <penstock/library.hpp>` is found there."""
    return Path(__file__).parents[1] / "include"


def cmake_dir() -> Path:
    """Return the folder with `penstockConfig.cmake`: give it to CMake as `-Dpenstock_DIR=...`."""
    return Path(__file__).parents[1] / "cmake"


@dataclass(frozen=True, slots=True)
class Compiler:
    """A command that compiles C++20, with the version that its results depend on."""

    command: tuple[str, ...]
    version: str

    @property
    def flags(self) -> tuple[str, ...]:
        """Return the flags of every compilation, except optimisation."""
        extra = () if "clang" in self.version else _GCC_FLAGS
        return (*_FLAGS, *_ERRORS, *extra, "-I", str(include_dir()))

    def run(self, arguments: Sequence[str], sources: Sequence[Path], log: Path, folder: Path) -> str:
        """Run it in `folder`, and return its standard output.

        Raises:
            CompileError: It failed; its output is explained in terms of `sources` and is in `log`.
        """
        environment = {**os.environ, "LC_ALL": "C"}  # the explanation reads English messages
        done = subprocess.run(
            [*self.command, *self.flags, *arguments],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode != 0:
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text(
                shlex.join([*self.command, *self.flags, *arguments]) + "\n\n" + done.stderr, encoding="utf-8"
            )
            raise CompileError(self.explain(done.stderr, sources, log), log)
        return done.stdout

    def explain(self, output: str, sources: Sequence[Path], log: Path) -> str:
        """Return the first errors of its output, in terms of `sources`."""
        return explain(output, sources, log)


def find_compiler() -> Compiler:
    """Return the compiler that CXX names, or else the first of c++, g++ and clang++.

    Raises:
        CompilerNotFoundError: There is none.
    """
    given = os.environ.get("CXX", "")
    try:
        wanted = shlex.split(given)
    except ValueError as error:  # a quote that is not closed
        raise CompilerNotFoundError(f"CXX is {given!r} ({error}); unset it or correct it") from error
    if wanted:
        found = shutil.which(wanted[0])
        if found is None:
            raise CompilerNotFoundError(f"CXX is {given!r}, which is not a command here; unset it or correct it")
        return _compiler(found, *wanted[1:])
    for name in _CANDIDATES:
        found = shutil.which(name)
        if found is not None:
            return _compiler(found)
    raise CompilerNotFoundError(
        f"found no C++ compiler: CXX is not set, and there is no {', '.join(_CANDIDATES)} in PATH; install one "
        "(Debian and Ubuntu: apt-get install g++; conda: conda install cxx-compiler), GCC 11 or Clang 16 at least"
    )


def _compiler(found: str, *options: str) -> Compiler:
    command = (str(Path(found).absolute()), *options)  # it runs in other folders
    return Compiler(command, version_of(command, Path(found).stat().st_mtime_ns))


@functools.lru_cache
def version_of(command: tuple[str, ...], _modified: int) -> str:
    """Return the version that a compiler prints; `_modified` is the time of its file, so that a new one is asked.

    Options are part of the command: the first word may be a wrapper, as in `ccache g++`.
    """
    return subprocess.run([*command, "--version"], capture_output=True, text=True, check=False).stdout.strip()
