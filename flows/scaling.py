"""`penstock scale`: predictions for many actors and learners, from a trial of the configuration on this machine."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from storage.errors import ConfigError
from tasks.calibrate import timed
from tasks.capacity import REMEDIES, predict
from tasks.capacity_constants import Constant, with_assumptions
from tasks.capacity_counts import Deployment
from tasks.capacity_prices import cost
from tasks.policies import single_learner_coarse
from tasks.round_time import PartSeconds
from tasks.start import check_placement

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tasks.capacity import Prediction
    from tasks.config import ConfigT, RunConfig
    from tasks.cost import Sizes

_TRIED_TILES = 8
_POLICY = single_learner_coarse(1).name
MOST_ACTORS = 1_000_000


def scale(
    config: RunConfig,
    actors: str,
    *,
    learners: int = 1,
    actors_per_node: int = 8,
    assumed: Iterable[str] = (),
) -> dict[str, Any]:
    """What a configuration would reach with so many actors, one prediction for each number of them.

    Each actor has as many environments as one has in the configuration. Tries a few rounds, in another process.

    Args:
        config: whose policy is single_learner_coarse.
        actors: numbers of them, `1,8,64`.
        learners: that share the learning.
        actors_per_node: as many as share a node, and its cache.
        assumed: `NAME=VALUE` each, in place of constants, or of what a part of a round took.

    Returns:
        `rows` (a prediction each, see `as_row`), `constants` and `measured` (what they rest on).

    Raises:
        ConfigError: an argument or the configuration is wrong, or can't be tried; says what would be right.
    """
    counts, assumed = _counts(actors), list(assumed)
    with_assumptions(assumed, [_part(field.name, 1.0) for field in fields(PartSeconds)])
    if learners < 1 or actors_per_node < 1:
        raise ConfigError(
            f"--learners {learners}, --actors-per-node {actors_per_node}: expected whole numbers of 1 or more"
        )
    _check(config)
    sizes, parts = timed(tried_config(config), None)
    of_parts = {name: _part(name, value) for name, value in parts.to_json().items() if value is not None}
    constants = with_assumptions(assumed, of_parts.values())
    of_parts = {name: constants.pop(name) for name in of_parts}
    parts = PartSeconds(**{**parts.to_json(), **values(of_parts)})
    rows = []
    for count in counts:
        deployment = deployment_of(config, count, learners, actors_per_node)
        rows.append(as_row(predict(deployment, sizes, parts, values(constants)), sizes, values(constants)))
    measured = [facts(item) for item in (*_sizes(sizes), *of_parts.values())]
    return {"rows": rows, "measured": measured, "constants": [facts(item) for item in constants.values()]}


def values(constants: Mapping[str, Constant]) -> dict[str, float]:
    """The numbers alone."""
    return {name: constant.value for name, constant in constants.items()}


def facts(constant: Constant) -> dict[str, Any]:
    """A constant as a row of a table."""
    return {name: getattr(constant, name) for name in ("name", "value", "unit", "meaning", "source")}


_TRIED = "tried just now on this machine (tasks/calibration.py)"


def _part(name: str, value: float) -> Constant:
    """Of what was tried, a part of a round; tasks/round_time.py says what it is."""
    return Constant(name, value, "cores" if name == "cores" else "s", "a part of a round: tasks/round_time.py", _TRIED)


def _sizes(sizes: Sizes) -> list[Constant]:
    return [
        Constant(name, value, "", "a size of a round: tasks/cost.py", _TRIED) for name, value in sizes.to_json().items()
    ]


def tried_config(config: ConfigT, tiles: int = _TRIED_TILES) -> ConfigT:
    """The configuration with as many tiles as are enough to tell what a row costs from what a round does."""
    envs = config.environment.envs_per_tile * max(tiles, _tiles_per_actor(config))
    environment = config.environment.model_copy(update={"num_envs": envs})
    placement = config.placement.model_copy(update={"act_tasks": 1})
    return config.model_copy(update={"environment": environment, "placement": placement})


def deployment_of(config: RunConfig, actors: int, learners: int, actors_per_node: int) -> Deployment:
    """So many actors, each with the environments that one of the configuration has."""
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
        gpu=config.placement.device == "cuda",
    )


def as_row(prediction: Prediction, sizes: Sizes, constants: Mapping[str, float]) -> dict[str, Any]:
    """A prediction in units of a second, an hour and a stage."""
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
    if config.placement.policy != _POLICY or config.placement.roles:
        raise ConfigError(
            f"placement.policy = '{config.placement.policy}': capacity is predicted for {_POLICY} alone, with any "
            f"number of --learners; leave it out. `penstock plan` tells what other policies send"
        )
    if config.placement.quorum < 1.0:
        raise ConfigError(
            f"placement.quorum = {config.placement.quorum:g}: capacity is predicted for rounds that wait for all their "
            f"shards; leave it out"
        )
    check_placement(config)
    if config.environment.tiles % config.placement.act_tasks:
        raise ConfigError(
            f"environment: {config.environment.tiles} tiles for placement.act_tasks = {config.placement.act_tasks}; "
            f"choose a number of environments that gives every actor as many tiles"
        )


def _tiles_per_actor(config: RunConfig) -> int:
    return config.environment.tiles // config.placement.act_tasks
