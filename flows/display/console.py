"""The console panel: a live line on a terminal, one line per stage elsewhere, and tables."""

from __future__ import annotations

import errno
import os
import sys
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TextIO

from rich.cells import cell_len
from rich.console import Console, ConsoleDimensions
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from penstock.flows.display.plain import plain
from penstock.flows.display.summary import STEPS, STORED_STEPS, round_return, stage_row

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from penstock.flows.display.summary import Cell, FlowResult
    from penstock.storage.runs.commit_schema import Commit
    from penstock.storage.runs.timings import StageTimings
    from penstock.tasks.driver.run import ActiveRun
    from penstock.tasks.runtime.events import Progress


class Panel:
    """Null panel, for a flow run without a terminal. Subclasses show progress; no method may block."""

    result: FlowResult | None = None
    """The flow's result, which is known before Prefect has recorded it."""

    def note(self, text: str) -> None:
        """Announce that a slow step began or ended."""

    def warn(self, text: str) -> None:
        """Show a warning; the run continues."""

    def begin(self, training: ActiveRun) -> None:
        """Announce that the run starts or resumes."""

    def progress(self, event: Progress) -> None:
        """Show a learned round."""

    def stage(self, commit: Commit, timings: StageTimings) -> None:
        """Show a committed stage."""

    def evaluation(self, result: Mapping[str, float]) -> None:
        """Show an evaluation of a commit that was made concurrently with training."""

    def end(self) -> None:
        """Close the panel."""

    def finish(self) -> None:
        """Handle the end of a run's work, whose result is known: only Prefect's records are left to write."""


class ProgressConsole(Console):
    """A console whose reader may leave, such as `head`: Rich would end the program there, and with it the run."""

    def on_broken_pipe(self) -> None:
        """Say once that nothing is printed any more, and drop it."""
        self.quiet = True
        null, pipe = os.open(os.devnull, os.O_WRONLY), self.file.fileno()
        both = _has_number(sys.stderr) and os.path.sameopenfile(pipe, sys.stderr.fileno())
        os.dup2(null, pipe)
        if both:  # as of `2>&1 | head`: there is nobody to tell
            os.dup2(null, sys.stderr.fileno())
        os.close(null)
        _say_quiet(os.strerror(errno.EPIPE))


def _has_number(stream: TextIO) -> bool:
    try:
        return stream.fileno() >= 0
    except (OSError, ValueError):  # a notebook's, or one that was closed
        return False


def _say_quiet(why: str) -> None:
    with suppress(OSError):
        sys.stderr.write(f"warning: no progress is printed any more: {why}; the run goes on\n")


class LivePanel(Panel):
    """Panel with one line that changes in place on a terminal, and one permanent line per stage."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(Text(""), console=console, refresh_per_second=8, transient=True)
        self._started = time.perf_counter()
        self._base_env_steps = 0
        self._steps = STEPS
        self._stage = 0
        self._stage_started = time.perf_counter()
        self._rounds_per_stage = 1
        if console.is_terminal:
            self._live.start()

    def _print(self, line: str | Text, **options: Any) -> None:
        try:
            self._console.print(line, **options)
        except OSError as error:  # such as a full disk, which is no reason to end a run
            self._console.quiet = True
            _say_quiet(error.strerror or str(error))

    def note(self, text: str) -> None:
        """Print or update the line, with the seconds since the command began."""
        line = Text(f"{time.perf_counter() - self._started:6.1f} s  {text}")
        if self._console.is_terminal:
            self._live.update(line)
        else:
            self._print(line, soft_wrap=True)

    def warn(self, text: str) -> None:
        """Print a permanent line."""
        self._print(f"warning: {text}", style="yellow", highlight=False, markup=False, soft_wrap=True)

    def begin(self, training: ActiveRun) -> None:
        """Print the run, and the stage from which it resumes."""
        newest = training.newest
        self._rounds_per_stage = training.config.schedule.rounds_per_stage
        self._base_env_steps = newest.env_steps if newest else 0
        self._steps = STEPS if training.config.has_actors else STORED_STEPS
        self._stage = newest.stage + 1 if newest else 0
        self._stage_started = training.driver.ahead_since or time.perf_counter()
        start = f"resumes from stage {self._stage}" if newest else "starts"
        self._print(
            f"run {training.run.name} {start}: {training.config.summary}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
        if training.why:
            self._print(f"policy {training.config.distribution.policy}: {training.why}", highlight=False, markup=False)

    def progress(self, event: Progress) -> None:
        """Update the live line."""
        if not self._console.is_terminal:
            return
        seconds = time.perf_counter() - self._stage_started
        episode_return = "  ..." if event.episode_return is None else round_return(event.episode_return)
        round_ = event.round % self._rounds_per_stage + 1
        parts = [
            f"stage {self._stage}",
            f"round {round_}/{self._rounds_per_stage}",
            f"{self._base_env_steps + event.env_steps:,} {self._steps}",
            f"{event.env_steps / seconds:,.0f}/s",
            f"return {episode_return}",
            f"learner waits {event.wait_share:.0%}{_missed(event.missed_shards)}",
            f"{event.queue_depth:.1f} shards ahead",
            f"lag {event.lag}",
        ]
        self._live.update(Text(fitting(parts, self._console.width)))

    def stage(self, commit: Commit, timings: StageTimings) -> None:
        """Print a permanent line."""
        row = stage_row(commit, timings)
        shown = {name: "-" if value is None else value for name, value in row.items()}
        parts = [
            f"stage {shown['stage']:>3}",
            f"{shown[STEPS]:>9,} steps",
            f"{row['steps/s'] or 0:>7,}/s",
            f"return {shown['return']:>7}",
            f"evaluation {shown['evaluation']:>6}",
            f"{shown['seconds']:.2f} s{_waited(timings.prefect_seconds)}",
            f"learner waits {row['wait share'] or 0:>4.0%}{_missed(row.get('missed shards', 0))}",
        ]
        # A log has the whole line, whatever its width.
        line = fitting(parts, self._console.width) if self._console.is_terminal else "  ".join(parts)
        self._print(line, highlight=False, soft_wrap=True)
        self._base_env_steps = commit.env_steps
        self._stage = commit.stage + 1
        self._stage_started = time.perf_counter()

    def end(self) -> None:
        """Leave the terminal as it was."""
        if self._console.is_terminal:
            self._live.stop()


def fitting(parts: Sequence[str], width: int) -> str:
    """Join parts with two spaces, without the last ones that a line of this width has no room for."""
    kept = list(parts)
    while len(kept) > 1 and len("  ".join(kept)) > width:
        kept.pop()
    return "  ".join(kept)


def _missed(shards: Cell) -> str:
    return f", misses {shards} shards" if shards else ""


def _waited(seconds: float | None) -> str:
    return f", and waited {seconds:.2f} s for Prefect" if seconds else ""


_panels: list[Panel] = [Panel()]


def current_panel() -> Panel:
    """Return the panel of this process."""
    return _panels[-1]


@contextmanager
def use_panel(panel: Panel) -> Iterator[None]:
    """Make `panel` the panel of this process while the context lasts."""
    _panels.append(panel)
    try:
        yield
    finally:
        _panels.remove(panel)


def print_table(rows: Sequence[Mapping[str, object]], console: Console | None = None) -> list[str]:
    """Print rows of the same columns; None is an empty cell. Return the columns that were left out.

    On a terminal that is too narrow, last columns are left out and named below. A file or a pipe gets all of them.
    """
    console = console or Console()
    columns, words = list(rows[0]), {column: _longest_word(rows, column) for column in rows[0]}
    while console.is_terminal and len(columns) > 1 and _least_width(words, columns) > console.width:
        columns.pop()
    # Rich can't set the width alone on a dumb terminal.
    console.size = ConsoleDimensions(max(console.width, _least_width(words, columns)), console.height)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        # By default Rich narrows every column that may wrap, even where that cuts words.
        whole = all(" " not in str(row[column]) for row in rows)
        table.add_column(Text("\n".join(_words(column))), no_wrap=whole)
    for row in rows:
        # As text, for square brackets in a string would be markup.
        table.add_row(*(Text("" if row[column] is None else plain(str(row[column]))) for column in columns))
    console.print(table)
    left_out = [column for column in rows[0] if column not in columns]
    if left_out:
        named = ", ".join(" ".join(_words(column)) for column in left_out)
        console.print(f"[dim]not shown in {console.width} columns: {escape(named)}[/]", highlight=False)
    return left_out


def _longest_word(rows: Sequence[Mapping[str, object]], column: str) -> int:
    texts = [str(row[column]) for row in rows if row[column] is not None]
    return max(cell_len(word) for word in (*_words(column), *(word for text in texts for word in text.split())))


def _words(column: str) -> list[str]:
    return column.replace("_", " ").split()


def _least_width(words: Mapping[str, int], columns: Sequence[str]) -> int:
    """Return the least width at which no word is cut; columns are two spaces apart."""
    return sum(words[column] for column in columns) + 2 * len(columns)
