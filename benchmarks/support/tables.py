"""Write a benchmark's dated results: a readable table, and all measurements as JSON."""

from __future__ import annotations

import datetime as dt
import json
import shlex
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

FIGURES = ("figure", "measured", "reach", "")
"""Columns of most tables: figure, value, target and remark."""


def this_command() -> str:
    """Return the command that started this program, without the paths of this machine."""
    module = sys.modules["__main__"].__spec__
    name = module.name.removesuffix(".__main__") if module else "benchmarks"
    return shlex.join(["python", "-m", name, *sys.argv[1:]])


def write_table(
    results: Path,
    name: str,
    command: str,
    rows: Iterable[Iterable[str]],
    raw: Any,
    *,
    head: Sequence[str] = FIGURES,
    notes: Sequence[str] = (),
) -> str:
    """Write `<results>/<date>[-<name>].md` and `.json`, in place of what is there.

    Args:
        results: the folder, created if it does not exist.
        name: the benchmark's name; may be empty.
        command: the command that made the results.
        rows: the table's rows, each with a cell per column of `head`.
        raw: the measurements, in types that JSON has.
        head: the columns' titles.
        notes: paragraphs below the table.

    Returns:
        The table's text.
    """
    results.mkdir(parents=True, exist_ok=True)
    stem = "-".join(filter(None, (dt.datetime.now(tz=dt.UTC).date().isoformat(), name)))
    lines = [f"# {stem}", "", f"`{command}`", "", _line(head), _line(["---"] * len(head)), *map(_line, rows)]
    text = "\n".join([*lines, *(line for note in notes for line in ("", note))]) + "\n"
    (results / f"{stem}.md").write_text(text, encoding="utf-8")
    (results / f"{stem}.json").write_text(json.dumps(raw, indent=1) + "\n", encoding="utf-8")
    return text


def _line(cells: Iterable[str]) -> str:
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in cells)
