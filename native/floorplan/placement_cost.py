"""The evaluator with file access: reads netlists, restores and saves placements."""

from __future__ import annotations

import math
import os
import re
from itertools import takewhile
from typing import TYPE_CHECKING, TypedDict, cast

from penstock.native._floorplan import BlockFileError, Evaluator
from penstock.native.floorplan.files import read_netlist_text, read_text, write_text

if TYPE_CHECKING:
    from collections.abc import Sequence

_COUNT = re.compile(r"#\s*(HARD_MACROs|SOFT_MACROs|PORTs)\s*:\s*(\d+)\s*$")
_EDGES = ("minx", "miny", "maxx", "maxy")
_HEADER_COST = re.compile(r"#\s*(Wirelength|Density|Congestion) cost\s*:\s*(\d+(?:\.\d+)?)")


class BlockComments(TypedDict, total=False):
    """Settings in the comments of a netlist or a placement; a key is there if its comment is. Lengths are in um."""

    canvas: list[float]
    grid: list[int]
    congestion_grid: list[int]
    routes: list[float]
    macro_routes: list[float]
    smoothing: float
    overlap_threshold: float
    macro_spacing: list[float]
    square_soft_macros: bool
    blockages: list[list[float]]
    block: str
    project: str


class PlacementCost(Evaluator):
    """Costs of macro placements, under the names that circuit_training's users know.

    Lengths are in um. Nodes are counted from 0 in the order of the netlist's file, a node called `__metadata__` left
    out; cells are `row * columns + column`, from the lower left. `docs/chip_placement.md` defines each cost.
    A copy (`PlacementCost(other)`) shares the netlist and nothing else. One thread at a time. Methods that place, fix
    and turn nodes return True, or raise.

    Raises:
        ValueError: An invalid node, cell, position or setting.
        BlockFileError: A file that cannot be read; the message has file and line.
    """

    def __init__(
        self,
        netlist_file: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | PlacementCost,
        macro_macro_x_spacing: float = 0.0,
        macro_macro_y_spacing: float = 0.0,
    ) -> None:
        """Read a netlist: one file or several, as a list or with commas between them, in order as one netlist."""
        self.source_filename = ""
        self.project_name = "unset_project"
        self.block_name = "unset_block"
        if isinstance(netlist_file, PlacementCost):
            super().__init__(netlist_file)
            self.project_name, self.block_name = netlist_file.project_name, netlist_file.block_name
            self.source_filename = netlist_file.source_filename
            return
        if isinstance(netlist_file, str | os.PathLike):
            files = [part.strip() for part in os.fspath(netlist_file).split(",")]
        else:
            files = [os.fspath(part) for part in netlist_file]
        super().__init__([(file, read_netlist_text(file)) for file in files])
        self.source_filename = ",".join(files)
        self.set_macro_macro_spacing(macro_macro_x_spacing, macro_macro_y_spacing)

    def get_source_filename(self) -> str:
        """Return the files that were read, separated by commas."""
        return self.source_filename

    def get_block_name(self) -> str:
        """Return the block's name."""
        return self.block_name

    def set_block_name(self, name: str) -> None:
        """Name the block, for the headers of saved placements."""
        self.block_name = name

    def get_project_name(self) -> str:
        """Return the project's name."""
        return self.project_name

    def set_project_name(self, name: str) -> None:
        """Name the project, for the headers of saved placements."""
        self.project_name = name

    def netlist_comments(self) -> BlockComments:
        """Return the settings in the comments of the netlist's files; those that are there."""
        return self._netlist_comments()

    def placement_comments(self, filename: str | os.PathLike[str]) -> BlockComments:
        """Return the settings in a placement's comments; those that are there. Nothing is changed."""
        return self._read_plc(read_text(filename), os.fspath(filename))

    def header_comments(self, filename: str | os.PathLike[str]) -> BlockComments:
        """Return the settings in the header of a placement, which may be one of another netlist."""
        lines = read_text(filename).splitlines(keepends=True)
        header = "".join(takewhile(lambda line: not line.strip() or line.lstrip().startswith("#"), lines))
        return self._read_plc(header, os.fspath(filename))

    def header_costs(self, filename: str | os.PathLike[str]) -> dict[str, float]:
        """Return the costs in the header of a placement, as they were when it was saved; those that are there."""
        header = takewhile(lambda line: line.split() != ["#", "User", "comments:"], read_text(filename).splitlines())
        costs = (_HEADER_COST.fullmatch(line.strip()) for line in header)
        return {cost[1].lower(): float(cost[2]) for cost in costs if cost}

    def apply_comments(self, comments: BlockComments) -> None:
        """Take over settings as `netlist_comments` and `placement_comments` give them; others stay."""
        if "canvas" in comments:
            self.set_canvas_size(*comments["canvas"])
        if "grid" in comments:
            self.set_placement_grid(*comments["grid"])
        if "congestion_grid" in comments:
            self.set_congestion_grid(*comments["congestion_grid"])
        if "routes" in comments:
            self.set_routes_per_micron(*comments["routes"])
        if "macro_routes" in comments:
            self.set_macro_routing_allocation(*comments["macro_routes"])
        if "smoothing" in comments:
            self.set_congestion_smooth_range(comments["smoothing"])
        if "overlap_threshold" in comments:
            self.set_overlap_threshold(comments["overlap_threshold"])
        if "macro_spacing" in comments:
            self.set_macro_macro_spacing(*comments["macro_spacing"])
        if comments.get("square_soft_macros"):
            self.make_soft_macros_square()
        if not self.get_blockages():
            for blockage in comments.get("blockages", []):
                self.create_blockage(*blockage)
        self.block_name = comments.get("block", self.block_name)
        self.project_name = comments.get("project", self.project_name)

    def restore_placement(self, filename: str | os.PathLike[str]) -> bool:
        """Put the nodes of a .plc file at its positions, fixed if it fixes them; others stay as they are.

        Its settings are not taken over: `open_placement` does that. Returns True.
        """
        self._restore(read_text(filename), os.fspath(filename))
        return True

    def save_placement(self, filename: str | os.PathLike[str], user_comments: str = "") -> bool:
        """Write a .plc file: settings and costs as comments, then a line for each placed node. Returns True."""
        write_text(filename, _plc_header(self, user_comments) + self._plc_lines())
        return True

    def netlist_text(self) -> str:
        """Return the netlist as it was read, in the form that `PlacementCost` reads; comments are left out."""
        return self._netlist_text()

    def save_netlist(self, filename: str | os.PathLike[str]) -> None:
        """Write the netlist as it was read, as text, in gzip where the name ends in .gz; comments are left out."""
        write_text(filename, self.netlist_text())

    def evaluate(self) -> dict[str, float]:
        """Return the wirelength in um and the three costs."""
        wirelength_cost, density_cost, congestion_cost = self.get_costs()
        return {
            "wirelength": self.get_wirelength(),
            "wirelength_cost": wirelength_cost,
            "density_cost": density_cost,
            "congestion_cost": congestion_cost,
        }


def _check_counts(plc: PlacementCost, placement: str | os.PathLike[str]) -> None:
    """Refuse a placement whose header counts other macros or ports than the netlist has; it may count none.

    Raises:
        BlockFileError: Names the file, its count and the netlist's.
    """
    expected = {
        "HARD_MACROs": plc.get_hard_macros_count(),
        "SOFT_MACROs": plc.get_soft_macros_count(),
        "PORTs": plc.get_ports_count(),
    }
    for number, line in enumerate(read_text(placement).splitlines(), 1):
        if not line.startswith("#") or line[1:].split() == ["User", "comments:"]:
            break
        found = _COUNT.match(line)
        if found and int(found[2]) != expected[found[1]]:
            raise BlockFileError(
                f"{placement}:{number}: the header counts {found[2]} {found[1]}, and the netlist has "
                f"{expected[found[1]]}; this is the placement of another block, give this one's"
            )


def open_placement(netlist_file: str | os.PathLike[str], plc_file: str | os.PathLike[str]) -> PlacementCost:
    """Open a finished placement, with the settings in its header, or else in the netlist's comments.

    Nodes without a row in it stay where the netlist has them.

    Raises:
        BlockFileError: A file of another form, or the placement of another block.
    """
    plc = PlacementCost(netlist_file)
    _check_counts(plc, plc_file)
    plc.apply_comments({**plc.netlist_comments(), **plc.placement_comments(plc_file)})
    plc.restore_placement(plc_file)
    return plc


def read_blockages(filename: str | os.PathLike[str]) -> list[list[float]]:
    """Read the blockages of a file with lines `x0 y0 x1 y1`, each with the rate 0.99, where nothing may be.

    Raises:
        BlockFileError: A line of another form.
    """
    blockages = []
    for number, line in enumerate(read_text(filename).splitlines(), 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        try:
            x0, y0, x1, y1 = map(float, words)
            if not all(map(math.isfinite, (x0, y0, x1, y1))):
                raise ValueError  # noqa: TRY301  (as a word that is no number)
        except ValueError:
            raise BlockFileError(
                f"{filename}:{number}: found {line[:60]!r}, expected four numbers: {' '.join(_EDGES)}"
            ) from None
        blockages.append([x0, y0, x1, y1, 0.99])
    return blockages


def create_placement_cost(
    netlist_file: str | os.PathLike[str],
    init_placement: str | os.PathLike[str] | None = None,
    *,
    blockages: Sequence[Sequence[float]] = (),
    routes_per_micron: tuple[float, float] = (70.33, 74.51),
    macro_routes: tuple[float, float] = (51.79, 51.79),
    smooth_range: float = 5.0,
    overlap_threshold: float = 0.004,
    macro_spacing: tuple[float, float] = (0.1, 0.1),
    square_soft_macros: bool = True,
    legacy_congestion_grid: bool = False,
    fixed_macros: str | None = None,
) -> PlacementCost:
    """Make the evaluator of episodes: canvas and grid from comments, everything else from here.

    Args:
        netlist_file: One file or several, with commas between them.
        init_placement: A .plc file that is restored, after which all ports are fixed.
        blockages: (x0, y0, x1, y1, rate); without any, those of the comments.
        routes_per_micron: Horizontal and vertical tracks that there are.
        macro_routes: Those that hard macros take.
        smooth_range: Cells over which congestion is smoothed.
        overlap_threshold: Shared length that is no overlap.
        macro_spacing: Gap that two hard macros need, in x or in y.
        square_soft_macros: Whether soft macros become squares.
        legacy_congestion_grid: Whether the congestion grid is the placement grid.
        fixed_macros: Pattern; hard macros whose whole name matches it are fixed.

    Raises:
        BlockFileError: A file of another form, or the placement of another block.
    """
    plc = PlacementCost(netlist_file, *macro_spacing)
    if init_placement:
        _check_counts(plc, init_placement)
    if square_soft_macros:
        plc.make_soft_macros_square()
    for blockage in blockages:
        plc.create_blockage(*blockage)
    comments = {**plc.netlist_comments(), **(plc.placement_comments(init_placement) if init_placement else {})}
    chosen = {key: value for key, value in comments.items() if key in {"blockages", "canvas", "grid", "block"}}
    plc.apply_comments(cast("BlockComments", chosen))
    plc.set_routes_per_micron(*routes_per_micron)
    plc.set_macro_routing_allocation(*macro_routes)
    plc.set_congestion_smooth_range(smooth_range)
    if not legacy_congestion_grid:
        width, height = plc.get_canvas_width_height()
        side = 2 * 1000 / sum(routes_per_micron)
        plc.set_congestion_grid(max(1, int(width / side)), max(1, int(height / side)))
    plc.set_overlap_threshold(overlap_threshold)
    plc.set_canvas_boundary_check(check=False)
    if init_placement:
        plc.restore_placement(init_placement)
        plc.fix_ports()
    for macro in plc.get_macro_indices():
        named = fixed_macros is not None and re.fullmatch(fixed_macros, plc.get_node_name(macro))
        if named and not plc.is_node_soft_macro(macro):
            plc.fix_node_coord(macro)
    return plc


def _plc_header(plc: PlacementCost, user_comments: str) -> str:
    """Return the comments that a saved placement begins with: settings, costs and counts, one per line."""
    columns, rows = plc.get_grid_num_columns_rows()
    congestion_columns, congestion_rows = plc.get_congestion_grid_num_columns_rows()
    width, height = plc.get_canvas_width_height()
    across, up = plc.get_routes_per_micron()
    macro_across, macro_up = plc.get_macro_routing_allocation()
    wirelength_cost, density_cost, congestion_cost = plc.get_costs()
    sizes = [plc.get_node_width_height(m) for m in plc.get_macro_indices() if plc.is_node_soft_macro(m)]
    spacing = plc.get_macro_macro_spacing()
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
        f"Routes per micron, hor : {_rounded(across)}  ver : {_rounded(up)}",
        f"Routes used by macros, hor : {_rounded(macro_across)}  ver : {_rounded(macro_up)}",
        f"Smoothing factor : {_shortest(plc.get_congestion_smooth_range())}",
        f"Overlap threshold : {_shortest(plc.get_overlap_threshold())}",
        # Ours alone: other tools take them for comments.
        *([f"Macro spacing, hor : {_shortest(spacing[0])}  ver : {_shortest(spacing[1])}"] if any(spacing) else []),
        *(["Soft macros : square"] if sizes and all(width == height for width, height in sizes) else []),
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


def _rounded(value: float) -> str:
    """Return three decimals, as other tools write them, unless the number has more."""
    text = f"{value:.3f}"
    return text if float(text) == value else _shortest(value)


def _shortest(value: float) -> str:
    """Return the shortest text that parses to the same number, without a point for whole numbers."""
    return str(int(value)) if value == int(value) else repr(value)
