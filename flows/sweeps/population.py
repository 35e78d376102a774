"""Population-based training: runs train side by side; now and then the worst continue from copies of the best ones.

A copy takes over parameters, the optimizer's state, environments and history at a commit, and continues with numbers of
the algorithm that were changed at random (Jaderberg et al. 2017, arXiv 1711.09846). Who copies whom follows from the
evaluations in commits, and is recorded before anything is copied: a population that was killed becomes the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.flows.sweeps.halving import score_at
from penstock.flows.sweeps.points import check_sweep_name, computed_settings, make_point
from penstock.flows.sweeps.processes import refuse_problems, train_points
from penstock.flows.sweeps.progress import check_evaluated
from penstock.flows.sweeps.space import Range, check_space, describe_space, draw, perturb, resolved_space, uniform
from penstock.flows.sweeps.table import best_first, point_row
from penstock.storage.errors import ConfigError
from penstock.tasks.driver.branching import branch_run, check_changeable, check_switches, has_fractions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.flows.sweeps.points import Point
    from penstock.flows.sweeps.records import SweepRecords
    from penstock.flows.sweeps.space import Choice
    from penstock.flows.sweeps.table import SweepRow
    from penstock.tasks.setup.config.algorithm_base import AlgorithmSettings
    from penstock.tasks.setup.config.run import TrainConfig

_SUFFIX_CHARACTERS = len("-i000-x0000")
_FIRST, _SOURCE, _CHANGE = range(3)
"""Purposes of random numbers."""


@dataclass(frozen=True, slots=True)
class PopulationPlan:
    """A population, checked."""

    name: str
    space: Mapping[str, Choice]
    """By full names, sorted."""
    config: TrainConfig
    first: Sequence[Point]
    """The points that the individuals begin with."""
    interval_stages: int
    replaced: int
    """Number of individuals that become copies of others at each exchange."""
    seed: int


def plan_population(
    name: str,
    space: Mapping[str, Choice],
    config: TrainConfig,
    *,
    population_size: int,
    interval_stages: int,
    replaced_share: float,
    seed: int,
) -> PopulationPlan:
    """Draw the first individuals, and check them; nothing is started.

    Raises:
        ConfigError: a name or a value is wrong, a setting can't change on a run's way, a run could end early, or runs
            would be judged before they are evaluated.
    """
    check_sweep_name(name, _SUFFIX_CHARACTERS)
    space = {path: _with_fractions(config.algorithm, path, choices) for path, choices in resolved_space(space).items()}
    for path, choices in space.items():
        values = [choices.low, choices.high] if isinstance(choices, Range) else choices
        for value in values:
            check_changeable("space", config.algorithm, {path: value})
        check_switches("space", path, values)
    check_space(name, config, space)
    check_evaluated("interval_stages", interval_stages, config)
    for setting in ("target_return", "stop_patience_evaluations"):
        if (value := getattr(config.schedule, setting)) is not None:
            raise ConfigError(
                f"schedule.{setting} = {value:g}: a run that ends early can't be copied; leave it empty, so that all "
                f"individuals train schedule.max_stages"
            )
    if interval_stages >= config.schedule.max_stages:
        raise ConfigError(
            f"interval_stages = {interval_stages}: individuals have {config.schedule.max_stages} stages "
            f"(schedule.max_stages), so none would ever be copied; copy earlier, or train further"
        )
    drawn = [draw(space, seed, _FIRST, individual) for individual in range(population_size)]
    first = [
        make_point(name, config, values, _run_name(name, individual, 0)) for individual, values in enumerate(drawn)
    ]
    replaced = max(1, int(population_size * replaced_share))
    return PopulationPlan(name, space, config, first, interval_stages, replaced, seed)


def run_population(
    plan: PopulationPlan, records: SweepRecords, runs_at_once: int, show: Callable[[Sequence[SweepRow]], None]
) -> list[SweepRow]:
    """Train the population to its end; one that was stopped continues to the same individuals.

    Args:
        plan: as it was begun.
        records: of the sweep.
        runs_at_once: number of runs trained concurrently, which changes no result.
        show: called with the rows whenever a run has ended or was left.

    Returns:
        A row per individual and per run that was given up, the individuals first and of them the best.

    Raises:
        ConfigError: it was begun with other parameters.
        PenstockError: runs failed; a restart resumes them.
    """
    records.begin(
        "population",
        {
            "space": describe_space(plan.space),
            "config": computed_settings(plan.config),
            "population_size": len(plan.first),
            "interval_stages": plan.interval_stages,
            "replaced": plan.replaced,
            "seed": plan.seed,
        },
    )
    individuals = list(plan.first)
    given_up: list[tuple[Point, int, str]] = []
    origins: dict[str, str] = {}

    def rows(problems: Mapping[str, str]) -> list[SweepRow]:
        alive = [
            point_row(
                point,
                individual=number,
                origin=origins.get(point.name),
                replaced=None,
                problem=problems.get(point.name),
            )
            for number, point in enumerate(individuals)
        ]
        ended = [
            point_row(point, individual=number, origin=origins.get(point.name), replaced=by, problem=None)
            for point, number, by in given_up
        ]
        return [*best_first(alive), *ended]

    last = plan.config.schedule.max_stages
    for exchange, stages in enumerate(range(plan.interval_stages, last, plan.interval_stages)):
        refuse_problems(
            train_points(plan.name, individuals, runs_at_once, lambda problems: show(rows(problems)), stages),
            len(individuals),
        )
        name = f"exchanges/{exchange:04d}.json"
        decided = records.read(name) or records.keep(name, _decide(plan, individuals, exchange, stages))
        for change in decided["copies"]:
            number, source = change["individual"], individuals[change["source"]]
            # Sources are never among the replaced, and train on only after the last copy.
            branch_run(source.folder, change["run"], stages - 1, change["values"])
            given_up.append((individuals[number], number, change["run"]))
            origins[change["run"]] = f"{source.name}, stage {stages - 1}"
        for change in decided["copies"]:
            individuals[change["individual"]] = make_point(plan.name, plan.config, change["values"], change["run"])
    refuse_problems(
        train_points(plan.name, individuals, runs_at_once, lambda problems: show(rows(problems))), len(individuals)
    )
    return rows({})


def _decide(plan: PopulationPlan, individuals: Sequence[Point], exchange: int, stages: int) -> dict[str, Any]:
    """Decide which individuals become copies of which others, and with which values."""
    returns = [score_at(point, stages) for point in individuals]
    best = sorted(range(len(individuals)), key=lambda number: (-returns[number], number))
    copies = []
    for number in sorted(best[-plan.replaced :]):
        source = best[int(uniform(plan.seed, _SOURCE, exchange, number) * plan.replaced)]
        values = perturb(plan.space, individuals[source].values, plan.seed, _CHANGE, exchange, number)
        run = _run_name(plan.name, number, exchange + 1)
        copies.append({"individual": number, "source": source, "run": run, "values": values})
    runs = [point.name for point in individuals]
    return {"stages": stages, "runs": runs, "returns": returns, "copies": copies}


def _run_name(name: str, individual: int, exchange: int) -> str:
    return f"{name}-i{individual:03d}-x{exchange:04d}"


def _with_fractions(algorithm: AlgorithmSettings, path: str, choices: Choice) -> Choice:
    """Return numbers with fractions where the setting has them: a form drops the zero of 1.0."""
    if isinstance(choices, Range):
        low, high = float(choices.low), float(choices.high)
        return choices.model_copy(update={"low": low, "high": high}) if has_fractions(algorithm, path, low) else choices
    return [float(value) if has_fractions(algorithm, path, value) else value for value in choices]
