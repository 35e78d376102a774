"""Shows on the error output that a command works: a line at once, then the amount done, the rate and the time left."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Self

import typer
from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from types import TracebackType

    from rich.status import Status

_LINE_SECONDS = 10.0
"""Interval of lines where there is no terminal, such as in a log."""


class Working:
    """Context manager that announces a command's work, and shows its progress while `update` is called.

    On a terminal it is one line that changes, and goes when the work ends. Elsewhere it is a line at the start, and
    another every ten seconds. Nothing goes to the standard output.

    Args:
        text: the work, such as `copying run c1`.
        unit: what `update` counts, in the plural.
        quiet: show nothing.
    """

    def __init__(self, text: str, unit: str = "objects", *, quiet: bool = False) -> None:
        self._text, self._unit, self._quiet = text, unit, quiet
        self._line: Status | None = None
        self._lock = threading.Lock()
        self._started = self._shown = time.monotonic()

    def __enter__(self) -> Self:
        console = Console(stderr=True)
        if console.is_terminal and not self._quiet:
            self._line = console.status(Text(self._text))
            self._line.start()
        self.say(self._text, self._unit)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._line is not None:
            self._line.stop()

    def say(self, text: str, unit: str = "objects") -> None:
        """Name the next part of the work, and what it counts."""
        with self._lock:
            self._text, self._unit = text, unit
            self._started = self._shown = time.monotonic()
            self._show(text)

    def update(self, done: int, total: int | None = None) -> None:
        """Show the amount done, and of how many; any thread may call this, as often as it likes."""
        with self._lock:
            now = time.monotonic()
            if self._line is not None or now - self._shown >= _LINE_SECONDS:
                self._shown = now
                self._show(f"{self._text}: {describe_progress(done, total, now - self._started, self._unit)}")

    def _show(self, text: str) -> None:
        if self._line is not None:
            self._line.update(Text(text))
        elif not self._quiet:
            typer.echo(text, err=True)


def describe_progress(done: int, total: int | None, seconds: float, unit: str) -> str:
    """Describe progress in words: `300 of 1,200 objects, 100/s, 9 s left`; without a total no time left is known."""
    rate = done / seconds if seconds > 0 else 0.0
    words = [f"{done:,} {unit}" if total is None else f"{done:,} of {total:,} {unit}"]
    words.append(f"{rate:,.0f}/s" if rate >= 1 else f"{rate:.2f}/s")
    if total is not None and rate > 0:
        words.append(f"{(total - done) / rate:,.0f} s left")
    return ", ".join(words)
