"""Times the rounds of a CleanRL script, which prints its rate at the end of each."""

from __future__ import annotations

import time


class RoundTimes:
    """Replaces standard output: a script prints a line `SPS: ...` at the end of each round."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def write(self, text: str) -> int:
        """Record the time, and print nothing."""
        if text.startswith("SPS:"):
            self.at.append(time.perf_counter())
        return len(text)

    def flush(self) -> None:
        """Do nothing; there is no buffer."""
