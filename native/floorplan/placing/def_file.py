"""Writes a placement in the Design Exchange Format (DEF 5.8), for tools that read no .plc."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.native.floorplan.placement_cost import PlacementCost

UNITS_PER_UM = 2000
"""Database units of a micron."""
_UNNAMED = "unset_block"
_QUARTER_TURNS = {"E", "W", "FE", "FW"}
_SPECIAL = re.compile(r"[\s;()]")


def def_text(plc: PlacementCost) -> str:
    """Return a placement as DEF: die area, hard macros by their lower left corners, and ports as pins.

    Netlists name no library cells, so a component's is `macro_<width>x<height>`, in database units. Soft macros are
    clusters of cells and no components. A port that drives something is an input. What is not placed has no position.
    """
    width, height = (_units(side) for side in plc.get_canvas_width_height())
    components = [_component(plc, macro) for macro in plc.get_macro_indices() if not plc.is_node_soft_macro(macro)]
    ports = [node for node in range(plc.get_node_count()) if plc.get_node_type(node) == "PORT"]
    lines = [
        "VERSION 5.8 ;",
        'DIVIDERCHAR "/" ;',
        'BUSBITCHARS "[]" ;',
        f"DESIGN {_name(plc.get_block_name() or _UNNAMED)} ;",
        f"UNITS DISTANCE MICRONS {UNITS_PER_UM} ;",
        f"DIEAREA ( 0 0 ) ( {width} {height} ) ;",
        f"COMPONENTS {len(components)} ;",
        *components,
        "END COMPONENTS",
        f"PINS {len(ports)} ;",
        *(_pin(plc, port) for port in ports),
        "END PINS",
        "END DESIGN",
    ]
    return "\n".join(lines) + "\n"


def _component(plc: PlacementCost, macro: int) -> str:
    width, height = plc.get_node_width_height(macro)
    orientation = plc.get_macro_orientation(macro)
    # The width and height are those of the macro as it lies; a reader turns the cell by the orientation.
    across, up = (height, width) if orientation in _QUARTER_TURNS else (width, height)
    cell = f"macro_{_units(across)}x{_units(up)}"
    if not plc.is_node_placed(macro):
        return f"- {_name(plc.get_node_name(macro))} {cell} + UNPLACED ;"
    x, y = plc.get_node_location(macro)
    corner = f"( {_units(x - width / 2)} {_units(y - height / 2)} )"
    kept = "FIXED" if plc.is_node_fixed(macro) else "PLACED"
    return f"- {_name(plc.get_node_name(macro))} {cell} + {kept} {corner} {orientation} ;"


def _pin(plc: PlacementCost, port: int) -> str:
    name = _name(plc.get_node_name(port))
    direction = "INPUT" if plc.get_fan_outs_of_node(port) else "OUTPUT"
    line = f"- {name} + NET {name} + DIRECTION {direction} + USE SIGNAL"
    if plc.is_node_placed(port):
        x, y = plc.get_node_location(port)
        line += f" + FIXED ( {_units(x)} {_units(y)} ) N"
    return f"{line} ;"


def _units(length_um: float) -> int:
    return round(length_um * UNITS_PER_UM)


def _name(name: str) -> str:
    """Return a name that is one word of DEF."""
    return _SPECIAL.sub("_", name)
