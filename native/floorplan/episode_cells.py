"""Turns a placement into the actions of an episode: the cells on which the hard macros stand, in placing order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.native.floorplan.placement_cost import PlacementCost

_SAME_PLACE = 1e-3
"""Part of a cell's diagonal by which a saved position may be off the cell's centre, since it has six digits."""


@dataclass(frozen=True, slots=True)
class EpisodeCells:
    """The actions of an episode that ends with the hard macros of a placement."""

    cells: tuple[int, ...]
    """One a macro, in placing order."""
    moved: tuple[int, ...]
    """Macros that the episode puts elsewhere, by their node: their place is off the cells' centres, or forbidden."""
    most_moved_um: float
    """The longest of these ways."""


def placing_order(plc: PlacementCost) -> list[int]:
    """Return the free hard macros in the order in which episodes place them: the largest first."""
    free = [m for m in plc.get_macro_indices() if not plc.is_node_soft_macro(m) and not plc.is_node_fixed(m)]
    return sorted(free, key=lambda macro: -_area(plc, macro))


def cells_of(plc: PlacementCost) -> EpisodeCells:
    """Return the cells that an episode takes to put the hard macros where they are; `plc` stays as it is.

    A macro goes to the allowed cell nearest to its centre, of equally near ones to the first: that is its own unless it
    stands off the cells' centres, or the episode's mask forbids that cell. Orientations are not part of an episode, nor
    are soft macros, which it places by forces.

    Raises:
        ValueError: A hard macro has no place, or finds no allowed cell once those before it are placed.
    """
    (columns, rows), (width, height) = plc.get_grid_num_columns_rows(), plc.get_canvas_width_height()
    across, up = width / columns, height / rows
    x, y = (np.arange(columns) + 0.5) * across, (np.arange(rows) + 0.5) * up
    centres = np.stack([np.tile(x, rows), np.repeat(y, columns)], 1)
    episode = PlacementCost(plc)
    episode.unplace_all_nodes()
    cells: list[int] = []
    ways: dict[int, float] = {}
    for macro in placing_order(plc):
        if not plc.is_node_placed(macro):
            raise ValueError(f"macro {plc.get_node_name(macro)!r} is not placed; an episode needs a whole placement")
        allowed = np.flatnonzero(episode.get_node_mask(macro))
        if not len(allowed):
            raise ValueError(
                f"macro {plc.get_node_name(macro)!r} finds no allowed cell after {len(cells)} others, expected a "
                "placement whose hard macros are legal by the rules of episodes; legalise it first"
            )
        away = np.linalg.norm(centres[allowed] - plc.get_node_location(macro), axis=1)
        nearest = int(away.argmin())
        cells.append(int(allowed[nearest]))
        episode.place_node(macro, cells[-1])
        if away[nearest] > _SAME_PLACE * np.hypot(across, up):
            ways[macro] = float(away[nearest])
    return EpisodeCells(tuple(cells), tuple(ways), max(ways.values(), default=0.0))


def _area(plc: PlacementCost, macro: int) -> float:
    width, height = plc.get_node_width_height(macro)
    return width * height
