"""Draws a sweep as parallel coordinates: an SVG with an axis for each setting and one for the return.

Each run is a line. The picture is self-contained, and small enough for an artifact of Prefect.
"""

from __future__ import annotations

import base64
import json
import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 70, 74, 34
_AXIS_GAP = 150
_HEIGHT = 380
_TICKS = 5
_TEXT_HEIGHT = 14
_LOG_RATIO = 20.0
"""An axis whose greatest value is so many times its least one is logarithmic."""
_RETURN = "return"
_WORST, _BEST = (0xB8, 0xC4, 0xD4), (0xD9, 0x4F, 0x1E)
_UNKNOWN = "#d8d8d8"


@dataclass(frozen=True, slots=True)
class _Axis:
    name: str
    x: float
    choices: tuple[str, ...] = ()
    """Texts from the bottom to the top; empty on an axis of numbers."""
    low: float = 0.0
    high: float = 1.0
    is_log: bool = False
    numbers: tuple[float, ...] = ()
    """The different values on an axis of numbers."""

    def y(self, value: Any) -> float:
        """Return the height of a value."""
        if self.choices:
            share = (self.choices.index(_text(value)) + 0.5) / len(self.choices)
        elif self.high == self.low:
            share = 0.5
        elif self.is_log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return round(_HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM), 1)

    def ticks(self) -> list[tuple[float, str]]:
        """Return heights and texts of the axis."""
        if self.choices:
            return [(self.y(json.loads(choice)), choice.strip('"')) for choice in self.choices]
        at_values = [(self.y(value), f"{value:.4g}") for value in self.numbers]
        gaps = [below - above for (below, _), (above, _) in pairwise(at_values)]
        if len(at_values) <= _TICKS and min(gaps, default=_TEXT_HEIGHT) >= _TEXT_HEIGHT:
            return at_values
        shares = [index / (_TICKS - 1) for index in range(_TICKS)]
        values = [
            self.low * (self.high / self.low) ** share if self.is_log else self.low + share * (self.high - self.low)
            for share in shares
        ]
        return [(self.y(value), f"{value:.4g}") for value in values]


def picture_markdown(svg: str) -> str:
    """Return a picture in Markdown."""
    return f"![settings and returns](data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()})"


def picture_svg(title: str, settings: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    """Draw runs as lines across axes; the same rows give the same text.

    Args:
        title: text above the picture.
        settings: columns of the rows that get an axis each; the last axis is the return.
        rows: as of a sweep's table. A run without a return yet, or with a problem, is grey and ends before the last
            axis.
    """
    rows = [row if row.get("problem") is None else {**row, _RETURN: None} for row in rows]
    names = [*settings, _RETURN]
    axes = [_axis(name, _LEFT + index * _AXIS_GAP, rows) for index, name in enumerate(names)]
    width = _LEFT + _RIGHT + _AXIS_GAP * len(settings)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {_HEIGHT}">',
        '<g font-family="sans-serif" font-size="12" fill="#333">',
        f'<rect width="{width}" height="{_HEIGHT}" fill="#fff"/>',
        f'<text x="16" y="20" font-size="14" font-weight="bold">{escape(title)}</text>',
        f'<text x="16" y="38" fill="#666">{len(rows)} runs, a line each; orange: the greatest return</text>',
    ]
    # The best come last, above the others.
    for row in sorted(rows, key=lambda row: -math.inf if row[_RETURN] is None else row[_RETURN]):
        reached = axes if row[_RETURN] is not None else axes[:-1]
        points = " ".join(f"{axis.x:g},{axis.y(row[axis.name])}" for axis in reached)
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{_colour(row[_RETURN], axes[-1])}" stroke-width="2" '
            f'stroke-opacity="0.8"><title>{escape(_hover(row, names))}</title></polyline>'
        )
    for axis in axes:
        parts.append(f'<path d="M{axis.x:g} {_TOP}V{_HEIGHT - _BOTTOM}" stroke="#888"/>')
        label = escape(axis.name.rpartition(".")[2])
        parts.append(f'<text x="{axis.x:g}" y="{_TOP - 14}" text-anchor="middle" font-weight="bold">{label}</text>')
        for y, text in axis.ticks():
            parts.append(f'<path d="M{axis.x - 4:g} {y}H{axis.x + 4:g}" stroke="#888"/>')
            parts.append(
                f'<text x="{axis.x - 8:g}" y="{y + 4:g}" text-anchor="end" font-size="11" '
                f'stroke="#fff" stroke-width="3" paint-order="stroke">{escape(text)}</text>'
            )
    return "".join([*parts, "</g></svg>"])


def _axis(name: str, x: float, rows: Sequence[Mapping[str, Any]]) -> _Axis:
    values = [row[name] for row in rows if row[name] is not None or name != _RETURN]
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return _Axis(name, x, tuple(sorted({_text(value) for value in values})))
    low, high = min(values, default=0.0), max(values, default=0.0)
    is_log = name != _RETURN and low > 0 and high / low >= _LOG_RATIO
    return _Axis(name, x, low=float(low), high=float(high), is_log=is_log, numbers=tuple(sorted(set(values))))


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _colour(value: float | None, axis: _Axis) -> str:
    if value is None:
        return _UNKNOWN
    share = (value - axis.low) / (axis.high - axis.low) if axis.high > axis.low else 1.0
    mixed = (round(a + share * (b - a)) for a, b in zip(_WORST, _BEST, strict=True))
    return "#" + "".join(f"{part:02x}" for part in mixed)


def _hover(row: Mapping[str, Any], names: Sequence[str]) -> str:
    return ", ".join([str(row["run"]), *(f"{name.rpartition('.')[2]} {_text(row[name])}" for name in names)])
