"""Measurements for all benchmarks: seconds since a process's start, and the memory of a whole process tree.

Seconds are counted from the process's start as the kernel recorded it, so the interpreter's start and all imports
count. Memory is the proportional set size (PSS): a page that several processes share is divided among them, so the sum
over a tree is the memory that it really occupies.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def seconds_since_process_start(pid: int | None = None) -> float:
    """Return the age of a process in seconds (of this one by default), to the kernel's tick of about 10 ms.

    Raises:
        ProcessLookupError: if there is no such process.
    """
    stat = Path(f"/proc/{os.getpid() if pid is None else pid}/stat")
    try:
        text = stat.read_text()
    except FileNotFoundError as error:
        raise ProcessLookupError(f"{stat} is not there: the process has ended; ask while it runs") from error
    # The command's name, in parentheses, may hold spaces; field 22 (start in ticks since boot) is the 20th after it.
    start_ticks = int(text.rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - start_ticks / os.sysconf("SC_CLK_TCK")


def process_pss_bytes(pid: int) -> int:
    """Return the PSS of one process in bytes, 0 if it has ended.

    Raises:
        PermissionError: if the process belongs to another user.
    """
    try:
        with Path(f"/proc/{pid}/smaps_rollup").open("rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return 0


def tree_pids(pid: int) -> list[int]:
    """Return the ids of a process and of all its descendants, parents first; empty if it has ended.

    A descendant whose own parent has ended belongs to init by then and is not found.
    """
    children: dict[int, list[int]] = {}
    alive = False
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        member = int(stat.parent.name)
        alive = alive or member == pid
        children.setdefault(parent, []).append(member)
    members = [pid] if alive else []
    for member in members:
        members.extend(children.get(member, ()))
    return members


def tree_pss_bytes(pid: int) -> int:
    """Return the PSS of a process and all its descendants, summed, in bytes."""
    return sum(process_pss_bytes(member) for member in tree_pids(pid))


class TreeSampler(ABC):
    """Samples a process tree from a thread while the block runs, and once at its end.

    Attributes:
        samples: how many samples were taken.
    """

    def __init__(self, pid: int, interval_seconds: float) -> None:
        self.pid = pid
        self.samples = 0
        self._interval_seconds = interval_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="tree-sampler", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.sample()

    @abstractmethod
    def sample(self) -> int:
        """Take one sample now and return it in bytes."""

    def _watch(self) -> None:
        while not self._stop.is_set():
            self.sample()
            self._stop.wait(self._interval_seconds)


class PeakPss(TreeSampler):
    """Samples the memory of a process tree from a thread while the block runs.

    Attributes:
        peak_bytes: the largest sum seen over the tree.
        peak_processes: how many processes the tree had at that moment.
        by_process: bytes by process name (its first 15 characters) at that moment, largest first.
        samples: how many samples were taken.
    """

    def __init__(self, pid: int | None = None, interval_seconds: float = 0.25) -> None:
        self.peak_bytes = 0
        self.peak_processes = 0
        self.by_process: dict[str, int] = {}
        super().__init__(os.getpid() if pid is None else pid, interval_seconds)

    def sample(self) -> int:
        """Take one sample now and return it in bytes."""
        sizes = {pid: process_pss_bytes(pid) for pid in tree_pids(self.pid)}
        total = sum(sizes.values())
        self.samples += 1
        if total > self.peak_bytes:
            self.peak_bytes = total
            self.peak_processes = len(sizes)
            self.by_process = _sum_by_name(sizes)
        return total


def _sum_by_name(sizes: Mapping[int, int]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for pid, size in sizes.items():
        try:
            name = Path(f"/proc/{pid}/comm").read_text().strip()
        except (FileNotFoundError, ProcessLookupError):
            name = "ended"
        sums[name] = sums.get(name, 0) + size
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


def machine(packages: Iterable[str]) -> dict[str, Any]:
    """Return the processor, usable cores, Python version, versions of the named packages and Penstock's commit."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in packages},
        **commit(),
    }


def commit() -> dict[str, str]:
    """Return the commit of the checkout that this file is in, marked where files differ; nothing outside of one."""
    command = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
    try:
        found = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    except FileNotFoundError:  # there is no git
        return {}
    return {} if found.returncode else {"commit": found.stdout.strip()}


def print_result(result: Mapping[str, Any]) -> None:
    """Print the result as one JSON object on one line, the last of the output; floats to six significant digits."""
    print(json.dumps(_rounded(result)), flush=True)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return value
