"""The sweep flows: a grid, a search with Optuna, successive halving, a population; each compares its runs in a table.

Need nothing in the environment; use `PREFECT_API_URL`, and the usual credentials if the store is on S3.
"""

from __future__ import annotations

from typing import Annotated, Any

from prefect import flow
from pydantic import Field

from penstock.flows.support.deployment import with_deployment_defaults
from penstock.flows.sweeps.grid import run_grid
from penstock.flows.sweeps.halving import plan_halving, run_halving
from penstock.flows.sweeps.points import check_points, grid_points
from penstock.flows.sweeps.population import plan_population, run_population
from penstock.flows.sweeps.records import SweepRecords
from penstock.flows.sweeps.search import PrunerName, plan_search, run_search
from penstock.flows.sweeps.space import Choice, Count, Seed  # noqa: TC001  (Prefect reads them when it runs)
from penstock.flows.sweeps.table import SweepRow, sweep_display
from penstock.tasks.setup.config.run import TrainConfig


@flow(name="sweep", flow_run_name="sweep {name}", persist_result=False, validate_parameters=True)
def sweep(
    name: str,
    grid: dict[str, list[Any]],
    config: TrainConfig = TrainConfig(),  # noqa: B008  (frozen)
    runs_at_once: Count = 1,
) -> list[SweepRow]:
    """Train one run per point of a grid of settings, and compare them in one table, the best first.

    Each point is its own run and flow run; the name is derived from its settings. Started again, the sweep skips
    finished runs and resumes the others.

    Args:
        name: Name of the sweep; its runs begin with it.
        grid: Values by the name of a setting, such as {"learning_rate": [0.01, 0.003], "seed": [1, 2]}.
        config: What the runs have in common; store and cluster default to the deployment's.
        runs_at_once: Number of runs trained concurrently.
    """
    config = with_deployment_defaults(config)
    points = grid_points(name, grid, config)
    check_points(points)
    records = SweepRecords(config.store, name)
    with records.held():
        return run_grid(name, records, points, runs_at_once, sweep_display(records, list(points[0].values)))


@flow(name="search", flow_run_name="search {name}", persist_result=False, validate_parameters=True)
def search(
    name: str,
    space: dict[str, Choice],
    config: TrainConfig = TrainConfig(),  # noqa: B008  (frozen)
    trials: Count = 20,
    runs_at_once: Count = 1,
    pruner: PrunerName = "median",
    startup_trials: Count = 5,
    warmup_stages: Annotated[int, Field(ge=0)] = 0,
    seed: Seed = 1,
) -> list[SweepRow]:
    """Search a space of settings with Optuna's TPE sampler; a pruner stops runs that are behind the others.

    Each trial is its own run and flow run. Started again, the search continues with the same trials; with more `trials`
    it goes on. A run that was stopped can be resumed.

    Args:
        name: Name of the search; its runs begin with it.
        space: A range or a list of values by the name of a setting, such as
            {"learning_rate": {"low": 0.0003, "high": 0.03, "log": true}, "epochs": [1, 2, 4]}.
        config: What the runs have in common; store and cluster default to the deployment's.
        trials: Number of trials in all.
        runs_at_once: Number of runs trained concurrently. Trial n is chosen by the results of trials 0 to n minus
            this, so that the search does not depend on which run is faster.
        pruner: median stops a run whose best evaluation so far is below the median of the others at that stage; none
            trains all runs to their end.
        startup_trials: Number of trials that are drawn at random and trained to their end, before results count.
        warmup_stages: Stages in which no run is stopped.
        seed: Seed of the search itself; the runs' is in config.
    """
    config = with_deployment_defaults(config)
    plan = plan_search(
        name,
        space,
        config,
        trials=trials,
        runs_at_once=runs_at_once,
        seed=seed,
        pruner=pruner,
        startup_trials=startup_trials,
        warmup_stages=warmup_stages,
    )
    records = SweepRecords(config.store, name)
    with records.held():
        return run_search(plan, records, sweep_display(records, list(plan.space)))


@flow(name="halve", flow_run_name="halve {name}", persist_result=False, validate_parameters=True)
def halve(
    name: str,
    space: dict[str, Choice],
    config: TrainConfig = TrainConfig(),  # noqa: B008  (frozen)
    runs: Annotated[int, Field(ge=2)] = 9,
    reduction: Annotated[int, Field(ge=2)] = 3,
    first_stages: Count = 1,
    runs_at_once: Count = 1,
    seed: Seed = 1,
) -> list[SweepRow]:
    """Train many runs a little, and the best of them further: successive halving over a space of settings.

    All runs are trained to the first rung, one in `reduction` of them `reduction` times as far, and so on to the end.
    Runs that are left behind can be resumed. Started again, it continues with the same runs.

    Args:
        name: Name of the sweep; its runs begin with it.
        space: A range or a list of values by the name of a setting, such as
            {"learning_rate": {"low": 0.0003, "high": 0.03, "log": true}, "epochs": [1, 2, 4]}.
        config: What the runs have in common; store and cluster default to the deployment's.
        runs: Number of runs that begin.
        reduction: At each rung one run in so many continues, so many times as far.
        first_stages: Stages of the first rung.
        runs_at_once: Number of runs trained concurrently; it changes no result.
        seed: Seed of the draws from the space; the runs' is in config.
    """
    config = with_deployment_defaults(config)
    plan = plan_halving(name, space, config, runs=runs, reduction=reduction, first_stages=first_stages, seed=seed)
    records = SweepRecords(config.store, name)
    with records.held():
        return run_halving(plan, records, runs_at_once, sweep_display(records, list(plan.space)))


@flow(name="population", flow_run_name="population {name}", persist_result=False, validate_parameters=True)
def population(
    name: str,
    space: dict[str, Choice],
    config: TrainConfig = TrainConfig(),  # noqa: B008  (frozen)
    population_size: Annotated[int, Field(ge=2)] = 8,
    interval_stages: Count = 1,
    replaced_share: Annotated[float, Field(gt=0.0, le=0.5)] = 0.25,
    runs_at_once: Count = 1,
    seed: Seed = 1,
) -> list[SweepRow]:
    """Train a population: now and then, the worst runs continue from copies of the best with changed numbers.

    A copy takes over parameters, the optimizer's state and environments at a commit. Started again, the population
    continues to the same runs.

    Args:
        name: Name of the sweep; its runs begin with it.
        space: A range or a list of numbers with a fraction by the name of one of the algorithm's settings, such as
            {"learning_rate": {"low": 0.0003, "high": 0.03, "log": true}, "entropy_weight": [0.0, 0.003, 0.01]}.
        config: What the runs have in common; store and cluster default to the deployment's.
        population_size: Number of runs that are trained side by side.
        interval_stages: Stages between exchanges, at which runs are compared and copied.
        replaced_share: Share of the population whose runs become copies of as many of the best.
        runs_at_once: Number of runs trained concurrently; it changes no result.
        seed: Seed of draws and changes; the runs' is in config.
    """
    config = with_deployment_defaults(config)
    plan = plan_population(
        name,
        space,
        config,
        population_size=population_size,
        interval_stages=interval_stages,
        replaced_share=replaced_share,
        seed=seed,
    )
    records = SweepRecords(config.store, name)
    with records.held():
        return run_population(plan, records, runs_at_once, sweep_display(records, list(plan.space)))
