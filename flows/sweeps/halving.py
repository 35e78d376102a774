"""Successive halving: many runs begin, and at each rung only the best continue from where they are."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice, product
from typing import TYPE_CHECKING, Any

from penstock.flows.sweeps.points import check_points, check_sweep_name, computed_settings, make_point
from penstock.flows.sweeps.processes import refuse_divergence, train_points
from penstock.flows.sweeps.progress import Progress, check_evaluated
from penstock.flows.sweeps.space import check_space, describe_space, draw, resolved_space
from penstock.flows.sweeps.table import best_first, progress_row
from penstock.storage.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.flows.sweeps.points import Point
    from penstock.flows.sweeps.records import SweepRecords
    from penstock.flows.sweeps.space import Choice
    from penstock.flows.sweeps.table import SweepRow
    from penstock.tasks.setup.config.run import TrainConfig

_SUFFIX_CHARACTERS = len("-0000")
_REDRAWS = 20
_LISTED_POINTS = 1000
"""Most points of a space of lists that are looked through for one that was not drawn."""
_LAST_STAGE = "schedule.max_stages"


@dataclass(frozen=True, slots=True)
class HalvingPlan:
    """Successive halving, checked."""

    name: str
    space: Mapping[str, Choice]
    config: TrainConfig
    points: Sequence[Point]
    rungs: Sequence[int]
    """Number of stages at each rung; the last one is `schedule.max_stages`."""
    reduction: int
    seed: int


def plan_halving(
    name: str,
    space: Mapping[str, Choice],
    config: TrainConfig,
    *,
    runs: int,
    reduction: int,
    first_stages: int,
    seed: int,
) -> HalvingPlan:
    """Draw the runs, and check them; nothing is started.

    Raises:
        ConfigError: a name or a value is wrong, or runs would be judged before they are evaluated.
    """
    check_sweep_name(name, _SUFFIX_CHARACTERS)
    space = resolved_space(space)
    if _LAST_STAGE in space:
        raise ConfigError(f"space: {_LAST_STAGE} can't be varied: it is the last rung of all runs")
    check_space(name, config, space)
    last = config.schedule.max_stages
    if first_stages >= last:
        raise ConfigError(
            f"first_stages = {first_stages}: the first rung comes before the end, and runs have {last} stages "
            f"(schedule.max_stages)"
        )
    rungs = [first_stages]
    while rungs[-1] * reduction < last:
        rungs.append(rungs[-1] * reduction)
    drawn = _drawn(space, runs, seed)
    points = [make_point(name, config, values, f"{name}-{number:04d}") for number, values in enumerate(drawn)]
    check_points(points)
    for point in points:
        check_evaluated("first_stages", first_stages, point.config)
    return HalvingPlan(name, space, config, points, [*rungs, last], reduction, seed)


def _drawn(space: Mapping[str, Choice], runs: int, seed: int) -> list[dict[str, Any]]:
    """Draw the settings of so many runs; no two are equal where the space is made of lists and whole numbers."""
    lists = [few for choice in space.values() if (few := _values(choice))]
    possible: list[dict[str, Any]] = []
    if len(lists) == len(space):
        first = islice(product(*lists), _LISTED_POINTS + 1)
        possible = [dict(zip(space, chosen, strict=True)) for chosen in first]
        if len(possible) < runs and len(possible) <= _LISTED_POINTS:
            raise ConfigError(
                f"runs = {runs}: the space has {len(possible)} points, and a run that is trained twice is judged "
                f"twice; expected at most {len(possible)} runs"
            )
    drawn: list[dict[str, Any]] = []
    for number in range(runs):
        for redraw in range(_REDRAWS):
            values = draw(space, seed, number, redraw)
            if values not in drawn:
                break
        else:
            values = next((point for point in possible if point not in drawn), values)
        drawn.append(values)
    return drawn


def _values(choices: Choice) -> list[Any]:
    """Return each value once, if they are few; a list may name one several times, so that it is drawn more often."""
    if isinstance(choices, list):
        return [value for index, value in enumerate(choices) if value not in choices[:index]]
    low, high = int(choices.low), int(choices.high)
    return list(range(low, high + 1)) if choices.is_whole and high - low < _LISTED_POINTS else []


def run_halving(
    plan: HalvingPlan, records: SweepRecords, runs_at_once: int, show: Callable[[Sequence[SweepRow]], None]
) -> list[SweepRow]:
    """Train all runs to the first rung, the best of them to the next, and so on; continues what was stopped.

    Args:
        plan: as it was begun.
        records: of the sweep.
        runs_at_once: number of runs trained concurrently, which changes no result.
        show: called with the rows whenever a run has ended or was left.

    Returns:
        A row per run, the best first.

    Raises:
        ConfigError: it was begun with other parameters.
        PenstockError: runs failed, and a restart resumes them; or all of a rung have diverged.
    """
    records.begin(
        "halve",
        {
            "space": describe_space(plan.space),
            "config": computed_settings(plan.config),
            "runs": len(plan.points),
            "rungs": list(plan.rungs),
            "reduction": plan.reduction,
            "seed": plan.seed,
        },
    )
    reached = dict.fromkeys((point.name for point in plan.points), 0)
    alive, diverged = list(plan.points), dict[str, str]()

    def show_all(problems: Mapping[str, str]) -> None:
        show(_rows(plan, reached, {**diverged, **problems}))

    for rung, stages in enumerate(plan.rungs):
        reached.update((point.name, rung) for point in alive)
        is_last = stages == plan.rungs[-1]
        diverged |= train_points(plan.name, alive, runs_at_once, show_all, None if is_last else stages)
        judged = [point for point in alive if point.name not in diverged]
        if not judged:
            refuse_divergence(diverged)
        if not is_last:
            kept = records.read(f"rungs/{rung:02d}.json") or records.keep(
                f"rungs/{rung:02d}.json", _promoted(judged, stages, max(1, len(alive) // plan.reduction))
            )
            alive = [point for point in alive if point.name in kept["promoted"]]
    return _rows(plan, reached, diverged)


def _promoted(judged: Sequence[Point], stages: int, count: int) -> dict[str, Any]:
    """Decide who continues: the best of so many runs by their evaluation at the rung, of equal ones the first."""
    returns = {point.name: score_at(point, stages) for point in judged}
    best = sorted(returns, key=lambda name: (-returns[name], name))
    return {"stages": stages, "returns": returns, "promoted": sorted(best[:count])}


def score_at(point: Point, stages: int) -> float:
    """Return a run's newest evaluation within its first so many stages, however far it is.

    Raises:
        ConfigError: there is none.
    """
    progress = Progress(point)
    progress.update()
    score = progress.score(stages)
    if score is None:
        raise ConfigError(
            f"run '{point.name}' has no evaluation in its first {stages} stages, so it can't be compared; evaluate "
            f"more often (schedule.evaluate_every_stages)"
        )
    return score


def _rows(plan: HalvingPlan, reached: Mapping[str, int], problems: Mapping[str, str]) -> list[SweepRow]:
    rows = []
    for point in plan.points:
        progress = Progress(point)
        progress.update()
        rows.append(progress_row(progress, rung=reached[point.name], problem=problems.get(point.name)))
    # A run of a later rung is better than those that it has left behind, whatever they had by chance.
    return sorted(best_first(rows), key=lambda row: (row["problem"] is not None, -row["rung"]))
