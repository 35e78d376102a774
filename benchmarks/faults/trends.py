"""Fit straight lines to measurements of a process over time, with intervals that allow for autocorrelation.

Neighbouring samples of such a series resemble each other, so they hold less than their number says, and the interval of
plain least squares is too narrow. Three steps correct it:

1. Samples are averaged in blocks of equal length, whose means depend on each other much less: batch means, of which 10
   to 30 are the useful number (B. Schmeiser, "Batch Size Effects in the Analysis of Simulation Output", Operations
   Research 30(3), 1982).
2. The slope is that of least squares on the block means. Several parts of a measurement have an intercept each and one
   slope: the common slope of the analysis of covariance (G. W. Snedecor and W. G. Cochran, "Statistical Methods").
3. Where the residuals r of n blocks still have a positive autocorrelation a at lag 1, they count as n' = n (1 - a) /
   (1 + a) blocks (B. D. Santer and others, "Statistical significance of trends and trend differences in layer-average
   atmospheric temperature time series", Journal of Geophysical Research 105(D6), 2000). With p parts the slope's
   standard error is sqrt(sum(r^2) / (n' - p - 1) / sum((x - mean(x))^2)). The interval is the slope plus and minus this
   error times the quantile 0.975 of Student's t with n' - p - 1 degrees of freedom.

The interval of a series that wanders like a random walk is still somewhat too narrow.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

BLOCKS = 24
FEWEST_BLOCKS = 4
"""No interval is stated for fewer."""
# Quantiles 0.975 of Student's t with 1 to 30 degrees of freedom; with more they are smaller, down to 1.96.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
      2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Slope:
    """A slope, and half the width of its 95 % interval; infinite if the blocks are too few or too alike for one."""

    value: float
    half_width: float

    @property
    def rises(self) -> bool:
        """Return whether the whole interval is above zero."""
        return self.value > self.half_width

    def text(self, unit: float) -> str:
        """Return the slope and its interval in multiples of a unit."""
        interval = f"± {self.half_width / unit:,.2g}" if math.isfinite(self.half_width) else "(no interval)"
        return f"{self.value / unit:+,.3g} {interval}"


def block_means(*columns: Sequence[float]) -> list[list[float]]:
    """Average columns of equal length in at most `BLOCKS` blocks; rows with a NaN are left out."""
    rows: NDArray[np.float64] = np.array(columns, dtype=np.float64).T
    rows = rows[~np.isnan(rows).any(axis=1)]
    blocks = [block.mean(axis=0) for block in np.array_split(rows, min(BLOCKS, len(rows)) or 1) if len(block)]
    return np.array(blocks).T.tolist() if blocks else [[] for _ in columns]


def common_slope(parts: Sequence[tuple[Sequence[float], Sequence[float]]]) -> Slope:
    """Return the slope that all parts share, each with an intercept of its own.

    Args:
        parts: block means of x and of y, in the order of time.
    """
    centred: list[tuple[Any, Any]] = []
    for x, y in parts:
        if len(x) > 1:
            centred.append((np.asarray(x) - np.mean(x), np.asarray(y) - np.mean(y)))
    spread = sum(float(x @ x) for x, _ in centred)
    if not spread:
        return Slope(0.0, math.inf)
    value = sum(float(x @ y) for x, y in centred) / spread
    residuals = [y - value * x for x, y in centred]
    squares = sum(float(r @ r) for r in residuals)
    blocks = sum(map(len, residuals))
    alike = sum(float(r[1:] @ r[:-1]) for r in residuals) / squares if squares else 0.0
    alike = max(0.0, alike)
    freedom = blocks * (1 - alike) / (1 + alike) - len(centred) - 1
    if blocks < FEWEST_BLOCKS or freedom < 1:
        return Slope(value, math.inf)
    return Slope(value, _T[min(int(freedom), len(_T)) - 1] * math.sqrt(squares / freedom / spread))


def series_of(samples: Sequence[Mapping[str, float]]) -> dict[str, dict[str, Any]]:
    """Return for each series its first and last value, and its block means with those of hours and stages.

    Args:
        samples: `hours`, `stages` and other values by name, in the order of time. A missing value is 0, a NaN was not
            measured. What ends with `cpu_seconds` is a total, of which the series is the increase per stage.
    """
    rows = []
    for before, after in itertools.pairwise(samples):
        stages = after["stages"] - before["stages"] or math.nan
        rows.append(row := {name: value for name, value in after.items() if not name.endswith("cpu_seconds")})
        row["seconds_per_stage"] = 3600 * (after["hours"] - before["hours"]) / stages
        for name in after.keys() - row.keys():
            row[f"{name}_per_stage"] = (after[name] - before.get(name, 0.0)) / stages
    result: dict[str, dict[str, Any]] = {}
    for name in sorted({name for row in rows for name in row} - {"hours", "stages"}):
        values = [row.get(name, 0.0) for row in rows]
        known = [value for value in values if not math.isnan(value)] or [math.nan]
        means = block_means([row["hours"] for row in rows], [row["stages"] for row in rows], values)
        hours, stages, values = ([float(f"{value:.9g}") for value in column] for column in means)
        result[name] = {"first": known[0], "last": known[-1], "hours": hours, "stages": stages, "values": values}
    return result


def slopes_table(parts: Sequence[Mapping[str, dict[str, Any]]], by_design: Sequence[str]) -> list[str]:
    """Return the lines of a table of all series that `series_of` has returned for some parts.

    Args:
        parts: the series of each part.
        by_design: names of series that grow with the stages.
    """
    head = ["series", *(f"part {number}, first → last" for number in range(1, len(parts) + 1))]
    rows = [[*head, "slope per hour", "per 1,000 stages"], ["---"] * (len(head) + 2)]
    names = sorted({name for part in parts for name in part})
    for name in names:
        unit, label = (2**20, f"{name.removesuffix('_bytes')}, MiB") if name.endswith("_bytes") else (1, name)
        found = [part.get(name) for part in parts]
        cells = [f"{one['first'] / unit:,.5g} → {one['last'] / unit:,.5g}" if one else "" for one in found]
        hourly, by_stage = (
            common_slope([(one[x], one["values"]) for one in found if one]) for x in ("hours", "stages")
        )
        is_suspect = hourly.rises and name not in by_design
        cells.append(f"**{hourly.text(unit)}**" if is_suspect else hourly.text(unit))
        cells.append(by_stage.text(unit / 1000) if is_suspect or name in by_design else "")
        rows.append([label.replace("_", " "), *cells])
    note = (
        "Slopes have 95 % intervals, unless the blocks of samples are too few or too alike for one. Bold: the interval "
        "is above zero, in a series that does not grow by design; by chance alone that is so for one series in forty, "
        f"and there are {len(names)}."
    )
    return [*(f"| {' | '.join(cells)} |" for cells in rows), "", note]
