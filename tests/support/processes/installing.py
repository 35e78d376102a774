"""Penstock installed in a virtual environment of its own, where nothing of the checkout is."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[3]
CONSTRAINTS = ROOT / "constraints.txt"


class Installed(NamedTuple):
    """A virtual environment with Penstock, and a folder in which a user works."""

    bin: Path
    folder: Path

    def run(self, *command: str | Path, **variables: str) -> str:
        """Run a program of the virtual environment in the user's folder; return what it printed."""
        done = run([self.bin / command[0], *command[1:]], self.folder, **self.variables, **variables)
        assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"
        return done.stdout

    @property
    def variables(self) -> dict[str, str]:
        """The environment's programs come first, and Prefect and compiled libraries keep to the user's folder."""
        return {
            "PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}",
            "PREFECT_HOME": str(self.bin.parent / "prefect"),
            "PENSTOCK_CACHE_DIR": str(self.bin.parent / "cache"),
            "DO_NOT_TRACK": "1",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        }


def run(command: list[str | Path], cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program without this process's Python path and Prefect settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PREFECT_"))}
    pip = {"PIP_CONSTRAINT": str(CONSTRAINTS), "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_COMPILE": "1"}
    environment = {**kept, **pip, **variables}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
