"""Runs `explore` on a target in a process of its own, which a crash of native code may end, and reads what it found."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.storage.digest import digest

if TYPE_CHECKING:
    from pathlib import Path

    from .target import Target

TESTED_INPUTS = 10_000
"""Tests search each target with so many: by number rather than by time, so that they find the same on any machine."""
HANG_SECONDS = 60
"""An input that takes longer is a hang: far more than any needs, on a busy machine too."""
MOST_RSS_MB = 2048
"""Memory of the process, of which imports take a quarter."""
LARGEST_INPUT_BYTES = 32 << 10
"""As large as the largest seeds."""
_COVERAGE = re.compile(r"\bcov: (\d+)")
_INPUTS = re.compile(r"^#(\d+)\t|^stat::number_of_executed_units: (\d+)", re.MULTILINE)


@dataclass(frozen=True)
class Found:
    """The result of a search."""

    target: str
    inputs: int
    branches: int
    """Branches of Penstock's Python that were seen, those of imports not counted."""
    faults: tuple[Path, ...]
    """Files with the inputs that showed them."""
    log: Path

    def __str__(self) -> str:
        line = f"{self.target:<16} {self.inputs:>9} inputs {self.branches:>6} branches {len(self.faults):>3} faults"
        return "\n  ".join((line, *map(str, self.faults), *((f"see {self.log}",) if self.faults else ())))


def search(target: Target, folder: Path, seconds: int = 0, inputs: int = -1, seed: int = 1) -> Found:
    """Search a target for faults, from its seeds and the corpus of earlier searches.

    In an empty folder, the same seed and number of inputs find the same.

    Args:
        target: the target.
        folder: keeps the corpus, the inputs that showed faults, and a log.
        seconds: the search ends after as many seconds; 0: no limit.
        inputs: it ends after as many inputs; -1: no limit.
        seed: of the search.

    Raises:
        RuntimeError: the search did not start.
    """
    corpus, seeds, faults, log = (folder / name for name in ("corpus", "seeds", "faults", "log"))
    for each in (corpus, seeds, faults):
        each.mkdir(parents=True, exist_ok=True)
    for data in target.seeds:
        (seeds / digest(data)).write_bytes(data)
    before = set(faults.iterdir())
    command = [
        *(sys.executable, "-m", f"{__package__}.explore", target.name, str(faults)),
        *(f"-max_total_time={seconds}", f"-runs={inputs}", f"-seed={seed}", f"-max_len={LARGEST_INPUT_BYTES}"),
        *(f"-timeout={HANG_SECONDS}", f"-rss_limit_mb={MOST_RSS_MB}", f"-artifact_prefix={faults}/"),
        *("-print_final_stats=1", str(corpus), str(seeds)),
    ]
    # A search ends without Python's clean-up: its temporary files stay where everything else of it is.
    environment = {**os.environ, "PYTHONHASHSEED": "0", "TMPDIR": str(folder)}
    with log.open("wb") as output:
        status = subprocess.run(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT, check=False
        ).returncode
    text = log.read_text(encoding="utf-8", errors="replace")
    found = tuple(sorted(set(faults.iterdir()) - before))
    if status and not found:
        raise RuntimeError(f"the search of '{target.name}' ended with status {status}: {text[-2000:]}")
    counts = [int(one or other) for one, other in _INPUTS.findall(text)]
    branches = [int(count) for count in _COVERAGE.findall(text)]
    return Found(target.name, max(counts, default=0), max(branches, default=0), found, log)
