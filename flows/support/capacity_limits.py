"""Finds, by the capacity model, how many actors saturate each part of the system, and how many learners keep up."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock.tasks.setup.planning.capacity_model import ACTING, LEARNING, REMEDIES, predict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.tasks.setup.planning.capacity_model import Prediction
    from penstock.tasks.setup.planning.operation_counts import Deployment
    from penstock.tasks.setup.planning.round_time import PartSeconds
    from penstock.tasks.setup.planning.traffic import Sizes

MOST_ACTORS = 1_000_000


def enough_learners(
    deployment_with: Callable[[int], Deployment], sizes: Sizes, parts: PartSeconds, constants: Mapping[str, float]
) -> int:
    """Return the least number of learners that learn a round in the time in which it is acted.

    Sums between learners take longer with more of them, so there may be none; then it is the power of two that learns
    fastest. A learner has a tile at least.

    Args:
        deployment_with: returns the deployment with a number of learners.
        sizes: of the messages of a round.
        parts: seconds of the parts of a round.
        constants: of the capacity model, by name.
    """

    def predicted(learners: int) -> Prediction:
        return predict(deployment_with(learners), sizes, parts, constants)

    most = deployment_with(1).tiles
    found = _least(lambda count: _keeps_up(predicted(count)), most)
    if found is not None:
        return found
    powers: list[int] = [1 << power for power in range(most.bit_length())]
    return min(powers, key=lambda count: _seconds(predicted(count), LEARNING))


@dataclass(frozen=True, slots=True)
class Limit:
    """The number of actors that saturate a part: with it, the part alone takes as long as acting does."""

    actors: int
    learners: int
    steps_per_second: float
    """The environment steps of which the part is capable with so many actors."""


def limits_of(
    deployment_of: Callable[[int], Deployment], sizes: Sizes, parts: PartSeconds, constants: Mapping[str, float]
) -> dict[str, Limit | None]:
    """Return for each part that acting may have to wait for the least number of actors that saturate it.

    More actors then add less and less, however fast the other parts are: learning takes no time here, except where it
    is the part in question. `learner` is learning together with its input. None stands for a part that a million actors
    do not saturate.

    Args:
        deployment_of: returns the deployment with a number of actors.
        sizes: of the messages of a round.
        parts: seconds of the parts of a round.
        constants: of the capacity model, by name.
    """
    learned, free = parts, replace(parts, update=0.0, update_row=0.0, take=0.0)
    found: dict[str, Limit | None] = {}
    for name in REMEDIES:
        if name in ACTING or name in LEARNING[1:]:
            continue
        names, taken = (LEARNING, learned) if name in LEARNING else ((name,), free)

        def limit(actors: int, names: tuple[str, ...] = names, taken: PartSeconds = taken) -> Limit | None:
            prediction = predict(deployment_of(actors), sizes, taken, constants)
            saturated = _seconds(prediction, names) >= _seconds(prediction, ACTING)
            return _limit(prediction, names) if saturated else None

        actors = _least(limit, MOST_ACTORS)
        found[name] = None if actors is None else limit(actors)
    return found


def _limit(prediction: Prediction, names: tuple[str, ...]) -> Limit:
    d = prediction.deployment
    rows = d.round_rows * d.rounds_per_stage
    return Limit(d.actors, d.learners, rows / _seconds(prediction, names))


def _keeps_up(prediction: Prediction) -> bool:
    return _seconds(prediction, LEARNING) <= _seconds(prediction, ACTING)


def _seconds(prediction: Prediction, names: tuple[str, ...]) -> float:
    return sum(prediction.parts[name] for name in names)


def _least(holds: Callable[[int], object], most: int) -> int | None:
    """Return the least number from 1 to `most` for which `holds` returns something true, as it does from there on."""
    below, above = 0, 1
    while not holds(above):
        if above == most:
            return None
        below, above = above, min(2 * above, most)
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (below, middle) if holds(middle) else (middle, above)
    return above
