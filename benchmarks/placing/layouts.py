"""Helps the methods that `placing.py` compares: costs of layouts, hard macros, layouts from cells."""

from __future__ import annotations

import numpy as np

from penstock.native.floorplan import PlacementCost


def weighted(plc: PlacementCost) -> float:
    """Return the weighted cost of episodes, from scratch."""
    return float(np.dot((1.0, 1.0, 0.5), plc.get_costs()))


def cheaper(one: PlacementCost, other: PlacementCost) -> PlacementCost:
    """Return the one that costs less."""
    return one if weighted(one) <= weighted(other) else other


def put(start: PlacementCost, macros: list[int], cells: list[int]) -> PlacementCost:
    """Return the placement with macros on cells and soft macros placed by forces."""
    plc = PlacementCost(start)
    plc.unplace_all_nodes()
    for macro, cell in zip(macros, cells, strict=True):
        plc.place_node(macro, cell)
    plc.place_soft_macros()
    return plc
