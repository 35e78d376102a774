"""Published searches over greedy placements, as `placing.py` compares them: WireMask-BBO's and EfficientPlace's.

Both place hard macros one by one on the cells that the wire mask prefers, and search over what it leaves open: the
first by a genome of points, the second in a tree of partial placements. EfficientPlace's policy is not learned here.
The code is ours, after the papers (Shi et al., 2023; Geng et al., 2024).

Each has a variant that is tuned for these costs. The papers have no soft macros; the searches place them by forces.
The variants anneal them around hard macros that stand, shortly to judge a placement and longer at the end, between
which hard macros descend by coordinates and orientations.
"""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.placing.layouts import cheaper, put, weighted
from benchmarks.placing.rule import RulePolicy
from penstock.native.floorplan import GUIDED, PlacementCost, Proposals, anneal, descend, placing_order

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Policy = Callable[[tuple[int, ...]], list[int] | None]
    """Continues a partial placement, the cells of the first macros, to all of them; None where one finds no cell."""
    Judge = Callable[[list[int]], tuple[PlacementCost, float]]
    """Returns the layout with hard macros on cells, and its cost."""

TIE_UM = 1e-9
FIRST_GENOMES_SHARE = 0.2  # of the time; the paper has 100 of about 1,000 evaluations
FRONTIERS = 5
EXPLORING = 0.016  # published: 0.1, where wirelengths are about 6
UPDATES = 3.75  # of the frontiers, for each macro; published: 480 for 128 macros
JUDGING_MOVES = 5_000
LAST_SHARE = 0.4  # of the time, for soft macros alone
SOFT_ALONE = Proposals(
    soft_shift=GUIDED.soft_shift, soft_swap=GUIDED.soft_swap, guided_soft=GUIDED.guided_soft,
    soft_wire=GUIDED.soft_wire, soft_density=GUIDED.soft_density, hot=GUIDED.hot, cold=GUIDED.cold,
)  # fmt: skip


def wire_mask_search(start: PlacementCost, seconds: float, seed: int) -> PlacementCost:
    """Search as WireMask-BBO's (1+1) evolutionary variant does, on these costs.

    A genome is a point for each hard macro. It is decoded greedily, macro by macro, in the order of the area of what
    their nets join: of the legal cells with the least increase of wirelength, the one nearest to the macro's point. The
    best of the first random genomes is the parent. A mutation exchanges two points. Soft macros are placed by forces,
    and the weighted cost decides, where the paper has wirelength alone.
    """
    macros, bare = by_joined_area(start), PlacementCost(start)
    bare.unplace_all_nodes()
    return evolve(start, macros, lambda: bare, lambda cells: by_forces(start, macros, cells), seconds, seed)


def tuned_wire_mask_search(start: PlacementCost, seconds: float, seed: int) -> PlacementCost:
    """Search likewise with soft macros annealed; the wire mask has all nets, since soft ones stand as in the best."""
    begun, macros = time.process_time(), by_joined_area(start)
    judging = SoftAnnealing(start, macros, seed)
    share = (1 - LAST_SHARE) * seconds
    found = evolve(start, macros, judging.without_hard_macros, judging.judge, share, seed)
    return polished(found, seconds - (time.process_time() - begun), seed)


def efficient_place_search(start: PlacementCost, seconds: float, seed: int) -> PlacementCost:
    """Search as EfficientPlace does, without its learned policy: cells of the least wire mask are drawn alike."""
    macros, rng = by_joined_area(start), random.Random(seed)
    return tree_search(
        len(macros),
        lambda first: greedy_cells(start, macros, first, rng),
        lambda cells: by_forces(start, macros, cells),
        seconds,
        rng,
    )


def tuned_efficient_place_search(start: PlacementCost, seconds: float, seed: int) -> PlacementCost:
    """Search likewise, with soft macros annealed, and the rule that knows all nets and the canvas's edge as policy."""
    begun, macros = time.process_time(), placing_order(start)
    judging = SoftAnnealing(start, macros, seed)
    with RulePolicy(start, seed) as policy:
        share = (1 - LAST_SHARE) * seconds
        found = tree_search(len(macros), policy, judging.judge, share, random.Random(seed))
    return polished(found, seconds - (time.process_time() - begun), seed)


def evolve(
    start: PlacementCost, macros: list[int], bare: Callable[[], PlacementCost], judge: Judge, seconds: float, seed: int
) -> PlacementCost:
    """Return the best placement of WireMask-BBO's evolutionary search.

    Args:
        start: is returned where no genome can be decoded.
        macros: to be placed, in this order.
        bare: returns the layout without them, of which a copy is filled.
        judge: of the cells that a genome stands for.
        seconds: CPU seconds.
        seed: of genomes and mutations.
    """
    begun, rng = time.process_time(), random.Random(seed)
    width, height = start.get_canvas_width_height()
    best, genome, cost = start, [], math.inf
    while (used := time.process_time() - begun) < seconds:
        if used < FIRST_GENOMES_SHARE * seconds or not genome:
            child = [(rng.uniform(0, width), rng.uniform(0, height)) for _ in macros]
        else:
            child = list(genome)
            i, j = rng.sample(range(len(child)), 2)
            child[i], child[j] = child[j], child[i]
        cells = decode(PlacementCost(bare()), macros, child)
        if cells is None:
            continue
        plc, found = judge(cells)
        if found < cost:
            genome, cost, best = child, found, plc
    return best


def by_joined_area(plc: PlacementCost) -> list[int]:
    """Return the free hard macros, those first whose nets join the most area, each net counted with all its macros."""
    areas: dict[int, float] = dict.fromkeys(placing_order(plc), 0.0)
    sizes = {macro: float(np.prod(plc.get_node_width_height(macro))) for macro in plc.get_macro_indices()}
    for driver in range(plc.get_node_count()):
        sinks = plc.get_fan_outs_of_node(driver) if plc.get_node_type(driver) != "MACRO" else []
        if not sinks:
            continue
        joined = {plc.get_ref_node_id(pin) for pin in (driver, *sinks)} & sizes.keys()
        area = sum(sizes[macro] for macro in joined)
        for macro in joined & areas.keys():
            areas[macro] += area
    return sorted(areas, key=lambda macro: -areas[macro])


def by_forces(start: PlacementCost, macros: list[int], cells: list[int]) -> tuple[PlacementCost, float]:
    """Put macros on cells and soft macros where forces place them; return the layout and its cost."""
    plc = put(start, macros, cells)
    return plc, weighted(plc)


def decode(plc: PlacementCost, macros: list[int], genome: list[tuple[float, float]]) -> list[int] | None:
    """Place macros on the cells that a genome stands for, and return these; None where one finds no legal cell."""
    columns, rows = plc.get_grid_num_columns_rows()
    width, height = plc.get_canvas_width_height()
    x = (np.arange(columns) + 0.5) * width / columns
    y = (np.arange(rows) + 0.5) * height / rows
    cells: list[int] = []
    for macro, (gene_x, gene_y) in zip(macros, genome, strict=True):
        least = least_cells(plc, macro)
        if not len(least):
            return None
        far = np.add.outer((y - gene_y) ** 2, (x - gene_x) ** 2).ravel()[least]
        cells.append(int(least[far.argmin()]))
        plc.place_node(macro, cells[-1])
    return cells


def greedy_cells(
    start: PlacementCost, macros: list[int], first: tuple[int, ...], rng: random.Random
) -> list[int] | None:
    """Continue a partial placement greedily by the wire mask; of equal cells, any."""
    plc, cells = PlacementCost(start), list(first)
    plc.unplace_all_nodes()
    for macro, cell in zip(macros, first, strict=False):
        plc.place_node(macro, cell)
    for macro in macros[len(first) :]:
        least = least_cells(plc, macro)
        if not len(least):
            return None
        cells.append(int(rng.choice(least)))
        plc.place_node(macro, cells[-1])
    return cells


def least_cells(plc: PlacementCost, macro: int) -> NDArray[np.intp]:
    """Return the legal cells with the least wirelength of a macro's nets."""
    legal = np.array(plc.get_node_mask(macro), bool)
    across, up = plc._wire_map(macro)  # noqa: SLF001  (a figure of searches, not of placements)
    lengths = np.where(legal, np.add.outer(up, across).ravel(), np.inf)
    return np.flatnonzero(legal & (lengths <= lengths.min() + TIE_UM))


@dataclass
class Partial:
    """A partial placement in the tree."""

    cells: tuple[int, ...] = ()
    visits: int = 0
    children: dict[int, Partial] = field(default_factory=dict)
    found: dict[int, float] = field(default_factory=dict)
    """Least cost by next cell; without cells whose own partial placement has been at the frontier."""

    @property
    def least(self) -> float:
        """Return the least cost that was found from here."""
        return min(self.found.values(), default=math.inf)

    @property
    def score(self) -> float:
        """Return the value for the frontier: rarely visited ones are worth more."""
        return -self.least + EXPLORING / math.sqrt(max(1, self.visits))


class Tree:
    """Partial placements that were visited, and the frontier from which rollouts begin."""

    def __init__(self) -> None:
        self.root = Partial()
        self.frontier = [self.root]
        self._been = {()}

    def add(self, cells: list[int], cost: float) -> None:
        """Count a rollout, at every partial placement on its way."""
        state = self.root
        for depth, cell in enumerate(cells):
            state.visits += 1
            after = tuple(cells[: depth + 1])
            if after not in self._been:
                state.found[cell] = min(cost, state.found.get(cell, math.inf))
            state = state.children.setdefault(cell, Partial(after))

    def update(self, depth: int) -> None:
        """Let the children of the frontier that are worth more than its worst member, or find room, be part of it.

        Args:
            depth: of whole placements, which are never at the frontier.
        """
        new = [
            (state, child)
            for state in self.frontier
            for child in state.children.values()
            if child.cells not in self._been and len(child.cells) < depth
        ]
        for parent, child in sorted(new, key=lambda pair: pair[1].least):
            worst = min(self.frontier, key=lambda state: state.score)
            if len(self.frontier) >= FRONTIERS:
                if child.score < worst.score:
                    break
                self.frontier.remove(worst)
            self.frontier.append(child)
            self._been.add(child.cells)
            parent.found.pop(child.cells[-1], None)


def tree_search(macros: int, policy: Policy, judge: Judge, seconds: float, rng: random.Random) -> PlacementCost:
    """Roll out a policy from the frontier of a tree again and again, while the frontier goes deeper; return the best.

    Args:
        macros: to be placed.
        policy: continues partial placements.
        judge: of whole ones.
        seconds: CPU seconds. Over this time there are as many updates as published over 5,000 rollouts.
        rng: chooses from the frontier.
    """
    begun, tree, updates = time.process_time(), Tree(), 0
    best: tuple[PlacementCost, float] | None = None
    while best is None or time.process_time() - begun < seconds:
        cells = policy(rng.choice(tree.frontier).cells)
        if cells is None:
            continue
        plc, cost = judge(cells)
        tree.add(cells, cost)
        if best is None or cost < best[1]:
            best = plc, cost
        due = UPDATES * macros * (time.process_time() - begun) / seconds
        while updates < due:
            tree.update(macros)
            updates += 1
    return best[0]


class SoftAnnealing:
    """Judges placements of hard macros with soft macros annealed, from where the best one so far has them."""

    def __init__(self, start: PlacementCost, macros: list[int], seed: int) -> None:
        self.best, self._cost = start, weighted(start)
        self._macros, self._seed = macros, seed

    def judge(self, cells: list[int]) -> tuple[PlacementCost, float]:
        """Put macros on cells and anneal soft macros shortly; return the layout and its cost."""
        plc = self.without_hard_macros()
        for macro, cell in zip(self._macros, cells, strict=True):
            plc.place_node(macro, cell)
        anneal(plc, moves=JUDGING_MOVES, proposals=SOFT_ALONE, seed=self._seed)
        cost = weighted(plc)
        if cost < self._cost:
            self.best, self._cost = plc, cost
        return plc, cost

    def without_hard_macros(self) -> PlacementCost:
        """Return the best layout with its soft macros alone, over which hard macros may be placed."""
        plc = PlacementCost(self.best)
        plc.set_place_hard_macros_over_cells(True)
        for macro in self._macros:
            plc.unplace_node(macro)
        return plc


def polished(plc: PlacementCost, seconds: float, seed: int) -> PlacementCost:
    """Anneal soft macros, let hard ones descend by coordinates and orientations, and anneal soft ones again."""
    begun, plc = time.process_time(), soft_annealed(plc, seconds / 2, seed)
    descend(plc, passes=2, place_soft=False, seed=seed)
    return soft_annealed(plc, seconds - (time.process_time() - begun), seed)


def soft_annealed(start: PlacementCost, seconds: float, seed: int) -> PlacementCost:
    """Anneal soft macros alone over the time, of which a short trial takes a part."""
    begun, trial = time.process_time(), PlacementCost(start)
    anneal(trial, moves=JUDGING_MOVES, proposals=SOFT_ALONE, seed=seed)
    taken = time.process_time() - begun
    plc, moves = PlacementCost(start), int(JUDGING_MOVES * (seconds / taken - 1))
    anneal(plc, moves=max(JUDGING_MOVES, moves), proposals=SOFT_ALONE, seed=seed)
    return cheaper(plc, trial)
