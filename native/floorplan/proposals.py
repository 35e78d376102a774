"""Proposals of annealing: how the next change of a placement is drawn."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from penstock.native.floorplan.placement_cost import PlacementCost

_KINDS, _NATIVE = 10, 13  # fields that are chances, and those that the native search takes


@dataclass(frozen=True, slots=True)
class Proposals:
    """Chances of each kind of change, relative to each other, and how strongly the guided kinds follow costs.

    A guided kind draws a place with a chance in proportion to exp(-strength * cost / temperature): of the wirelength of
    the macro's nets there and, for soft macros, of the density that it adds. A strength of 0 draws every place alike, 1
    as the heat bath of that part of the cost would (Geman and Geman, 1984).

    Raises:
        ValueError: A number below 0 or not finite, or no chance above 0.
    """

    swap: float = 0.0
    """Two hard macros exchange their places."""
    shift: float = 0.0
    """A hard macro moves to one of the four next cells."""
    flip: float = 0.0
    """A hard macro is mirrored."""
    move: float = 0.0
    """A hard macro moves to any cell."""
    shuffle: float = 0.0
    """Four hard macros exchange their places."""
    soft_shift: float = 0.0
    """A soft macro moves by at most two columns and rows."""
    soft_swap: float = 0.0
    """Two soft macros exchange their places."""
    guided_soft: float = 0.0
    """A soft macro moves to a cell drawn by its costs."""
    guided_move: float = 0.0
    """A hard macro moves to a cell drawn by its costs."""
    guided_swap: float = 0.0
    """A hard macro exchanges its place with one drawn by the costs of the first."""
    soft_wire: float = 0.0
    """Strength of the wirelength of a soft macro."""
    hard_wire: float = 0.0
    """Strength of the wirelength of a hard macro."""
    soft_density: float = 0.0
    """Strength of the density that a soft macro adds."""
    hot: float = 0.3
    """First temperature times the number of macros that may move: a macro's part of the cost is as much smaller."""
    cold: float = 0.0009
    """Last temperature, likewise."""

    def __post_init__(self) -> None:
        """Refuse numbers that are no chances or strengths."""
        values = self.values()
        if not all(0 <= value < math.inf for value in values) or not sum(values[:_KINDS]) > 0:
            raise ValueError(f"proposals are {self}, expected numbers of at least 0, and a chance above 0")
        if not 0 < self.cold <= self.hot:
            raise ValueError(f"temperatures go from {self.hot} to {self.cold}, expected above 0 and not rising")

    @property
    def move_soft(self) -> bool:
        """Tell whether soft macros are moved like hard ones; else they are placed by forces."""
        return self.soft_shift + self.soft_swap + self.guided_soft > 0

    def values(self) -> list[float]:
        """Return chances and strengths in the order of the fields, as the native search takes them."""
        return [float(getattr(self, field.name)) for field in fields(self)[:_NATIVE]]


PUBLISHED = Proposals(swap=0.24, shift=0.24, flip=0.04, move=0.24, shuffle=0.24)
"""The published moves of hard macros; soft macros are placed by forces."""
UNIFORM = Proposals(
    swap=0.0442, shift=0.0181, flip=0.0177, move=0.332, shuffle=0.0816, soft_shift=0.165, soft_swap=0.341,
    hot=0.101, cold=0.0016,
)  # fmt: skip
"""Hard and soft macros, no place drawn by what it costs; learned like `GUIDED`, for as long, on the same blocks."""
GUIDED = Proposals(
    swap=0.0236, shift=0.0454, flip=0.0149, move=0.0202, shuffle=0.0418, soft_shift=0.091, soft_swap=0.174,
    guided_soft=0.158, guided_move=0.367, guided_swap=0.0635, soft_wire=0.238, hard_wire=0.0521,
    soft_density=0.0555, hot=0.0672, cold=0.00118,
)  # fmt: skip
"""Hard and soft macros, places drawn by costs: learned (benchmarks/placing/proposals.py) on generated blocks whose
soft macros have up to a quarter of the area."""
UNIFORM_FULL = Proposals(
    swap=0.0301, shift=0.0463, flip=0.0054, move=0.169, shuffle=0.163, soft_shift=0.26, soft_swap=0.326,
    hot=0.102, cold=0.000746,
)  # fmt: skip
"""Like `UNIFORM`, learned on blocks whose soft macros have up to three quarters of the area."""
GUIDED_FULL = Proposals(
    swap=0.106, shift=0.148, flip=0.00224, move=0.0166, shuffle=0.00297, soft_shift=0.0603, soft_swap=0.239,
    guided_soft=0.33, guided_move=0.0681, guided_swap=0.0265, soft_wire=0.376, hard_wire=0.00635,
    soft_density=0.0949, hot=0.0946, cold=0.00553,
)  # fmt: skip
"""Like `GUIDED`, learned on those blocks."""
_MOST_SOFT_SHARE = 0.25
"""Soft macros have at most this share of the area of the blocks on which `GUIDED` and `UNIFORM` were learned."""
_KINDS_OF_PROPOSALS = {
    "published": (PUBLISHED, PUBLISHED),
    "uniform": (UNIFORM, UNIFORM_FULL),
    "guided": (GUIDED, GUIDED_FULL),
}


def proposals_for(plc: PlacementCost, kind: Literal["published", "uniform", "guided"] = "guided") -> Proposals:
    """Return the proposals of a kind that were learned on blocks like this one.

    Args:
        plc: The block; the share of its area that soft macros have decides.
        kind: published: hard macros' moves of Circuit Training; uniform: soft macros move too; guided: places are drawn
            by what they cost.

    Raises:
        ValueError: There is no such kind.
    """
    if kind not in _KINDS_OF_PROPOSALS:
        raise ValueError(f"kind is {kind!r}, expected one of {', '.join(_KINDS_OF_PROPOSALS)}")
    width, height = plc.get_canvas_width_height()
    sizes = [plc.get_node_width_height(macro) for macro in plc.get_macro_indices() if plc.is_node_soft_macro(macro)]
    share = sum(across * up for across, up in sizes) / (width * height)
    return _KINDS_OF_PROPOSALS[kind][share > _MOST_SOFT_SHARE]
