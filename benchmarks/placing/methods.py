"""Methods that `placing.py` compares: each takes a legal start and a budget of CPU seconds, and returns a placement.

All but `place` use one thread, and their own CPU time (`time.process_time`) to know when to stop. An annealing
with published moves asks for as many moves as follow from shorter trials, as `place` does. One that moves soft macros
too goes through its temperatures in segments, as `place` does, whose moves follow from the time that is left.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from benchmarks.placing.layouts import cheaper, put
from benchmarks.placing.rule import RulePolicy
from benchmarks.placing.searches import (
    efficient_place_search,
    polished,
    tuned_efficient_place_search,
    tuned_wire_mask_search,
    wire_mask_search,
)
from penstock.native.floorplan import (
    PlacementCost,
    Proposals,
    anneal,
    descend,
    place,
    placing_order,
    proposals_for,
)
from penstock.native.floorplan.placing.chains import moves_within
from penstock.native.floorplan.searching import temperatures_of

if TYPE_CHECKING:
    from collections.abc import Callable

    Method = Callable[[PlacementCost, float, int], PlacementCost]

RESTART_MOVES = 400_000
TRIAL_SHARE = 0.015  # of the budget, which the last trial but one takes at least; the last has four times its moves
SEGMENTS = 100  # of an annealing that moves soft macros, and measures its speed in each
SOFT_PLACEMENTS = 50  # on the way of an annealing with the published moves, as `anneal` has them by default


def annealed(start: PlacementCost, seconds: float, seed: int) -> PlacementCost:
    """Anneal once with the published moves, over the budget, of which shorter trials take a part."""
    begun = time.process_time()

    def took(moves: int) -> float:
        at = time.process_time()
        anneal(PlacementCost(start), moves=moves, soft_every=0, seed=seed)
        return time.process_time() - at

    at = time.process_time()
    PlacementCost(start).place_soft_macros()
    soft = time.process_time() - at
    fixed, moves = min(took(0), took(0)), 1024
    while (spent := max(took(moves) - fixed, 1e-6)) < TRIAL_SHARE * seconds:
        moves *= 2
    trials = [(moves, spent), (4 * moves, max(took(4 * moves) - fixed, 1e-6))]
    left = seconds - (time.process_time() - begun) - fixed
    moves = moves_within(max(0.0, left - SOFT_PLACEMENTS * soft), trials)
    if moves < 2000 * SOFT_PLACEMENTS:  # then there is one each 2000 moves
        moves = moves_within(left, [(done, spent + done / 2000 * soft) for done, spent in trials])
    plc = PlacementCost(start)
    anneal(plc, moves=moves, seed=seed)
    return plc


def annealed_in_segments(start: PlacementCost, seconds: float, seed: int, proposals: Proposals) -> PlacementCost:
    """Anneal once, over the budget: each segment gets its part of the time that is left, at the last one's speed."""
    begun, plc = time.process_time(), PlacementCost(start)
    first, last = temperatures_of(plc, proposals, None, None)

    def temperature(segment: int) -> float:
        return first * (last / first) ** (segment / SEGMENTS)

    moves, at = 1000, begun
    for segment in range(SEGMENTS):
        anneal(
            plc,
            moves=moves,
            first_temperature=temperature(segment),
            last_temperature=temperature(segment + 1),
            proposals=proposals,
            seed=SEGMENTS * seed + segment,
            leave_last=segment + 1 < SEGMENTS,
        )
        now = time.process_time()
        left = seconds - (now - begun)
        moves, at = max(1, int(moves / (now - at) * left / max(1, SEGMENTS - segment - 1))), now
    return plc


def start_alone(start: PlacementCost, _seconds: float, _seed: int) -> PlacementCost:
    """Search nothing: the placement that every method starts from."""
    return PlacementCost(start)


def annealing_with_restarts(start: PlacementCost, seconds: float, seed: int) -> PlacementCost:
    """Anneal with the published moves again and again, the best counts; the last run has the moves that are left."""
    begun, best, run, moves, speed = time.process_time(), start, 0, 20_000, 0.0
    while moves >= 20_000:
        at, plc = time.process_time(), PlacementCost(start)
        anneal(plc, moves=moves, seed=1000 * seed + run)
        best, run, now = cheaper(plc, best), run + 1, time.process_time()
        speed = max(speed, moves / (now - at))  # the first run is a short one, which measures it
        moves = min(RESTART_MOVES, int((seconds - (now - begun)) * speed))
    return best


def long_annealing(start: PlacementCost, seconds: float, seed: int) -> PlacementCost:
    """Anneal once with the published moves."""
    return annealed(start, seconds, seed)


def rule(start: PlacementCost, seconds: float, seed: int) -> PlacementCost:
    """Sample the untrained network, which is a hand-written rule, with little noise; the best episode counts."""
    return best_of_rule(start, seconds, seed, lambda plc: plc)


def rule_and_descent(start: PlacementCost, seconds: float, seed: int) -> PlacementCost:
    """Sample the rule, and descend from each of its placements by coordinates."""

    def refined(plc: PlacementCost) -> PlacementCost:
        descend(plc, passes=6, seed=seed)
        return plc

    return best_of_rule(start, seconds, seed, refined)


def rule_and_annealing(start: PlacementCost, seconds: float, seed: int) -> PlacementCost:
    """Anneal with the published moves from the best placement that the rule finds in a fifth of the time."""
    return annealed(rule(start, 0.2 * seconds, seed), 0.8 * seconds, seed)


def rule_and_polish(start: PlacementCost, seconds: float, seed: int) -> PlacementCost:
    """Sample the rule once and do what tuned searches end with: it shows what their search adds."""
    begun = time.process_time()
    with RulePolicy(start, seed) as policy:
        cells = policy()
    plc = start if cells is None else put(start, placing_order(start), cells)
    return polished(plc, seconds - (time.process_time() - begun), seed)


def best_of_rule(
    start: PlacementCost, seconds: float, seed: int, refine: Callable[[PlacementCost], PlacementCost]
) -> PlacementCost:
    """Return the best of the rule's placements, each refined."""
    begun, best, macros = time.process_time(), start, placing_order(start)
    with RulePolicy(start, seed) as policy:
        while True:
            cells = policy()
            if cells is not None:
                best = cheaper(refine(put(start, macros, cells)), best)
            if time.process_time() - begun >= seconds:
                return best


def random_proposals(start: PlacementCost, seconds: float, seed: int) -> PlacementCost:
    """Anneal hard and soft macros; no place is drawn by what it costs."""
    return annealed_in_segments(start, seconds, seed, proposals_for(start, "uniform"))


def guided_proposals(start: PlacementCost, seconds: float, seed: int) -> PlacementCost:
    """Anneal hard and soft macros, places drawn by costs, with learned chances and strengths: what ships."""
    return annealed_in_segments(start, seconds, seed, proposals_for(start))


def shipped(start: PlacementCost, seconds: float, seed: int) -> PlacementCost:
    """Run `place` with two threads for half the budget of wall time, which is the budget where two cores are free."""
    plc = PlacementCost(start)
    place(plc, minutes=seconds / 120, threads=2, seed=seed)
    return plc


METHODS: dict[str, Method] = {
    "start": start_alone,
    "rule": rule,
    "rule, descent": rule_and_descent,
    "rule once, polished as tuned searches are": rule_and_polish,
    "wire-mask search": wire_mask_search,
    "wire-mask search, tuned for these costs": tuned_wire_mask_search,
    "efficient-place search": efficient_place_search,
    "efficient-place search, tuned for these costs": tuned_efficient_place_search,
    "annealing from the rule": rule_and_annealing,
    "one annealing": long_annealing,
    "annealing with restarts": annealing_with_restarts,
    "random proposals, soft macros too": random_proposals,
    "guided proposals, soft macros too": guided_proposals,
    "guided proposals, `place` with two threads": shipped,
}
"""By the names of the table, in its order."""
