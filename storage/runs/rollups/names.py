"""Names roll-ups: each has the shard references of a span of commits, so that a replay's plan takes few reads.

A roll-up is derived from the commits and bound to two digests: that of the span's newest commit, by which a reader that
walks back from the newest commit checks that it belongs there, and that of the commit before the span, with which the
walk continues. A roll-up that does not fit is not used.

There are two widths: `interval` commits, and `interval` squared. So a roll-up holds its own span and nothing older, a
shard is named by two of them at most however long the log grows, and 100,000 commits are ten reads.
Their content is in `penstock.storage.runs.rollups.content`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.storage.stores.protocol import Store

PREFIX = "commits/rollup-"
WIDE_ROWS_LIMIT = 1_000_000
"""A wide roll-up with more rows is not written: its narrow ones are used, and no process must hold it whole."""

_NAME = re.compile(r"commits/rollup-([0-9]{8,18})-([0-9]{8,18})\.arrow")


@dataclass(frozen=True, slots=True)
class Span:
    """Commits `first` to `last`, both included."""

    first: int
    last: int

    @property
    def name(self) -> str:
        """Return `commits/rollup-<first>-<last>.arrow`."""
        return f"{PREFIX}{self.first:08d}-{self.last:08d}.arrow"


def parse_rollup_name(name: str) -> Span | None:
    """Return the span of the roll-up of that name; None for any other name."""
    matched = _NAME.fullmatch(name)
    return Span(int(matched[1]), int(matched[2])) if matched and int(matched[1]) <= int(matched[2]) else None


def list_rollups(store: Store) -> dict[int, list[Span]]:
    """Return the existing roll-ups by their last stage, widest first; the newest stage comes first."""
    spans = filter(None, map(parse_rollup_name, store.list(PREFIX)))
    found: dict[int, list[Span]] = {}
    for span in sorted(spans, key=lambda span: (-span.last, span.first)):
        found.setdefault(span.last, []).append(span)
    return found


def spans_ending(stage: int, interval: int) -> list[Span]:
    """Return the spans of the roll-ups that are due after a stage, narrow ones first."""
    widths = (interval, interval * interval) if interval > 1 else (interval,)
    return [Span(stage + 1 - width, stage) for width in widths if (stage + 1) % width == 0]
