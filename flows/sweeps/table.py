"""The table of a sweep, and where it is shown: in Prefect's UI and in the store, with its parallel coordinates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.flows.display.artifact import markdown_artifact, table_artifact
from penstock.flows.display.summary import round_return
from penstock.flows.sweeps.parallel_coordinates import picture_markdown, picture_svg
from penstock.flows.sweeps.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from penstock.flows.sweeps.points import Point
    from penstock.flows.sweeps.records import SweepRecords

SweepRow = dict[str, Any]
"""The values of the varied settings, then `run`, `return`, `stages`, `env steps`, `finished`, and what else a sweep has
to say about the run, such as its `problem`."""


def point_row(point: Point, **more: object) -> SweepRow:
    """Return how far a point's run is, read from its store, and `more` columns."""
    progress = Progress(point)
    progress.update()
    return progress_row(progress, **more)


def progress_row(progress: Progress, **more: object) -> SweepRow:
    """Return how far a run is, and `more` columns."""
    newest, score = progress.newest, progress.score()
    return {
        **progress.point.values,
        "run": progress.point.name,
        "return": None if score is None else round_return(score),
        "stages": progress.stages,
        "env steps": newest.env_steps if newest else 0,
        "finished": newest.finished if newest else None,
        **more,
    }


def compared(points: Iterable[Point], problems: Mapping[str, str]) -> list[SweepRow]:
    """Return one row per point, the best evaluation first."""
    return best_first(point_row(point, problem=problems.get(point.name)) for point in points)


def best_first(rows: Iterable[SweepRow]) -> list[SweepRow]:
    """Return rows, the greatest return first, behind all others those without one, and last those with a problem.

    What a run reached before it diverged is of no use.
    """

    def place(row: SweepRow) -> tuple[bool, float]:
        return row.get("problem") is None, -float("inf") if row["return"] is None else row["return"]

    return sorted(rows, key=place, reverse=True)


def sweep_display(records: SweepRecords, settings: Sequence[str]) -> Callable[[Sequence[SweepRow]], None]:
    """Create the artifacts of a sweep in this flow run; return a function that replaces what they show.

    Args:
        records: of the sweep; they keep the table and the picture as well.
        settings: full names of the varied settings, each an axis of the picture.
    """
    table = table_artifact(records.name, "sweep")
    picture = markdown_artifact(records.name, "parallel-coordinates", "Settings and returns of the sweep's runs")

    def show(rows: Sequence[SweepRow]) -> None:
        drawn = picture_svg(f"Sweep {records.name}", settings, rows)
        records.show(rows, drawn)
        table(rows)
        picture(picture_markdown(drawn))

    return show
