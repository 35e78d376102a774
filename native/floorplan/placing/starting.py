"""Makes the placement that a search starts from legal, and judges legality."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from penstock.native.floorplan.placement_cost import PlacementCost

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SLACK_UM = 1e-5
"""Length that the evaluator allows a hard macro to stand out of the canvas or into another."""
_MOST_PROBLEMS = 20


def make_legal(plc: PlacementCost) -> bool:
    """Make the hard macros legal, and place the soft ones, where they are not; a legal placement stays as it is.

    Returns:
        Whether hard macros were legalised.

    Raises:
        ValueError: There are no macros, or no legal positions were found for the hard ones.
    """
    macros = plc.get_macro_indices()
    if not macros:
        raise ValueError("the netlist has no macros, so there is nothing to place; give the netlist of a block")
    hard = [macro for macro in macros if not plc.is_node_soft_macro(macro)]
    legal = all(map(plc.is_node_placed, hard)) and not legality_problems(plc)
    if not legal:
        given = PlacementCost(plc)
        if not plc.legalize(only_hard=True):
            # Near their own places some found none. From scratch they are packed, the largest first.
            given.unplace_all_nodes()
            if not given.legalize(only_hard=True):
                raise ValueError(_no_room(plc, hard))
            _take_hard(plc, given, hard)
    if not legal or not all(map(plc.is_node_placed, macros)):
        plc.place_soft_macros()
    return not legal


def legality_problems(plc: PlacementCost, allowed_um: float = 0.0) -> list[str]:
    """Return what makes a placement of hard macros illegal, in words: overlaps and what stands out of the canvas.

    Fixed macros are judged against free ones alone, since no search can move them.

    Args:
        plc: Hard macros that are not placed are left out.
        allowed_um: Length that is allowed beyond the evaluator's own rules, such as that of rounding.

    Returns:
        The first problems; empty for a legal placement.
    """
    hard = [m for m in plc.get_macro_indices() if not plc.is_node_soft_macro(m) and plc.is_node_placed(m)]
    if not hard:
        return []
    names = [plc.get_node_name(macro) for macro in hard]
    free = np.array([not plc.is_node_fixed(macro) for macro in hard])
    centres = np.array(plc.get_node_locations(hard))
    halves = np.array([plc.get_node_width_height(macro) for macro in hard]) / 2
    low, high = centres - halves, centres + halves
    canvas = np.array(plc.get_canvas_width_height())
    slack = _SLACK_UM + allowed_um
    out = ((low < -slack) | (high > canvas + slack)).any(axis=1) & free
    problems = [f"{names[i]} stands out of the canvas" for i in np.nonzero(out)[0].tolist()]
    most = max(plc.get_overlap_threshold(), _SLACK_UM) + allowed_um
    spacing = np.array(plc.get_macro_macro_spacing())
    for i in range(len(hard)):
        shared = _shared(low[i + 1 :], high[i + 1 :], low[i], high[i])
        meets = (shared + spacing > most).all(axis=1) & (free[i + 1 :] | free[i])
        problems += [f"{names[i]} and {names[i + 1 + j]} overlap" for j in np.nonzero(meets)[0].tolist()]
        if len(problems) > _MOST_PROBLEMS:
            return problems[:_MOST_PROBLEMS]
    for x0, y0, x1, y1, _ in plc.get_blockages():
        shared = _shared(low, high, np.array([x0, y0]), np.array([x1, y1]))
        meets = (shared > slack).all(axis=1) & free  # the overlap threshold is between macros alone
        problems += [f"{names[j]} is on a blockage" for j in np.nonzero(meets)[0].tolist()]
    return problems[:_MOST_PROBLEMS]


def rounding_um(plc: PlacementCost) -> float:
    """Return how far two edges can come together when positions are written with six digits, in um."""
    return float(10.0 ** (math.floor(math.log10(max(plc.get_canvas_width_height()))) - 5))


def unplaced_ports(plc: PlacementCost) -> int:
    """Return the number of ports without a position; what ties them is left out of costs."""
    nodes = range(plc.get_node_count())
    return sum(plc.get_node_type(node) == "PORT" and not plc.is_node_placed(node) for node in nodes)


def _shared(
    low: NDArray[np.float64], high: NDArray[np.float64], other_low: NDArray[np.float64], other_high: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the lengths that boxes share with one box, in x and y; below 0 where there is a gap."""
    return np.minimum(high, other_high) - np.maximum(low, other_low)


def _take_hard(plc: PlacementCost, other: PlacementCost, hard: list[int]) -> None:
    lines = []
    for macro in hard:
        x, y = other.get_node_location(macro)
        lines.append(f"{macro} {x!r} {y!r} {other.get_macro_orientation(macro)} {int(plc.is_node_fixed(macro))}\n")
    plc._restore("".join(lines), "positions")  # noqa: SLF001


def _no_room(plc: PlacementCost, hard: list[int]) -> str:
    width, height = plc.get_canvas_width_height()
    columns, rows = plc.get_grid_num_columns_rows()
    across, up = (max(plc.get_node_width_height(macro)[axis] for macro in hard) for axis in (0, 1))
    area = sum(math.prod(plc.get_node_width_height(macro)) for macro in hard)
    return (
        f"no legal positions were found for all {len(hard)} hard macros: they take {area / (width * height):.0%} of a "
        f"canvas of {width:g} x {height:g} um with {columns} x {rows} cells, and the largest are {across:g} um "
        f"wide and {up:g} um high; start from a legal placement, or give its header a larger canvas or a finer grid"
    )
