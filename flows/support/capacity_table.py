"""`penstock scale`: predictions for many actors and learners, from a trial of the configuration on this machine."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypedDict

from penstock.flows.support.capacity_limits import MOST_ACTORS, enough_learners, limits_of
from penstock.storage.errors import ConfigError
from penstock.storage.stores.open import open_store
from penstock.tasks.setup.distribution.policies import single_learner_coarse
from penstock.tasks.setup.planning.capacity_model import REMEDIES, predict
from penstock.tasks.setup.planning.measured_constants import Constant, cost, with_assumptions
from penstock.tasks.setup.planning.operation_counts import Deployment
from penstock.tasks.setup.planning.preflight import check_distribution
from penstock.tasks.setup.planning.round_time import PartSeconds
from penstock.tasks.setup.planning.run_calibration import measure_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from penstock.tasks.setup.config.run import ConfigT, RunConfig
    from penstock.tasks.setup.planning.capacity_model import Prediction
    from penstock.tasks.setup.planning.traffic import Sizes

_TRIED_TILES, _TRIED_ROWS = 8, 2048
_POLICY = single_learner_coarse(1).name

Row = dict[str, object]


class CapacityTable(TypedDict):
    """Predictions, and the numbers that they use."""

    rows: list[Row]
    """One per number of actors: see `as_row`."""
    limits: list[Row]
    """One per part that acting may have to wait for: see `capacity_limits.Limit`."""
    measured: list[Row]
    """Sizes and times of the trial rounds: see `facts`."""
    constants: list[Row]


def scale(
    config: RunConfig,
    actors: str,
    *,
    learners: int | None = 1,
    actors_per_node: int = 8,
    schedulers: int = 1,
    hours: float | None = None,
    assumed: Iterable[str] = (),
    on_trial: Callable[[], object] = lambda: None,
) -> CapacityTable:
    """Predict the throughput of a configuration for each number of actors.

    Each actor has as many environments as in the configuration. Runs a few trial rounds in another process.

    Args:
        config: its policy must be single_learner_coarse.
        actors: numbers of actors, such as `1,8,64`.
        learners: number of learners that share the learning; None takes for each number of actors as few as keep up.
        actors_per_node: number of actors that share a node, and its cache.
        schedulers: number of Dask schedulers that share the actors' nodes.
        hours: that a training takes with the first number of actors; rows say what they become for as many steps.
        assumed: `NAME=VALUE` each; replaces a constant, or the measured time of a part of a round.
        on_trial: called before the trial, when the arguments are known to be right.

    Returns:
        The predictions, and the numbers that they use.

    Raises:
        ConfigError: an argument or the configuration is wrong, or its trial fails.
    """
    counts, assumed = _counts(actors), list(assumed)
    with_assumptions(assumed, [_part(field.name, 1.0) for field in fields(PartSeconds)])
    _check_arguments(config, min(counts), learners, actors_per_node, schedulers, hours)
    on_trial()
    sizes, parts = measure_parts(tried_config(config), None)
    of_parts = {name: _part(name, value) for name, value in parts.to_json().items() if value is not None}
    constants = with_assumptions(assumed, of_parts.values())
    of_parts = {name: constants.pop(name) for name in of_parts}
    assumed_parts: dict[str, Any] = {**parts.to_json(), **values(of_parts)}
    parts = PartSeconds(**assumed_parts)
    given = values(constants)

    def deployment(actors: int) -> Deployment:
        alone = deployment_of(config, actors, learners or 1, actors_per_node, schedulers)
        if learners is not None:
            return alone
        enough = enough_learners(lambda count: replace(alone, learners=count), sizes, parts, given)
        return replace(alone, learners=enough)

    predictions = [predict(deployment(count), sizes, parts, given) for count in counts]
    rows = [as_row(prediction, sizes, given) for prediction in predictions]
    for row, prediction in zip(rows, predictions, strict=True):
        if hours is not None:
            row["hours"] = hours * predictions[0].steps_per_second / prediction.steps_per_second
    limits: list[Row] = [
        {
            "part": name,
            "actors": limit.actors if limit else None,
            "learners": limit.learners if limit else None,
            "capable of env steps/s": limit.steps_per_second if limit else None,
        }
        for name, limit in limits_of(deployment, sizes, parts, given).items()
    ]
    measured = [facts(item) for item in (*_sizes(sizes), *of_parts.values())]
    return {
        "rows": rows,
        "limits": limits,
        "measured": measured,
        "constants": [facts(item) for item in constants.values()],
    }


def _check_arguments(
    config: RunConfig,
    fewest_actors: int,
    learners: int | None,
    actors_per_node: int,
    schedulers: int,
    hours: float | None,
) -> None:
    """Refuse numbers that no deployment of the configuration has; the arguments are those of `scale`."""
    if (learners is not None and learners < 1) or actors_per_node < 1 or schedulers < 1:
        raise ConfigError(
            f"--learners {learners}, --actors-per-node {actors_per_node}, --schedulers {schedulers}: expected whole "
            f"numbers of 1 or more"
        )
    if hours is not None and not 0 < hours < math.inf:
        raise ConfigError(f"--hours {hours:g}: expected a number above 0, as in --hours 8.6")
    _check(config)
    most = fewest_actors * _tiles_per_actor(config)
    if learners is not None and learners > most:
        raise ConfigError(
            f"--learners {learners}: --actors {fewest_actors} has {most} tiles, and each learner owns at least one; "
            f"choose fewer learners, more --actors, or smaller tiles (environment.envs_per_tile)"
        )


def values(constants: Mapping[str, Constant]) -> dict[str, float]:
    """Return the values of constants by name."""
    return {name: constant.value for name, constant in constants.items()}


def facts(constant: Constant) -> Row:
    """Return a constant as a row of a table."""
    return {name: getattr(constant, name) for name in ("name", "value", "unit", "meaning", "source")}


_TRIED = "tried just now on this machine (planning/calibration_process.py)"


def _part(name: str, value: float) -> Constant:
    """Return a measured part of a round as a constant; planning/round_time.py describes each."""
    unit = {"cores": "cores", "busy_core_speed": "of a core"}.get(name, "s")
    return Constant(name, value, unit, "a part of a round: planning/round_time.py", _TRIED)


def _sizes(sizes: Sizes) -> list[Constant]:
    return [
        Constant(name, value, "", "a size of a round: planning/traffic.py", _TRIED)
        for name, value in sizes.to_json().items()
    ]


def tried_config(config: ConfigT, tiles: int | None = None) -> ConfigT:
    """Return the configuration with enough tiles to separate the cost of a row from the cost of a round.

    Args:
        config: of the run.
        tiles: to be tried; None is eight, or two at least where eight have more rows than are learned in a few seconds.
    """
    if tiles is None:
        of_tile = config.environment.envs_per_tile * config.schedule.round_steps
        tiles = max(2, min(_TRIED_TILES, _TRIED_ROWS // of_tile))
    envs = config.environment.envs_per_tile * max(tiles, _tiles_per_actor(config))
    environment = config.environment.model_copy(update={"num_envs": envs})
    distribution = config.distribution.model_copy(update={"act_tasks": 1})
    return config.model_copy(update={"environment": environment, "distribution": distribution})


def deployment_of(
    config: RunConfig, actors: int, learners: int, actors_per_node: int, schedulers: int = 1
) -> Deployment:
    """Return a deployment with this many actors, each with an act task's environments of the configuration."""
    environment, schedule = config.environment, config.schedule
    scheme, _, rest = config.store.partition("://")
    return Deployment(
        actors=actors,
        learners=learners,
        actors_per_node=actors_per_node,
        processes_per_node=config.cluster.act_workers or actors_per_node,
        tiles_per_actor=_tiles_per_actor(config),
        envs_per_tile=environment.envs_per_tile,
        round_steps=schedule.round_steps,
        rounds_per_stage=schedule.rounds_per_stage,
        lag=schedule.lag,
        lease_seconds=config.cluster.lease_seconds,
        client=scheme if rest and scheme != "file" else None,
        gpu=config.distribution.device == "cuda",
        schedulers=schedulers,
    )


def as_row(prediction: Prediction, sizes: Sizes, constants: Mapping[str, float]) -> Row:
    """Return a prediction per second, hour and stage, as a row of a table."""
    money = cost(prediction, sizes, constants)
    return {
        "actors": prediction.deployment.actors,
        "learners": prediction.deployment.learners,
        "nodes": prediction.deployment.nodes,
        "env steps/s": prediction.steps_per_second,
        "stage seconds": prediction.stage_seconds,
        "first bottleneck": prediction.bottleneck,
        "remedy": REMEDIES[prediction.bottleneck],
        "requests/s": prediction.per_second(sum(prediction.requests.values())),
        "written MB/s": prediction.per_second(prediction.written_bytes) / 1e6,
        "read MB/s": prediction.per_second(prediction.read_bytes) / 1e6,
        "scheduler messages/s": prediction.per_second(prediction.messages),
        "Prefect calls/s": prediction.per_second(prediction.calls),
        "cache hits": prediction.cache_hits,
        "money/hour": money.hour,
        "money/1e6 steps": money.million_steps,
        "parts": prediction.parts,
        "requests a stage": prediction.requests,
        "cost an hour": {"machines": money.machines, "requests": money.requests, "storage": money.storage},
    }


def _counts(text: str) -> list[int]:
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        counts = []
    if not counts or any(not 1 <= count <= MOST_ACTORS for count in counts):
        raise ConfigError(
            f"--actors {text}: expected numbers from 1 to {MOST_ACTORS:,} with commas between, as in --actors 1,8,64"
        )
    return counts


def _check(config: RunConfig) -> None:
    open_store(config.store)
    if config.distribution.policy != _POLICY or config.distribution.roles:
        raise ConfigError(
            f"distribution.policy = '{config.distribution.policy}': capacity is predicted for {_POLICY} alone, with "
            f"any number of --learners; leave it out. `penstock plan` says what other policies send"
        )
    if config.distribution.quorum < 1.0:
        raise ConfigError(
            f"distribution.quorum = {config.distribution.quorum:g}: capacity is predicted for rounds that wait for all "
            f"their shards; leave it out"
        )
    check_distribution(config)
    if config.environment.tiles % config.distribution.act_tasks:
        raise ConfigError(
            f"environment: {config.environment.tiles} tiles for distribution.act_tasks = "
            f"{config.distribution.act_tasks}; choose a number of environments that gives every actor as many tiles"
        )


def _tiles_per_actor(config: RunConfig) -> int:
    return config.environment.tiles // config.distribution.act_tasks
