"""Draws the board's pictures: a bar for each contender's median, and a dot for each of its rounds."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

OURS, THEIRS, NOBODYS = "#3f7fd4", "#e0813a", "#8a8f98"
"""Colours of Penstock, its peers, and what is neither."""
WIDTH, LABELS, VALUES = 880, 360, 110
ROW, TOP, BOTTOM = 26, 14, 40
"""In pixels."""
TICKS = 5


@dataclass(frozen=True, slots=True)
class Bar:
    """A contender's rounds."""

    label: str
    colour: str
    values: Sequence[float]
    value: str
    """The text behind the bar."""
    faint: bool = False
    """True for other work than that of the bars which are not."""


def bars(rows: Sequence[Bar], unit: str, alternative: str) -> str:
    """Return an SVG picture with a bar from zero to each median, and a dot for each round; no bar if it has none."""
    largest = max((value for row in rows for value in row.values), default=1.0)
    step = tick_step(largest)
    scale = (WIDTH - LABELS - VALUES) / largest
    height = TOP + ROW * len(rows) + BOTTOM
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"',
        'font-family="sans-serif" font-size="13" role="img">',
        f"<title>{escape(alternative)}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    foot = TOP + ROW * len(rows)
    for tick in range(int(largest / step) + 1):
        x = LABELS + tick * step * scale
        lines.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{foot}" stroke="#e3e5e8"/>')
        lines.append(f'<text x="{x:.1f}" y="{foot + 16}" text-anchor="middle" fill="#555">{tick * step:,g}</text>')
    lines.append(f'<text x="{LABELS}" y="{foot + 33}" fill="#555">{escape(unit)}</text>')
    for place, row in enumerate(rows):
        middle = TOP + ROW * place + ROW / 2
        lines.append(
            f'<text x="{LABELS - 8}" y="{middle + 4:.1f}" text-anchor="end" fill="#222">{escape(row.label)}</text>'
        )
        end = float(LABELS)
        if row.values:
            end = LABELS + max(row.values) * scale
            width = median(row.values) * scale
            opacity = 0.35 if row.faint else 0.75
            lines.append(
                f'<rect x="{LABELS}" y="{middle - 8:.1f}" width="{width:.1f}" height="16" fill="{row.colour}" '
                f'fill-opacity="{opacity}"/>'
            )
        lines += [
            f'<circle cx="{LABELS + value * scale:.1f}" cy="{middle:.1f}" r="3" fill="#222" fill-opacity="0.7"/>'
            for value in row.values
        ]
        lines.append(f'<text x="{end + 8:.1f}" y="{middle + 4:.1f}" fill="#222">{escape(row.value)}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def tick_step(largest: float) -> float:
    """Return a round number that divides a scale into about five parts."""
    power = 10.0
    while power > largest / TICKS:
        power /= 10
    while power * 10 <= largest / TICKS:
        power *= 10
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= largest / TICKS)
