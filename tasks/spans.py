"""When a member worked and waited within a stage, for the timeline of a report; nothing is decided by it."""

from __future__ import annotations

import time
from typing import Any

_MOST_SPANS = 200
_MOST_REPLICAS = 16
_LEAST_SECONDS = 0.001


class Spans:
    """The first 200 spans of a member's stage, of a role's first 16 members: so timings stay small on any cluster.

    Args:
        replica: of the member in its role.
    """

    def __init__(self, replica: int) -> None:
        self._left = _MOST_SPANS if replica < _MOST_REPLICAS else 0
        self._began, self._clock = time.time(), time.perf_counter()
        self._found: dict[str, list[float]] = {}

    def add(self, kind: str, seconds: float) -> None:
        """Note what ended just now and took so long; less than a millisecond is left out."""
        if self._left and seconds >= _LEAST_SECONDS:
            self._left -= 1
            start = time.perf_counter() - self._clock - seconds
            self._found.setdefault(kind, []).extend((round(start, 3), round(seconds, 3)))

    def to_json(self) -> dict[str, Any]:
        """`began_at` (Unix time), and by kind `[start, length, start, length, ...]` in seconds from then."""
        return {"began_at": round(self._began, 3), **self._found}
