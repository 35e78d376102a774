"""Finds out what a command has imported when it prints its first line, and how long that took."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

# It ends the process with the first line: what the command would do is not done.
_PROGRAM = """
import io, json, os, sys, time
started = time.perf_counter()

class First(io.TextIOBase):
    encoding = "utf-8"

    def write(self, text):
        text = text if isinstance(text, str) else bytes(text).decode()
        if text.strip():
            found = {"seconds": time.perf_counter() - started, "line": text.strip(), "modules": sorted(sys.modules)}
            os.write(1, json.dumps(found).encode())
            os._exit(0)
        return len(text)

    @property
    def buffer(self):
        return self

sys.stdout = sys.stderr = First()
from penstock.flows.cli.main import main
main()
"""


@dataclass(frozen=True, slots=True)
class FirstLine:
    """The first line of a command."""

    seconds: float
    """Seconds since the interpreter ran its first statement."""
    line: str
    modules: frozenset[str]
    """Modules that were imported before it."""


def first_line(arguments: Sequence[str], folder: Path, environment: Mapping[str, str]) -> FirstLine:
    """Start `penstock` with arguments until it prints."""
    ended = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *arguments],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        check=True,
        timeout=150,
    )
    found = json.loads(ended.stdout)
    return FirstLine(found["seconds"], found["line"], frozenset(found["modules"]))
