"""Checks the environments of a library in a process of its own, which the faults that are looked for may end.

That process, `python -m penstock.native.conformance.separate_process LIBRARY RESOURCES FILE SKIPPED PARENT`, appends a
line of JSON to FILE for each environment and check that it begins, for each check that it has made, for what it
measured and for its end.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.native.compile.load import load_library
from penstock.native.conformance.native_checks import measured, native_checks
from penstock.native.conformance.report import Check, Report

if TYPE_CHECKING:
    from collections.abc import Callable

_SECONDS = 300.0
"""The longest time of one check, and of loading; all take about 5 s where a step takes less than 1 ms."""
_POLL_SECONDS = 0.05
_PR_SET_PDEATHSIG = 1
_LOADING = "can be loaded"
_SPEED = "its speed"
_WHY = {
    signal.SIGSEGV: "it reads or writes memory that is not its own",
    signal.SIGBUS: "it reads or writes memory that is not its own",
    signal.SIGFPE: "it divides a whole number by 0",
    signal.SIGABRT: "it calls std::abort, or throws where nothing may be thrown, as in a destructor",
    signal.SIGKILL: "was there memory enough?",
}


def check_library(library: Path, resources: str) -> list[Report]:
    """Load a library and check every environment in it.

    A process that ends early, or does not end, is a check that failed; the environments after it have another process.
    """
    reports: list[Report] = []
    while True:
        found, whole = _checked(library, resources, len(reports))
        reports += found
        if whole or not found or not found[-1].id:
            return reports


def _checked(library: Path, resources: str, skipped: int) -> tuple[list[Report], bool]:
    """Return the reports of one process, which leaves out the first environments; and whether it came to its end."""
    with tempfile.TemporaryDirectory(prefix="penstock-check-") as folder:
        file = Path(folder) / "found"
        file.touch()
        program = [sys.executable, "-P", "-m", __name__, str(library), resources, str(file), str(skipped)]
        # What the environment prints is not the command's output. In a session of its own, Ctrl-C is this process's.
        with subprocess.Popen(
            [*program, str(os.getpid())], stdin=subprocess.DEVNULL, stdout=2, start_new_session=True
        ) as process:
            try:
                status = _wait(process, file)
            finally:
                process.kill()
        lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return _reports(lines, _end(status)), bool(lines) and "done" in lines[-1]


def _wait(process: subprocess.Popen[bytes], file: Path) -> int | None:
    """Wait until the process ends; None if it has written nothing for too long."""
    written, since = 0, time.monotonic()
    while (status := process.poll()) is None:
        if (size := file.stat().st_size) != written:
            written, since = size, time.monotonic()
        elif time.monotonic() - since > _SECONDS:
            return None
        time.sleep(_POLL_SECONDS)
    return status


def _reports(lines: list[dict[str, Any]], end: str) -> list[Report]:
    """Return the reports that a process has written; `end` says how it ended if it did not come to its end."""
    found: list[tuple[str, list[Check], dict[str, float]]] = []
    begun = _LOADING
    for line in lines:
        if "id" in line:
            found.append((line["id"], [], {}))
        elif "begins" in line:
            begun = line["begins"]
        elif "check" in line:
            found[-1][1].append(Check(*line["check"]))
        elif "speed" in line:
            found[-1][2].update(line["speed"])
    if not lines or "done" not in lines[-1]:
        if not found:
            found.append(("", [], {}))
        found[-1][1].append(Check(begun, "fail", end))
    return [Report(id, tuple(checks), speed) for id, checks, speed in found]  # noqa: A001


def _end(status: int | None) -> str:
    if status is None:
        return f"did not end within {_SECONDS:g} s: is there a loop without an end in reset() or step()?"
    if status >= 0:
        return f"the process in which it was stepped ended itself, with status {status}; what it printed is above"
    try:
        name, why = signal.Signals(-status).name, _WHY.get(signal.Signals(-status), "")
    except ValueError:
        name, why = f"signal {-status}", ""
    return f"the process in which it was stepped was ended by {name}" + (f": {why}" if why else "")


def main() -> None:
    """Check the environments of a library in this process."""
    library, resources, file, skipped, parent = sys.argv[1:]
    if sys.platform == "linux":  # a loop in C++ without an end outlives its parent otherwise
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != int(parent):
            sys.exit("the process that asked for these checks has ended")
    with Path(file).open("a", encoding="utf-8", buffering=1) as out:

        def say(**line: object) -> None:
            out.write(json.dumps(line) + "\n")

        _check(library, resources, int(skipped), say)
        say(done=True)


def _check(library: str, resources: str, skipped: int, say: Callable[..., None]) -> None:
    try:
        ids = load_library(library, resources).environment_ids
    except Exception as error:  # noqa: BLE001  whatever its static initialisers throw
        say(id="")
        say(check=(_LOADING, "fail", str(error)))
        return
    for environment_id in ids[skipped:]:
        say(id=environment_id)
        passed = True
        for name, make in native_checks(environment_id):
            say(begins=name)
            check = make()
            say(check=(check.name, check.outcome, check.detail))
            passed = passed and check.outcome != "fail"
        if passed:
            say(begins=_SPEED)
            say(speed=measured(environment_id))


if __name__ == "__main__":
    main()
