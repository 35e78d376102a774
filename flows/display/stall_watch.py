"""Watchdog for stalled runs: reports once when no progress arrives for `stall_seconds`."""

from __future__ import annotations

import threading
import time


class StallWatch:
    """Measures the time since the last progress, and reports each stall once. Thread-safe.

    Args:
        stall_seconds: time without progress that counts as a stall.
    """

    def __init__(self, stall_seconds: float) -> None:
        self._stall_seconds = stall_seconds
        self._lock = threading.Lock()
        self._progress_at = time.monotonic()
        self._stall_reported = False

    def move(self) -> None:
        """Note progress."""
        with self._lock:
            self._progress_at = time.monotonic()
            self._stall_reported = False

    def left_seconds(self) -> float | None:
        """Return the seconds until the stall; None where it was reported already."""
        with self._lock:
            return (
                None if self._stall_reported else max(0.0, self._progress_at + self._stall_seconds - time.monotonic())
            )

    def stalled(self) -> float | None:
        """Return the seconds since the last progress when a stall is first seen; otherwise None."""
        with self._lock:
            idle = time.monotonic() - self._progress_at
            if self._stall_reported or idle < self._stall_seconds:
                return None
            self._stall_reported = True
            return idle
