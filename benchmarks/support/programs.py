"""Programs that a benchmark runs as processes: its own, and those of peers, each in an environment of its own.

Peers' environments lie under `.venv-peers/`, and are made on first use from `benchmarks/peers/requirements/`.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

BENCHMARKS = Path(__file__).resolve().parents[1]
ROOT = BENCHMARKS.parent
PEERS = BENCHMARKS / "peers"
RESULTS = BENCHMARKS / "results"
VENVS = ROOT / ".venv-peers"

Result = dict[str, Any]


def penstock(module: str, *arguments: object, with_server: bool = True) -> Result:
    """Run one of our own programs, `room.module`; without a server it starts its own, whose memory counts."""
    environment = dict(os.environ)
    if not with_server:
        del environment["PREFECT_API_URL"]
    return run(own_program(module, *arguments), environment)


def peer(name: str, script: str, *arguments: object) -> Result:
    """Run a peer's script in the peer's own environment."""
    python = peer_python(name)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT")}
    return run([str(python), str(PEERS / script), *map(str, arguments)], environment)


def peer_python(name: str) -> Path:
    """Return the interpreter of a peer's own environment, which is installed on first use."""
    folder = VENVS / name
    if not (folder / "ready").exists():
        print(f"installing {name} into {folder}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        requirements = PEERS / "requirements" / f"{name}.txt"
        install = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q"]
        subprocess.run([*install, "-r", requirements], check=True)
        alone = PEERS / "requirements" / f"{name}-alone.txt"
        if alone.exists():
            subprocess.run([*install, "--no-deps", "--ignore-requires-python", "-r", alone], check=True)
        (folder / "ready").touch()
    return folder / "bin" / "python"


def own_program(module: str, *arguments: object) -> list[str]:
    """Return the command of one of our own programs, `room.module`; it runs in the repository's folder."""
    return [sys.executable, "-m", f"benchmarks.{module}", *map(str, arguments)]


def run(command: list[str], environment: dict[str, str] | None) -> Result:
    """Run a program and return its last line, which is JSON; its failure ends this one with what it printed."""
    finished = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False)
    if finished.returncode:
        sys.exit(f"{shlex.join(command)} ended with {finished.returncode}:\n{finished.stderr}")
    result: Result = json.loads(finished.stdout.splitlines()[-1])
    return result


def ratio(values: list[float]) -> str:
    """Return the median, and the range if there are several values."""
    spread = f" ({min(values):.2f} to {max(values):.2f})" if len(values) > 1 else ""
    return f"{median(values):.2f}{spread}"
