"""Whether a run moves: noticed by who shows it, between two things that it has to show."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class StallWatch:
    """Measures since something last moved, and says so once each time that it takes too long. Thread-safe.

    Args:
        stall_seconds: without a move that are too long.
        clock: monotonic seconds.
    """

    def __init__(self, stall_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._stall_seconds = stall_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._moved_at = clock()
        self._told = False

    def move(self) -> None:
        """Something moved."""
        with self._lock:
            self._moved_at = self._clock()
            self._told = False

    def left_seconds(self) -> float | None:
        """Until it is too long; None where that was said already."""
        with self._lock:
            return None if self._told else max(0.0, self._moved_at + self._stall_seconds - self._clock())

    def stalled(self) -> float | None:
        """Seconds since the last move, the first time that they are too many; otherwise None."""
        with self._lock:
            idle = self._clock() - self._moved_at
            if self._told or idle < self._stall_seconds:
                return None
            self._told = True
            return idle
