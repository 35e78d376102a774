"""`make returns` is interrupted in the middle of a run, by Ctrl-C or because its hours are over, and goes on later."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ...support.processes.commands import PATIENCE_SECONDS, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1200)]

ROOT = Path(__file__).resolve().parents[3]
TRIAL = ["--quick", "--only", "lag-cartpole-ppo", "--contenders", "PPO, lag 1", "--seeds", "1"]


def begin(folder: Path, *more: str) -> subprocess.Popen[bytes]:
    """Start the trial in a process group of its own, as a terminal does."""
    places = ["--store", str(folder / "runs"), "--results", str(folder / "results")]
    own = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT")}
    command = [sys.executable, "-m", "benchmarks.returns", *TRIAL, *places, *more]
    return subprocess.Popen(
        command, cwd=ROOT, env=own, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def ended(started: subprocess.Popen[bytes]) -> str:
    """Wait for the end and return what was printed."""
    return started.communicate(timeout=PATIENCE_SECONDS)[0].decode()


def result(folder: Path) -> dict[str, Any]:
    """Return the trial's one result."""
    (path,) = (folder / "results").glob("quick/*/*.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_a_trial_that_was_interrupted_twice_has_the_returns_of_one_that_was_not(tmp_path: Path):
    """One interruption is by the end of the hours, one by Ctrl-C after a commit; the result names the steps of both."""
    parts, whole = tmp_path / "parts", tmp_path / "whole"
    assert "interrupted with" in ended(begin(parts, "--hours", "0.0001"))
    second = begin(parts)
    wait_until(lambda: any(parts.glob("runs/*/commits/*.json")) or second.poll() is not None, "a commit")
    os.killpg(second.pid, signal.SIGINT)
    printed = ended(second)
    assert second.returncode == 1, printed
    assert "interrupted" in printed
    assert "Traceback" not in printed, printed
    assert not (parts / "results").exists()
    for folder in (parts, whole):
        printed = ended(last := begin(folder))
        assert last.returncode == 0, printed
    (record,) = parts.glob("runs/*.parts.json")
    commands = json.loads(record.read_text())
    committed = [command["env_steps"] for command in commands]
    assert [command["finished"] for command in commands] == [False, False, True]
    assert result(parts)["interruptions"] == committed[:-1]
    assert result(parts)["returns"] == result(whole)["returns"]
    assert result(parts)["greedy_return"] == result(whole)["greedy_return"]
    assert committed[0] < committed[1] < committed[2] == result(whole)["env_steps"]
    assert result(parts)["commands"] == 3
    assert "interruptions" not in result(whole)
