"""Checks the environments of a library in a process of its own, which the faults that are looked for may end.

That process, `python -m penstock.native.conformance.separate_process LIBRARY RESOURCES FILE PARENT`, appends a line of
JSON to FILE for each environment that it begins, for each check that it has made, and for what it measured.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.native.compile.load import load_library
from penstock.native.conformance.native_checks import NAMES, measured, native_checks
from penstock.native.conformance.report import Check, Report

if TYPE_CHECKING:
    from collections.abc import Callable

_SECONDS = 300.0
"""The longest time of all checks of a library; they take about 5 s where a step takes less than 1 ms."""
_PR_SET_PDEATHSIG = 1
_SPEED = "its speed"


def check_library(library: Path, resources: str) -> list[Report]:
    """Load a library and check every environment in it; a process that ends, or does not end, is a failed check."""
    with tempfile.TemporaryDirectory(prefix="penstock-check-") as folder:
        file = Path(folder) / "found"
        file.touch()
        program = [sys.executable, "-P", "-m", __name__, str(library), resources, str(file), str(os.getpid())]
        # What the environment prints is not the command's output. In a session of its own, Ctrl-C is this process's.
        with subprocess.Popen(program, stdout=2, start_new_session=True) as process:
            try:
                status: int | None = process.wait(_SECONDS)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                process.kill()
        lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return _reports(lines, "" if status == 0 else _end(status))


def _reports(lines: list[dict[str, Any]], end: str) -> list[Report]:
    """Return the reports that a process has written; `end` says how it ended if not by itself."""
    found: list[tuple[str, list[Check], dict[str, float]]] = []
    for line in lines:
        if "id" in line:
            found.append((line["id"], [], {}))
        elif "check" in line:
            found[-1][1].append(Check(*line["check"]))
        else:
            found[-1][2].update(line["speed"])
    if end:
        if not found:
            found.append(("", [], {}))
        checks = found[-1][1]
        checks.append(Check([*NAMES, _SPEED][min(len(checks), len(NAMES))], "fail", end))
    return [Report(id, tuple(checks), speed) for id, checks, speed in found]  # noqa: A001


def _end(status: int | None) -> str:
    if status is None:
        return f"did not end within {_SECONDS:g} s: is there a loop without an end in reset() or step()?"
    if status < 0:
        return (
            f"the process in which it was stepped ended by {signal.Signals(-status).name}: it reads or writes memory "
            "that is not its own, or ends the process itself"
        )
    return f"the process in which it was stepped ended with status {status}; what it said is above"


def main() -> None:
    """Check the environments of a library in this process."""
    library, resources, file, parent = sys.argv[1:]
    if sys.platform == "linux":  # a loop in C++ without an end outlives its parent otherwise
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != int(parent):
            return
    with Path(file).open("a", encoding="utf-8", buffering=1) as out:

        def say(**line: object) -> None:
            out.write(json.dumps(line) + "\n")

        _check(library, resources, say)


def _check(library: str, resources: str, say: Callable[..., None]) -> None:
    try:
        ids = load_library(library, resources).environment_ids
    except (RuntimeError, ValueError) as error:
        say(id="")
        say(check=("can be loaded", "fail", str(error)))
        return
    for environment_id in ids:
        say(id=environment_id)
        passed = True
        for check in native_checks(environment_id):
            say(check=(check.name, check.outcome, check.detail))
            passed = passed and check.outcome != "fail"
        if passed:
            say(speed=measured(environment_id))


if __name__ == "__main__":
    main()
