"""Tables on a terminal, whose cells are never cut short."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console, ConsoleDimensions
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def print_table(rows: Sequence[Mapping[str, Any]], console: Console | None = None) -> None:
    """Rows of the same columns; None is an empty cell.

    On a terminal that is too narrow, last columns are left out and named below. A file or a pipe gets all of them.
    """
    console = console or Console()
    columns, words = list(rows[0]), {column: _longest_word(rows, column) for column in rows[0]}
    while console.is_terminal and len(columns) > 1 and _least_width(words, columns) > console.width:
        columns.pop()
    # Of a dumb terminal the width alone can't be set.
    console.size = ConsoleDimensions(max(console.width, _least_width(words, columns)), console.height)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        # Left to it, Rich makes all columns narrower that it may, those too whose words it then cuts.
        whole = all(" " not in str(row[column]) for row in rows)
        table.add_column("\n".join(_words(column)), no_wrap=whole)
    for row in rows:
        table.add_row(*("" if row[column] is None else str(row[column]) for column in columns))
    console.print(table)
    if left_out := [" ".join(_words(column)) for column in rows[0] if column not in columns]:
        console.print(f"[dim]not shown in {console.width} columns: {', '.join(left_out)}[/]", highlight=False)


def _longest_word(rows: Sequence[Mapping[str, Any]], column: str) -> int:
    texts = [str(row[column]) for row in rows if row[column] is not None]
    return max(cell_len(word) for word in (*_words(column), *(word for text in texts for word in text.split())))


def _words(column: str) -> list[str]:
    return column.replace("_", " ").split()


def _least_width(words: Mapping[str, int], columns: Sequence[str]) -> int:
    """At which no word is cut: two spaces lie between columns."""
    return sum(words[column] for column in columns) + 2 * len(columns)
