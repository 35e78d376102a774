"""Runs an environment under the address and undefined-behaviour sanitizers, in a program without Python."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from penstock.native.compile.compiler import CompileError
from penstock.native.compile.load import build_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.native.compile.load import BuildOptions

# Unoptimised: it compiles in half the time, and nothing is optimised away before it was seen.
_FLAGS = ("-O0", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
_PROGRAM = """
#include <penstock/library/sanitizer_driver.hpp>
int main(int, char** arguments) { return penstock::drive(*penstock_library(), arguments[1], arguments[2]); }
"""
_SECONDS = 120
_NOT_INSTALLED = re.compile(r"cannot find .*(asan|ubsan)|unsupported option '-fsanitize")
_FOUND = re.compile(r"(?:ERROR: AddressSanitizer: |runtime error: |threw: )(?P<what>.*)")


def run_sanitized(
    environment_id: str,
    source: str | os.PathLike[str],
    flags: Sequence[str],
    resources: str,
    options: BuildOptions,
) -> tuple[Literal["pass", "fail", "skip"], str]:
    """Step the environment with random actions in a program that every stray access ends; return outcome and reason."""
    build = build_of(source, flags=[*_FLAGS, *flags], program=_PROGRAM, **options)
    try:
        program, _ = build.result()
    except CompileError as error:
        if _NOT_INSTALLED.search(error.log.read_text(encoding="utf-8")):
            return "skip", "this compiler has no sanitizers installed (Debian: apt-get install libasan8 libubsan1)"
        return "fail", str(error)
    surroundings = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    # Leak detection uses ptrace, which containers forbid.
    surroundings |= {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}
    try:
        done = subprocess.run(
            [program, environment_id, resources],
            env=surroundings,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "skip", f"a program that steps it took more than {_SECONDS} s"
    if done.returncode == 0:
        return "pass", ""
    found = _FOUND.search(done.stderr)
    what = found["what"].split(" on address ")[0].strip() if found else done.stderr.strip()[-300:]
    place = re.search(rf"{re.escape(str(build.source))}:(\d+)", done.stderr)
    at = f" at {Path(build.source).name}:{place[1]}" if place else ""
    return "fail", f"{what}{at}"
