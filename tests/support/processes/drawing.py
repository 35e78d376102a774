"""Run programs that draw without a window, each in its own process: MuJoCo chooses what it draws with at import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[3]
_PROBE = "from mujoco.egl import GLContext; GLContext(8, 8).free()"


def drawn(program: str, cwd: Path = _ROOT) -> subprocess.CompletedProcess[str]:
    """Run a program that has to find EGL by itself; skip the test where there is none."""
    environment = {**os.environ, "MUJOCO_GL": "egl"}
    if subprocess.run([sys.executable, "-c", _PROBE], env=environment, capture_output=True, check=False).returncode:
        pytest.skip("there is no EGL, with which frames are drawn without a window")
    del environment["MUJOCO_GL"]
    environment.pop("DISPLAY", None)
    command = [sys.executable, "-W", "ignore", "-c", program]
    return subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, check=False, timeout=600)
