"""Shows a placer at work on the error output: costs, time left and a picture on a terminal, lines elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

import numpy as np
import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

if TYPE_CHECKING:
    from types import TracebackType

    from numpy.typing import NDArray

    from penstock.native.floorplan import PlacementCost, PlaceProgress

_LINE_SECONDS = 10.0
"""Interval of lines where there is no terminal, such as in a log."""
_MOST_COLUMNS, _FEWEST_ROWS, _LINES_ABOVE = 64, 4, 5
_EMPTY, _SOFT, _HARD = 0, 1, 2
_COLOURS = ("", "dark_sea_green4", "steel_blue1", "steel_blue3", "steel_blue")
"""By kind of pixel: empty, soft macros, and hard ones in turns, so that neighbours differ."""


class PlacingPanel:
    """Context manager that shows a search's progress while `update` is called. Nothing goes to the standard output.

    Args:
        text: what is placed.
        quiet: show nothing.
    """

    def __init__(self, text: str, *, quiet: bool = False) -> None:
        self._text, self._quiet = text, quiet
        self._console = Console(stderr=True)
        self._live: Live | None = None
        self._shown = time.monotonic()
        self._picture: Text | None = None
        self._drawn: object = None

    def __enter__(self) -> Self:
        if not self._quiet:
            if self._console.is_terminal:
                self._live = Live(
                    Text(f"placing {self._text}"), console=self._console, transient=True, auto_refresh=False
                )
                self._live.start(refresh=True)
            else:
                typer.echo(f"placing {self._text}", err=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, progress: PlaceProgress) -> None:
        """Show a search's progress; called as often as it likes, by the thread that made the panel."""
        if self._live is not None:
            self._live.update(Group(*self._lines(progress), *self._pictures(progress)), refresh=True)
        elif not self._quiet and (now := time.monotonic()) - self._shown >= _LINE_SECONDS:
            self._shown = now
            typer.echo(f"placing {self._text}: {describe_placing(progress)}", err=True)

    def _lines(self, progress: PlaceProgress) -> list[Text]:
        if not progress.segments:
            return [Text(f"placing {self._text}: {describe_placing(progress)}")]
        left = "..." if progress.seconds_left is None else clock(progress.seconds_left)
        segment = min(progress.segments_done + 1, progress.segments)
        return [
            Text(f"placing {self._text}"),
            Text(f"best {progress.best:.6f}   now {progress.cost:.6f}   start {progress.start_cost:.6f}"),
            Text(
                f"{progress.moves_done:,} of {progress.moves:,} moves, segment {segment} of {progress.segments}, "
                f"{clock(progress.seconds)} so far, {left} left; Ctrl-C stops, the same command continues"
            ),
        ]

    def _pictures(self, progress: PlaceProgress) -> list[Text]:
        """Return the picture of the best placement, drawn once a segment, where the terminal has room for it."""
        if not self._console.encoding.lower().startswith("utf"):
            return []
        width, height = progress.layout.get_canvas_width_height()
        columns = min(_MOST_COLUMNS, self._console.width - 1, int(2 * self._rows * width / height))
        rows = min(self._rows, max(1, round(columns * height / width / 2)))
        if min(rows, columns) < _FEWEST_ROWS:
            return []
        drawn = (progress.segments_done, progress.segments, columns, rows)
        if drawn != self._drawn:
            self._picture, self._drawn = draw_text(progress.layout, columns, rows), drawn
        return [] if self._picture is None else [self._picture]

    @property
    def _rows(self) -> int:
        return self._console.height - _LINES_ABOVE


def describe_placing(progress: PlaceProgress) -> str:
    """Describe a search's progress in one line."""
    if not progress.segments:
        return f"cost {progress.cost:.6f}, measuring how many moves fit into the time"
    left = "" if progress.seconds_left is None else f", {clock(progress.seconds_left)} left"
    return (
        f"segment {progress.segments_done} of {progress.segments}, {progress.moves_done:,} of {progress.moves:,} "
        f"moves, best {progress.best:.6f} (start {progress.start_cost:.6f}){left}"
    )


def clock(seconds: float) -> str:
    """Return a time as `9:05`, or `1:00:09` from an hour on."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def draw_text(plc: PlacementCost, columns: int, rows: int) -> Text:
    """Draw a placement in characters, two pixels each: hard macros blue, soft ones green.

    Args:
        plc: What is drawn, as it is now.
        columns: Characters of a line.
        rows: Lines.
    """
    pixels = _pixels(plc, columns, 2 * rows)
    text = Text(no_wrap=True)
    for row in range(rows):
        for top, bottom in zip(pixels[2 * row].tolist(), pixels[2 * row + 1].tolist(), strict=True):
            text.append(*_character(top, bottom))
        text.append("\n" if row + 1 < rows else "")
    return text


def _pixels(plc: PlacementCost, columns: int, lines: int) -> NDArray[np.int8]:
    """Return the kind of each pixel, the uppermost line first; a macro covers at least one."""
    pixels = np.full((lines, columns), _EMPTY, dtype=np.int8)
    across, up = (count / side for count, side in zip((columns, lines), plc.get_canvas_width_height(), strict=True))
    macros = [macro for macro in plc.get_macro_indices() if plc.is_node_placed(macro)]
    soft = [macro for macro in macros if plc.is_node_soft_macro(macro)]
    hard = [macro for macro in macros if not plc.is_node_soft_macro(macro)]
    kinds = [(macro, _SOFT) for macro in soft] + [(macro, _HARD + i % 3) for i, macro in enumerate(hard)]
    for macro, kind in kinds:
        (x, y), (width, height) = plc.get_node_location(macro), plc.get_node_width_height(macro)
        left, right = _span((x - width / 2) * across, (x + width / 2) * across, columns)
        low, high = _span((y - height / 2) * up, (y + height / 2) * up, lines)
        pixels[lines - high : lines - low, left:right] = kind
    return pixels


def _span(low: float, high: float, count: int) -> tuple[int, int]:
    """Return the pixels of an interval as a range with one at least, within 0 to `count`."""
    first = min(max(round(low), 0), count - 1)
    return first, min(max(round(high), first + 1), count)


def _character(top: int, bottom: int) -> tuple[str, str]:
    """Return a character and its style; hard macros are told from soft ones without colours, too."""
    if top == bottom:
        return " ░█"[min(top, _HARD)], _COLOURS[top]
    if top == _EMPTY:
        return "▄", _COLOURS[bottom]
    return "▀", _COLOURS[top] if bottom == _EMPTY else f"{_COLOURS[top]} on {_COLOURS[bottom]}"
