"""Exact positions of a block's nodes, which a placement file with its six digits does not have."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.native.floorplan.placement_cost import PlacementCost

Positions: TypeAlias = tuple[tuple[int, float, float, str], ...]
"""(node, x and y of its centre in um, orientation or ""), in ascending order of nodes. JSON holds them exactly."""

_ELSEWHERE = {"MACRO_PIN", "PORT"}
"""Types of nodes that no search moves: a pin is where its macro is."""


def positions_of(plc: PlacementCost, nodes: Sequence[int] | None = None) -> Positions:
    """Return where nodes are: all that are placed, ports and pins left out, unless they are given."""
    if nodes is None:
        nodes = [
            node
            for node in range(plc.get_node_count())
            if plc.get_node_type(node) not in _ELSEWHERE and plc.is_node_placed(node)
        ]
    places = zip(nodes, plc.get_node_locations(nodes), map(plc.get_macro_orientation, nodes), strict=True)
    return tuple((node, x, y, orientation) for node, (x, y), orientation in places)


def put_at(plc: PlacementCost, positions: Positions) -> None:
    """Put nodes where `positions_of` found them, to the last bit; none is fixed or freed by that."""
    lines = [
        f"{node} {x!r} {y!r} {orientation or '-'} {int(plc.is_node_fixed(node))}\n"
        for node, x, y, orientation in positions
    ]
    plc._restore("".join(lines), "positions")  # noqa: SLF001


def weighted_cost(plc: PlacementCost, weights: Sequence[float]) -> float:
    """Return the weighted sum of wirelength, density and congestion costs, from scratch."""
    return sum(weight * cost for weight, cost in zip(weights, plc.get_costs(), strict=True))
