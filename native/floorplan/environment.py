"""Macro placement as an environment: blocks are prepared in a folder, and their environment is known under an id."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from penstock.native import _core, _floorplan
from penstock.native.compile.load import Library, cache_dir
from penstock.native.floorplan.files import write_text
from penstock.native.floorplan.placement_cost import PlacementCost
from penstock.native.registry.gymnasium_ids import register

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

_MOST_CELLS = 254
"""Columns and rows are encoded in a byte each, of which 255 says that a macro is not placed."""
_MOST_BLOCKS = 255


def load_environment(
    blocks: PlacementCost | Sequence[PlacementCost],
    environment_id: str | None = None,
    folder: str | os.PathLike[str] | None = None,
) -> Library:
    """Make an environment of a block, or of several: `native.make(environment_id, ...)` gives pools of it from then on.

    One hard macro is placed a step, in descending order of area; an action is a cell of the placement grid, and the
    mask in front of the observation says which are allowed. Behind it are bytes: which block it is, the number of
    macros placed (low byte first), then column and row of each in order, 255 while it is not placed. The reward comes
    at the end, when soft macros are placed by forces: minus wirelength, density and half the congestion cost
    (`wirelength_weight`, `density_weight`, `congestion_weight`), or -4 where no cell was left. Infos hold the costs,
    and `length`, the wirelength so far in um. `block` says which block an environment has: one number, or one for each.

    A pool's `environment["facts"]` has the netlist: `grid` (columns, rows); `nodes` `[n, 6]` (block; 0 placed by the
    agent, in that order, 1 soft, 2 fixed macro or group of ports; width, height, x and y over the canvas's); `edges`
    `[n, 4]` (block, the two nodes counted within it, weight).

    Args:
        blocks: Settings and fixed nodes are taken over; `create_placement_cost` has those of published episodes.
        environment_id: As Gymnasium wants it: `Floorplan-myblock-v0`; by default one that follows from the blocks.
        folder: Where the blocks are kept for this process; default: below the folder of compiled libraries.

    Raises:
        ValueError: A block has no free hard macro, the grid has more than 254 columns or rows, or blocks have different
            grids.
    """
    several = (blocks,) if isinstance(blocks, PlacementCost) else tuple(blocks)
    _check(several)
    texts = [(plc.netlist_text(), _fixed_start(plc)) for plc in several]
    digest = hashlib.sha256("\0".join(text for both in texts for text in both).encode()).hexdigest()[:16]
    kept = Path(folder) if folder is not None else cache_dir() / "blocks" / digest
    for number, (netlist, start) in enumerate(texts):
        own = kept / str(number)
        own.mkdir(parents=True, exist_ok=True)
        for name, text in (("netlist.pb.txt", netlist), ("start.plc", start)):
            _keep(own / name, text)
    library = Path(_floorplan.__file__)
    ids = _core.load_library(str(library), str(kept), environment_id or f"Floorplan-{digest}-v0")
    for name in ids:
        register(name)
    return Library(library, tuple(ids))


def _keep(path: Path, text: str) -> None:
    """Write a file that other processes may read, or write with the same text, just now."""
    part = path.with_name(f"{path.name}.{uuid4().hex}.part")
    write_text(part, text)
    part.replace(path)


def _check(blocks: Sequence[PlacementCost]) -> None:
    if not 1 <= len(blocks) <= _MOST_BLOCKS:
        raise ValueError(f"found {len(blocks)} blocks, expected 1 to {_MOST_BLOCKS}")
    first = blocks[0].get_grid_num_columns_rows()
    for plc in blocks:
        free = [m for m in plc.get_macro_indices() if not plc.is_node_soft_macro(m) and not plc.is_node_fixed(m)]
        columns, rows = plc.get_grid_num_columns_rows()
        name = plc.get_source_filename()
        if not free or max(columns, rows) > _MOST_CELLS:
            raise ValueError(
                f"{name}: found {len(free)} free hard macros on {columns} x {rows} cells, expected at least one macro "
                f"and at most {_MOST_CELLS} columns and rows"
            )
        if (columns, rows) != first:
            raise ValueError(
                f"{name}: found a grid of {columns} x {rows} cells, expected {first[0]} x {first[1]} as "
                f"{blocks[0].get_source_filename()} has: blocks of one pool need grids of the same size"
            )


def _fixed_start(plc: PlacementCost) -> str:
    """Return what every episode begins with as text, exact to the last bit: settings and fixed nodes."""
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
