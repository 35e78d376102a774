"""Times the rounds of a CleanRL script, which prints its rate at the end of each, and ends it early."""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class EnoughError(Exception):
    """Ends a script: it has run for as long as it should."""


class RoundTimes:
    """Replaces standard output: a script prints a line `SPS: ...` at the end of each round."""

    def __init__(
        self, seconds: float = float("inf"), each_round: Callable[[dict[str, Any]], bool] | None = None
    ) -> None:
        """Time a script.

        Args:
            seconds: the script is ended so long after its first round.
            each_round: called with the script's global variables after each round; the script is ended if it says so.
        """
        self.at: list[float] = []
        self._seconds = seconds
        self._each_round = each_round

    def write(self, text: str) -> int:
        """Record the time, and print nothing."""
        if text.startswith("SPS:"):
            self.at.append(time.perf_counter())
            # The caller is the script itself: `print` is no Python function.
            script = sys._getframe(1).f_globals  # noqa: SLF001
            ended = self._each_round is not None and self._each_round(script)
            if ended or (len(self.at) > 2 and self.at[-1] - self.at[0] >= self._seconds):
                script["writer"].close()
                raise EnoughError
        return len(text)

    def flush(self) -> None:
        """Do nothing; there is no buffer."""


def run_script(path: str, options: Sequence[str], times: RoundTimes) -> None:
    """Run a script like `python <path> <options>`, but in this process, which has set torch's threads."""
    sys.argv = [path, *options]
    folder_before, printed = os.getcwd(), sys.stdout  # noqa: PTH109  (the script writes where it is run)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        sys.stdout = times  # type: ignore[assignment]
        try:
            with contextlib.suppress(EnoughError):
                runpy.run_path(path, run_name="__main__")
        finally:
            sys.stdout = printed
            os.chdir(folder_before)
