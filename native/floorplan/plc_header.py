"""The comments that a saved placement begins with."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from native.floorplan.placement_cost import PlacementCost


def plc_header(plc: PlacementCost, user_comments: str) -> str:
    """Settings, costs and counts, one comment a line; what reads placements takes the settings from here."""
    columns, rows = plc.get_grid_num_columns_rows()
    congestion_columns, congestion_rows = plc.get_congestion_grid_num_columns_rows()
    width, height = plc.get_canvas_width_height()
    across, up = plc.get_routes_per_micron()
    macro_across, macro_up = plc.get_macro_routing_allocation()
    wirelength_cost, density_cost, congestion_cost = plc.get_costs()
    hard, soft = plc.get_hard_macros_count(), plc.get_soft_macros_count()
    hard_pins, soft_pins = plc.get_hard_macro_pins_count(), plc.get_soft_macro_pins_count()
    lines = [
        "Placement file for Circuit Training",
        f"Source input file(s) : {plc.get_source_filename()}",
        f"Columns : {columns}  Rows : {rows}",
        f"Congestion Columns : {congestion_columns}  Congestion Rows : {congestion_rows}",
        f"Width : {_shortest(width)}  Height : {_shortest(height)}",
        f"Area (stdcell+macros) : {plc.get_area()}",
        f"Wirelength : {plc.get_wirelength():.3f}",
        f"Wirelength cost : {wirelength_cost:.4f}",
        f"Congestion cost : {congestion_cost:.4f}",
        f"Density cost : {density_cost:.4f}",
        f"Fake net cost : {plc.get_fake_net_cost():.4f}",
        f"Project : {plc.get_project_name()}",
        f"Block : {plc.get_block_name()}",
        f"Routes per micron, hor : {across:.3f}  ver : {up:.3f}",
        f"Routes used by macros, hor : {macro_across:.3f}  ver : {macro_up:.3f}",
        f"Smoothing factor : {_shortest(plc.get_congestion_smooth_range())}",
        f"Overlap threshold : {_shortest(plc.get_overlap_threshold())}",
        *(f"Blockage : {' '.join(map(_shortest, blockage))}" for blockage in plc.get_blockages()),
        "",
        "Counts of node types:",
        f"HARD_MACROs     : {hard:9d}",
        f"HARD_MACRO_PINs : {hard_pins:9d}",
        f"MACROs          : {hard + soft:9d}",
        f"MACRO_PINs      : {hard_pins + soft_pins:9d}",
        f"PORTs           : {plc.get_ports_count():9d}",
        f"SOFT_MACROs     : {soft:9d}",
        f"SOFT_MACRO_PINs : {soft_pins:9d}",
        f"STDCELLs        : {plc.get_stdcells_count():9d}",
        "",
        *(["User comments:", *user_comments.splitlines(), ""] if user_comments else []),
        "node_index x y orientation fixed",
    ]
    # A name with a line break in it stays one comment, and does not become a line of its own.
    return "".join(f"# {' '.join(line.splitlines())}".rstrip() + "\n" for line in lines)


def _shortest(value: float) -> str:
    """The shortest text that reads back as the same number; whole ones without a point."""
    return str(int(value)) if value == int(value) else repr(value)
