"""A benchmark's dated results: a table for people, beside everything that was measured as JSON."""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def write_table(results: Path, name: str, command: str, rows: Iterable[Iterable[str]], raw: Any) -> str:
    """Write `<results>/<date>[-<name>].md` and `.json`, in place of what is there.

    Args:
        results: a folder, made if need be.
        name: of the benchmark; may be empty.
        command: that made the results.
        rows: figure, measured, reach and a remark.
        raw: what can be said in JSON.

    Returns:
        The table's text.
    """
    results.mkdir(parents=True, exist_ok=True)
    stem = "-".join(filter(None, (dt.datetime.now(tz=dt.UTC).date().isoformat(), name)))
    lines = [f"# {stem}", "", f"`{command}`", "", "| figure | measured | reach | |", "| --- | --- | --- | --- |"]
    text = "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"
    (results / f"{stem}.md").write_text(text, encoding="utf-8")
    (results / f"{stem}.json").write_text(json.dumps(raw, indent=1) + "\n", encoding="utf-8")
    return text
