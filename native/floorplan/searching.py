"""Searches for better placements: coordinate descent and simulated annealing, by the evaluator's own costs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.native.floorplan.proposals import PUBLISHED, Proposals

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.native.floorplan.placement_cost import PlacementCost

DEFAULT_WEIGHTS = (1.0, 1.0, 0.5)
"""Weights of wirelength, density and congestion."""


@dataclass(frozen=True, slots=True)
class AnnealResult:
    """The result of an annealing."""

    cost: float
    """Weighted, of the placement that it left."""
    proposed: int
    judged: int
    """Legal ones, whose costs were computed."""
    accepted: int
    curve: list[tuple[int, float, float, float]]
    """(moves judged, temperature, cost, best cost); the costs of soft macros as they last were placed."""


def descend(
    plc: PlacementCost,
    *,
    passes: int = 2,
    most_distance: int = 5,
    only_orientations: bool = False,
    place_soft: bool = True,
    least_gain: float = 0.001,
    seed: int = 0,
    weights: tuple[float, float, float] = DEFAULT_WEIGHTS,
) -> list[float]:
    """Run coordinate descent: each free hard macro, in random order, takes the best orientation and cell near its own.

    Args:
        plc: Changed in place.
        passes: At most so many; one that gains less than `least_gain` of the cost is the last.
        most_distance: In cells, Manhattan.
        only_orientations: Whether macros stay where they are.
        place_soft: Whether soft macros are placed again after each pass, and kept so if that is better.
        least_gain: See passes.
        seed: Of the order.
        weights: Of wirelength, density and congestion.

    Returns:
        The weighted cost at the start and after each pass.
    """
    _check_weights(weights)
    if passes < 0 or most_distance < 0:
        raise ValueError(f"passes is {passes} and most_distance {most_distance}, expected at least 0")
    return plc._descend(passes, most_distance, only_orientations, place_soft, least_gain, seed, weights)  # noqa: SLF001


def anneal(
    plc: PlacementCost,
    *,
    moves: int = 1_000_000,
    first_temperature: float | None = None,
    last_temperature: float | None = None,
    soft_every: int | None = None,
    points: int = 100,
    seed: int = 0,
    proposals: Proposals = PUBLISHED,
    weights: tuple[float, float, float] = DEFAULT_WEIGHTS,
    leave_last: bool = False,
    on_progress: Callable[[int, int], None] = lambda _, __: None,
) -> AnnealResult:
    """Anneal the free macros: by default the hard ones, by swap, shift, flip, move and shuffle.

    A move that would be illegal is not judged; legal means as in an episode, when soft macros are not placed yet. The
    layout left is the best one. Soft macros are placed by forces on the way and, where that is better, at the end; or,
    if `proposals` move them, they are annealed like hard ones. The same seed gives the same result. The defaults were
    the best of a few on a synthetic block of Ariane133's size (benchmarks/placing/annealing.py).

    Args:
        plc: Changed in place; its free hard macros must be placed.
        moves: To be judged.
        first_temperature: At the start, in units of the weighted cost; None: 0.0002, or what proposals that move soft
            macros say.
        last_temperature: At the end; between them temperatures are geometric. None: 1e-6, or likewise.
        soft_every: Moves between force-directed placements of the soft macros; 0 has one, at the end; None
            a fiftieth of all, at least 2,000; none where proposals move soft macros.
        points: Of the curve.
        seed: Of the moves.
        proposals: How changes are drawn.
        weights: Of wirelength, density and congestion.
        leave_last: Whether the layout left is the last one in place of the best: another annealing continues it at the
            temperature at which this one ends.
        on_progress: Called now and then with the numbers of moves judged and of all.
    """
    first_temperature, last_temperature = check_annealing(plc, proposals, weights, first_temperature, last_temperature)
    if soft_every is None:
        soft_every = 0 if proposals.move_soft else max(2000, moves // 50)
    if moves < 0 or soft_every < 0 or points < 1:
        raise ValueError(f"moves is {moves}, soft_every {soft_every} and points {points}, expected at least 0, 0 and 1")
    for macro in plc.get_macro_indices():
        if not plc.is_node_placed(macro):
            raise ValueError(f"macro {plc.get_node_name(macro)!r} is not placed; restore or legalise a placement first")
    found = plc._anneal(  # noqa: SLF001
        moves,
        first_temperature,
        last_temperature,
        soft_every,
        points,
        seed,
        proposals.values(),
        weights,
        leave_last,
        on_progress,
    )
    return AnnealResult(**found)


def check_annealing(
    plc: PlacementCost,
    proposals: Proposals,
    weights: tuple[float, float, float],
    first_temperature: float | None,
    last_temperature: float | None,
) -> tuple[float, float]:
    """Return the temperatures as `temperatures_of` does; ValueError as there, or if the weights are none."""
    _check_weights(weights)
    return temperatures_of(plc, proposals, first_temperature, last_temperature)


def temperatures_of(
    plc: PlacementCost, proposals: Proposals, first_temperature: float | None, last_temperature: float | None
) -> tuple[float, float]:
    """Return the temperatures given, or for None those that `proposals` have on this block.

    Raises:
        ValueError: They are not above 0, or rise.
    """
    first, last = 0.0002, 1e-6
    if proposals.move_soft:
        free = max(1, sum(not plc.is_node_fixed(macro) for macro in plc.get_macro_indices()))
        first, last = proposals.hot / free, proposals.cold / free
    first = first if first_temperature is None else first_temperature
    last = last if last_temperature is None else last_temperature
    if not 0 < last <= first < math.inf:
        raise ValueError(f"temperatures go from {first} to {last}, expected above 0 and falling or the same")
    return first, last


def _check_weights(weights: tuple[float, float, float]) -> None:
    if len(weights) != 3 or not all(0 <= weight < math.inf for weight in weights):
        raise ValueError(f"weights are {weights}, expected three numbers of at least 0")
