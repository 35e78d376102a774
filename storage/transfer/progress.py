"""Counts the objects that several threads have done, for whoever shows progress."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.storage import system

if TYPE_CHECKING:
    from collections.abc import Callable


class ProgressCount:
    """Reports the numbers done and in all after each one; one call at a time, from the thread that did it.

    Args:
        total: number in all.
        report: called with both numbers.
    """

    def __init__(self, total: int, report: Callable[[int, int], None]) -> None:
        self._total, self._report, self._done, self._lock = total, report, 0, system.condition()

    def add_one(self) -> None:
        """Count one more as done."""
        with self._lock:
            self._done += 1
            self._report(self._done, self._total)
