"""Draws a run's learning curve as a self-contained picture: an SVG in a data: address, in Markdown.

Prefect's UI also has image artifacts, but prints their address below the picture, and this one is pages long.
"""

from __future__ import annotations

import base64
import math
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from penstock.flows.display.summary import steps_axis

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.storage.runs.commit_schema import Commit

_WIDTH, _HEIGHT = 760, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 44, 40
_TICKS = 5
_MOST_POINTS = 300
"""Limit of points: more can't be distinguished at this width, and each stage sends the picture again."""
_ACTING, _EVALUATED = "#1f77b4", "#ff7f0e"

Point = tuple[float, float]


def curve_points(commits: Sequence[Commit]) -> tuple[list[Point], list[Point]]:
    """Return steps and mean return of each commit that has one: while acting, and when evaluated."""
    acting = [
        (float(commit.env_steps), float(commit.metrics["episode_return"]))
        for commit in commits
        if commit.metrics.get("episode_return") is not None
    ]
    evaluated = [
        (float(commit.env_steps), float(commit.evaluation["mean_return"]))
        for commit in commits
        if commit.evaluation is not None
    ]
    return acting, evaluated


def curve_markdown(title: str, acting: Sequence[Point], evaluated: Sequence[Point], *, replay: bool = False) -> str:
    """Return the picture in Markdown; the same points give the same text. `replay` is as in `curve_svg`."""
    data = base64.b64encode(curve_svg(title, acting, evaluated, replay=replay).encode()).decode()
    return f"![mean return over {steps_axis([replay])}](data:image/svg+xml;base64,{data})"


def curve_svg(title: str, acting: Sequence[Point], evaluated: Sequence[Point], *, replay: bool = False) -> str:
    """Draw returns over environment steps: a line while acting, a line with dots where evaluated.

    With `replay` the steps are stored ones that were learned from.
    """
    acting, evaluated = _thinned(acting), _thinned(evaluated)
    points = [*acting, *evaluated] or [(0.0, 0.0)]
    steps = _ticks(0.0, max(point[0] for point in points))
    returns = _ticks(min(point[1] for point in points), max(point[1] for point in points))

    def place(point: Point) -> tuple[float, float]:
        x = _LEFT + (point[0] - steps[0]) / (steps[-1] - steps[0]) * (_WIDTH - _LEFT - _RIGHT)
        y = _HEIGHT - _BOTTOM - (point[1] - returns[0]) / (returns[-1] - returns[0]) * (_HEIGHT - _TOP - _BOTTOM)
        return round(x, 1), round(y, 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}">',
        '<g font-family="sans-serif" font-size="12" fill="#333">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
        f'<text x="{_LEFT}" y="18" font-size="14" font-weight="bold">{escape(title)}</text>',
        f'<text x="{_LEFT}" y="36" fill="{_ACTING}">mean return while acting</text>',
        f'<text x="{_LEFT + 180}" y="36" fill="{_EVALUATED}">evaluated greedily</text>',
        f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 6}" text-anchor="end">{steps_axis([replay])}</text>',
    ]
    for tick in returns:
        _, y = place((steps[0], tick))
        parts.append(f'<path d="M{_LEFT} {y}H{_WIDTH - _RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{_format_tick(tick)}</text>')
    for tick in steps:
        x, _ = place((tick, returns[0]))
        parts.append(f'<text x="{x}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{_format_tick(tick)}</text>')
    for colour, line in ((_ACTING, acting), (_EVALUATED, evaluated)):
        placed = " ".join(f"{x},{y}" for x, y in map(place, line))
        parts.append(f'<polyline points="{placed}" fill="none" stroke="{colour}" stroke-width="2"/>')
        # A line of one point is invisible.
        dotted = line if colour == _EVALUATED or len(line) == 1 else []
        parts += [f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>' for x, y in map(place, dotted)]
    return "".join([*parts, "</g></svg>"])


def _thinned(points: Sequence[Point]) -> list[Point]:
    """Thin points evenly to the limit, keeping the last."""
    if len(points) <= _MOST_POINTS:
        return list(points)
    every = (len(points) - 1) / (_MOST_POINTS - 1)
    return [points[round(index * every)] for index in range(_MOST_POINTS)]


def _ticks(least: float, most: float) -> list[float]:
    """Return evenly spaced round numbers that enclose both ends."""
    # Wider than the last digits of a number of any size, in which means of one value differ.
    smallest = 1e-6 * max(abs(least), abs(most))
    return list(_round_numbers(least, most if most - least > smallest else least + max(1.0, 2 * smallest)))


def _round_numbers(least: float, most: float) -> Iterator[float]:
    rough = (most - least) / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1.0, 2.0, 5.0, 10.0) if power * factor >= rough)
    first, last = math.floor(least / step), math.ceil(most / step)
    yield from (index * step for index in range(first, last + 1))


def _format_tick(value: float) -> str:
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= 10.0 * size:
            return f"{value / size:g}{unit}"
    return f"{value:.6g}"
