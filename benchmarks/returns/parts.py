"""Runs training commands until a time is over: a run that is interrupted goes on in a later command.

Beside a run's folder lies `NAME.parts.json`, a list with an entry for each command that worked on the run: `began`
(seconds since 1970), `seconds` that it took, the `env_steps` that were committed at its end, and whether the run had
`finished`. What a command that was killed could not say is found by the next one, from the run's commits.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

PROGRAM = str(Path(sys.executable).parent / "penstock")
INTERRUPTED = {130, 143, -signal.SIGINT, -signal.SIGTERM}
"""Exit statuses after Ctrl-C and SIGTERM: of the command, and of an interpreter that has not come to it yet."""


class InterruptedTrialError(Exception):
    """A run was stopped before its end, and goes on from its last commit when the same trial is run again."""

    def __init__(self, name: str, part: dict[str, Any]) -> None:
        steps, seconds = part["env_steps"], part["seconds"]
        super().__init__(
            f"run {name} was interrupted with {steps:,} env steps committed, after {seconds:.0f} s; the same "
            f"command continues it"
        )


def finish_run(store: Path, name: str, start: Sequence[str], end: float) -> tuple[str, dict[str, Any]]:
    """Begin a run, or resume it, and wait for its end.

    Args:
        store: folder of the runs.
        name: of the run.
        start: arguments of `penstock` that begin the run, `--store` and `--json` left out.
        end: time of `time.monotonic` at which the command gets SIGINT, as Ctrl-C sends it.

    Returns:
        Text that the command printed, and facts of all commands on the run: `seconds` in all, the number of `commands`,
        and `interruptions`, the committed env steps at each.

    Raises:
        InterruptedTrialError: `end` has come, or somebody pressed Ctrl-C, before the run's end.
        CalledProcessError: the command has failed.
    """
    kept = store / f"{name}.parts.json"
    parts = earlier_parts(kept, store / name)
    is_begun = (store / name / "run.json").is_file()
    command = [PROGRAM, *(["resume", name] if is_begun else start), "--store", str(store), "--json"]
    part: dict[str, Any] = {"began": time.time(), "seconds": None, "env_steps": None, "finished": False}
    parts.append(part)
    keep(kept, parts)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT")}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            printed, _ = process.communicate(timeout=max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            printed, _ = process.communicate()
    part |= state_of(store / name)[0] | {"seconds": time.time() - part["began"]}
    keep(kept, parts)
    if process.returncode in INTERRUPTED:
        raise InterruptedTrialError(name, part)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    # A command on a finished run does nothing: it comes where what follows the training was cut off.
    interruptions = [each["env_steps"] for each in parts if not each["finished"]]
    facts = {"seconds": sum(each["seconds"] for each in parts), "commands": len(parts)}
    return printed, facts | ({"interruptions": interruptions} if interruptions else {})


def earlier_parts(kept: Path, run: Path) -> list[dict[str, Any]]:
    """Return what earlier commands did, also if the last one was killed or there is no record of any."""
    parts: list[dict[str, Any]] = json.loads(kept.read_text(encoding="utf-8")) if kept.is_file() else []
    if not parts and (run / "run.json").is_file():
        parts = [{"began": (run / "run.json").stat().st_mtime, "seconds": None}]
    if parts and parts[-1]["seconds"] is None:
        state, at = state_of(run)
        parts[-1] |= state | {"seconds": max(0.0, at - parts[-1]["began"])}
    return parts


def keep(path: Path, parts: list[dict[str, Any]]) -> None:
    """Replace the record of a run's parts."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(parts, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)


def state_of(run: Path) -> tuple[dict[str, Any], float]:
    """Return the `env_steps` of a run's newest commit and whether it `finished` the run, and the time of the commit."""
    commits = sorted((run / "commits").glob("*.json"))
    if not commits:
        return {"env_steps": 0, "finished": False}, 0.0
    commit = json.loads(commits[-1].read_text(encoding="utf-8"))
    return {"env_steps": commit["env_steps"], "finished": bool(commit.get("finished"))}, commits[-1].stat().st_mtime
