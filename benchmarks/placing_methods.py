"""Methods that `placing.py` compares: each takes a legal start and a budget of CPU seconds, and returns a placement.

All use the same evaluator, one thread, and their own CPU time (`time.process_time`) to know when to stop. A search that
is one annealing asks for as many moves as follow from shorter trials, as `place` does.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import numpy as np
import torch

from penstock import native
from penstock.native.floorplan import (
    GUIDED,
    PUBLISHED,
    UNIFORM,
    PlacementCost,
    Proposals,
    anneal,
    descend,
    load_environment,
)
from penstock.native.floorplan.placing.chains import moves_within
from penstock.tasks.model.nn.placement_network import floorplan, init_floorplan
from penstock.tasks.specs import Facts

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Method = Callable[[PlacementCost, float, int], PlacementCost]

RESTART_MOVES = 400_000
NOISE = 0.05  # of the rule's sampling, next to its logits
TRIAL_SHARE = 0.015  # of the budget, which the last trial but one takes at least; the last has four times its moves
SOFT_PLACEMENTS = 50  # on the way of an annealing with the published moves, as `anneal` has them by default


def weighted(plc: PlacementCost) -> float:
    """Return the weighted cost of episodes, from scratch."""
    return float(np.dot((1.0, 1.0, 0.5), plc.get_costs()))


def cheaper(one: PlacementCost, other: PlacementCost) -> PlacementCost:
    """Return the one that costs less."""
    return one if weighted(one) <= weighted(other) else other


def hard_macros(plc: PlacementCost) -> list[int]:
    """Return the free hard macros, the largest first, as episodes place them."""
    free = [m for m in plc.get_macro_indices() if not plc.is_node_soft_macro(m) and not plc.is_node_fixed(m)]
    return sorted(free, key=lambda macro: -float(np.prod(plc.get_node_width_height(macro))))


def annealed(start: PlacementCost, seconds: float, seed: int, proposals: Proposals) -> PlacementCost:
    """Anneal once, over the budget, of which shorter trials take a part."""
    begun = time.process_time()

    def took(moves: int) -> float:
        at = time.process_time()
        anneal(PlacementCost(start), moves=moves, soft_every=0, proposals=proposals, seed=seed)
        return time.process_time() - at

    soft = 0.0
    if not proposals.move_soft:
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
    anneal(plc, moves=moves, proposals=proposals, seed=seed)
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
    return annealed(start, seconds, seed, PUBLISHED)


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
    return annealed(rule(start, 0.2 * seconds, seed), 0.8 * seconds, seed, PUBLISHED)


def best_of_rule(
    start: PlacementCost, seconds: float, seed: int, refine: Callable[[PlacementCost], PlacementCost]
) -> PlacementCost:
    """Return the best of the rule's placements, each refined."""
    torch.set_num_threads(1)
    begun, best = time.process_time(), start
    pool = native.make(load_environment(start).environment_ids[0], 1, num_threads=1)
    facts = Facts(pool.environment["facts"])
    columns, rows = (int(number) for number in facts["grid"])
    cells = columns * rows
    generator = torch.Generator().manual_seed(seed)
    params = init_floorplan(facts, 16, (64,), cells + 1, 0.01, generator)
    macros = hard_macros(start)
    with torch.inference_mode():
        while True:
            observation, _ = pool.reset(seed=seed)
            actions: list[int] = []
            for _ in macros:
                seen = torch.from_numpy(observation)
                logits = floorplan(params, facts, seen[:, cells:])[:, :cells]
                uniform = torch.rand(1, cells, generator=generator).clamp_min(1e-12)
                logits = logits - NOISE * torch.log(-torch.log(uniform))
                action = int(logits.masked_fill(seen[:, :cells] == 0, -torch.inf).argmax())
                actions.append(action)
                observation, _, terminated, *_ = pool.step(np.array([action]))
                if terminated[0]:
                    break
            plc = put(start, macros, actions)
            if plc is not None:
                best = cheaper(refine(plc), best)
            if time.process_time() - begun >= seconds:
                pool.close()
                return best


def put(start: PlacementCost, macros: list[int], cells: list[int]) -> PlacementCost | None:
    """Return the placement with macros on cells and soft macros placed by forces; None where some have no cell."""
    if len(cells) < len(macros):
        return None
    plc = PlacementCost(start)
    plc.unplace_all_nodes()
    for macro, cell in zip(macros, cells, strict=True):
        plc.place_node(macro, cell)
    plc.place_soft_macros()
    return plc


def wire_mask_search(start: PlacementCost, seconds: float, seed: int) -> PlacementCost:
    """Search as WireMask-BBO's (1+1) evolutionary variant does (Shi et al., 2023), on these costs.

    A genome is a point for each hard macro. It is decoded greedily, macro by macro: of the legal cells with the least
    increase of wirelength the one nearest to the macro's point. A mutation exchanges two points. Soft macros are
    placed by forces, and the weighted cost decides, where the paper has wirelength alone.
    """
    begun, rng = time.process_time(), random.Random(seed)
    macros = hard_macros(start)
    genome = [start.get_node_location(macro) for macro in macros]
    rng.shuffle(genome)
    best, cost = start, float("inf")
    while time.process_time() - begun < seconds:
        child = list(genome)
        if cost < float("inf"):
            i, j = rng.sample(range(len(child)), 2)
            child[i], child[j] = child[j], child[i]
        plc = decoded(start, macros, child)
        if plc is None or (found := weighted(plc)) > cost:
            if cost == float("inf"):
                rng.shuffle(genome)  # the first one that can be decoded is the parent
            continue
        genome, cost, best = child, found, plc
    return best


def decoded(start: PlacementCost, macros: list[int], genome: list[tuple[float, float]]) -> PlacementCost | None:
    """Place macros greedily by the wire mask; None where one finds no legal cell."""
    plc = PlacementCost(start)
    plc.unplace_all_nodes()
    columns, rows = plc.get_grid_num_columns_rows()
    width, height = plc.get_canvas_width_height()
    x = (np.arange(columns) + 0.5) * width / columns
    y = (np.arange(rows) + 0.5) * height / rows
    for macro, (gene_x, gene_y) in zip(macros, genome, strict=True):
        legal = np.array(plc.get_node_mask(macro), bool)
        if not legal.any():
            return None
        lengths = np.where(legal, wire_map(plc, macro), np.inf)
        far = np.add.outer((y - gene_y) ** 2, (x - gene_x) ** 2).ravel()
        least = lengths <= lengths.min() + 1e-9
        plc.place_node(macro, int(np.where(least, far, np.inf).argmin()))
    plc.place_soft_macros()
    return plc


def wire_map(plc: PlacementCost, macro: int) -> NDArray[np.float64]:
    """Return the wirelength of a macro's nets for each cell, up to a constant, in um."""
    across, up = plc._wire_map(macro)  # noqa: SLF001  (a figure of searches, not of placements)
    return np.add.outer(up, across).ravel()


def random_proposals(start: PlacementCost, seconds: float, seed: int) -> PlacementCost:
    """Anneal hard and soft macros; no place is drawn by what it costs."""
    return annealed(start, seconds, seed, UNIFORM)


def guided_proposals(start: PlacementCost, seconds: float, seed: int) -> PlacementCost:
    """Anneal hard and soft macros, places drawn by costs, with learned chances and strengths: what ships."""
    return annealed(start, seconds, seed, GUIDED)


METHODS: dict[str, Method] = {
    "start": start_alone,
    "rule": rule,
    "rule, descent": rule_and_descent,
    "wire-mask search": wire_mask_search,
    "annealing from the rule": rule_and_annealing,
    "one annealing": long_annealing,
    "annealing with restarts": annealing_with_restarts,
    "random proposals, soft macros too": random_proposals,
    "guided proposals, soft macros too": guided_proposals,
}
"""By the names of the table, in its order."""
