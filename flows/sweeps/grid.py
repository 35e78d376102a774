"""Trains every point of a grid."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.flows.sweeps.processes import train_points
from penstock.flows.sweeps.table import compared

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.flows.sweeps.points import Point
    from penstock.flows.sweeps.records import SweepRecords
    from penstock.flows.sweeps.table import SweepRow


def run_grid(
    sweep: str,
    records: SweepRecords,
    points: Sequence[Point],
    runs_at_once: int,
    show: Callable[[list[SweepRow]], None],
) -> list[SweepRow]:
    """Train the unfinished points; `show` gets the comparison whenever a run has ended.

    Nothing is decided, so that only the method is recorded: a grid may get further values.

    Returns:
        The comparison: one row per point, the best first.

    Raises:
        ConfigError: a sweep of this name was begun by another method.
        PenstockError: some runs failed; all others are finished, or have diverged, as their rows say.
    """
    records.begin("sweep", {})
    diverged = train_points(sweep, points, runs_at_once, lambda problems: show(compared(points, problems)))
    return compared(points, diverged)
