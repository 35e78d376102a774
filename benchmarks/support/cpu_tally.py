"""Records the CPU time of each descendant process over time, so that any interval can be evaluated afterwards."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from typing import Self

import psutil

_LOOK_SECONDS = 0.5


class CpuTally:
    """A context manager that samples this process and its descendants twice a second."""

    def __init__(self) -> None:
        self._seen: dict[int, list[tuple[float, float]]] = {}
        self._done = threading.Event()
        self._looking = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._looking.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._looking.join()

    def seconds(self, begin: float, end: float) -> dict[int, float]:
        """Return the CPU seconds of each process between two Unix times."""
        return {pid: _at(seen, end) - _at(seen, begin) for pid, seen in self._seen.items()}

    def _look(self) -> None:
        own = psutil.Process()
        while not self._done.wait(_LOOK_SECONDS):
            for process in [own, *own.children(recursive=True)]:
                try:
                    spent = process.cpu_times()
                except psutil.NoSuchProcess:
                    continue
                self._seen.setdefault(process.pid, []).append((time.time(), spent.user + spent.system))


def _at(seen: list[tuple[float, float]], moment: float) -> float:
    """Interpolate linearly between samples; constant before the first and after the last."""
    index = bisect_left(seen, (moment,))
    if index == 0:
        return seen[0][1]
    if index == len(seen):
        return seen[-1][1]
    (before, less), (after, more) = seen[index - 1 : index + 1]
    return less + (more - less) * (moment - before) / (after - before)
