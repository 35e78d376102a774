"""Macro placement as an environment: a block's folder is prepared, and its environment compiled and loaded."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from native.floorplan.files import write_text
from native.load import Library, cache_dir, load

if TYPE_CHECKING:
    import os

    from native.floorplan.placement_cost import PlacementCost

_SOURCE = """#include <penstock/floorplan/environment.hpp>

struct Block{digest} : penstock::floorplan::Placing<{columns}, {rows}, {macros}> {{
  using Placing::Placing;
  static constexpr penstock::Info info{{.id = "{id}"}};
}};

PENSTOCK_LIBRARY(Block{digest})
"""


def load_environment(plc: PlacementCost, environment_id: str, folder: str | os.PathLike[str] | None = None) -> Library:
    """Make an environment of a block: `native.make(environment_id, ...)` gives pools of it from then on.

    One hard macro is placed a step, in descending order of area; an action is a cell of the placement grid, and the
    mask in front of the observation says which are allowed. Behind it are bytes: the number of macros placed (low byte
    first), then column and row of each in order, 255 while it is not placed. The reward comes at the end, when soft
    macros are placed by forces: minus wirelength, density and half the congestion cost (`wirelength_weight`,
    `density_weight`, `congestion_weight`), or -4 where no cell was left. Infos hold the costs, and `length`, the
    wirelength so far in um.

    Args:
        plc: Its settings and fixed nodes are taken over; `create_placement_cost` has those of published episodes.
        environment_id: As Gymnasium wants it: `Floorplan-myblock-v0`.
        folder: Where the block is kept, for this and later processes; default: below the folder of compiled libraries.

    Raises:
        ValueError: There is no free hard macro, or the grid has more than 254 columns or rows.
        CompileError: No compiler, or one that refuses.
    """
    macros = [m for m in plc.get_macro_indices() if not plc.is_node_soft_macro(m) and not plc.is_node_fixed(m)]
    columns, rows = plc.get_grid_num_columns_rows()
    if not macros or max(columns, rows) > 254:
        raise ValueError(
            f"found {len(macros)} free hard macros on {columns} x {rows} cells, expected at least one macro and at "
            f"most 254 columns and rows"
        )
    netlist, start = plc.netlist_text(), _start(plc)
    digest = hashlib.sha256(f"{netlist}\0{start}".encode()).hexdigest()[:16]
    kept = Path(folder) if folder is not None else cache_dir() / "blocks" / digest
    kept.mkdir(parents=True, exist_ok=True)
    write_text(kept / "netlist.pb.txt", netlist)
    write_text(kept / "start.plc", start)
    source = _SOURCE.format(digest=digest, columns=columns, rows=rows, macros=len(macros), id=environment_id)
    return load(source, resources=kept)


def _start(plc: PlacementCost) -> str:
    """Settings and fixed nodes, to the last bit."""
    across, up = plc.get_macro_macro_spacing()
    pairs = {
        "Columns : {}  Rows : {}": plc.get_grid_num_columns_rows(),
        "Congestion Columns : {}  Congestion Rows : {}": plc.get_congestion_grid_num_columns_rows(),
        "Width : {!r}  Height : {!r}": plc.get_canvas_width_height(),
        "Routes per micron, hor : {!r}  ver : {!r}": plc.get_routes_per_micron(),
        "Routes used by macros, hor : {!r}  ver : {!r}": plc.get_macro_routing_allocation(),
        "Macro spacing, hor : {!r}  ver : {!r}": (across, up),
        "Smoothing factor : {!r}": (plc.get_congestion_smooth_range(),),
        "Overlap threshold : {!r}": (plc.get_overlap_threshold(),),
    }
    lines = [f"# {form.format(*values)}" for form, values in pairs.items()]
    lines += [f"# Blockage : {' '.join(map(repr, blockage))}" for blockage in plc.get_blockages()]
    sizes = [plc.get_node_width_height(m) for m in plc.get_macro_indices() if plc.is_node_soft_macro(m)]
    if all(width == height for width, height in sizes):
        lines.append("# Soft macros : square")
    for node in range(plc.get_node_count()):
        if plc.get_node_type(node) != "MACRO_PIN" and plc.is_node_placed(node) and plc.is_node_fixed(node):
            x, y = plc.get_node_location(node)
            lines.append(f"{node} {x!r} {y!r} {plc.get_macro_orientation(node) or '-'} 1")
    return "\n".join([*lines, ""])
