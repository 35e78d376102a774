"""The evaluator with its files: netlists are read, placements restored and saved."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from native._floorplan import BlockFileError, Evaluator
from native.floorplan.files import read_text, write_text
from native.floorplan.plc_header import plc_header

if TYPE_CHECKING:
    from collections.abc import Sequence

_EDGES = ("minx", "miny", "maxx", "maxy")


class PlacementCost(Evaluator):
    """Costs of macro placements, under the names that circuit_training's users know.

    Lengths are in um. Nodes are counted from 0 in the order of the netlist's file, a node called `__metadata__` left
    out; cells are `row * columns + column`, from the lower left. `docs/chip_placement.md` says what each cost is.
    A copy (`PlacementCost(other)`) shares the netlist and nothing else. One thread at a time.

    Raises:
        ValueError: A node, a cell, a position or a setting that cannot be.
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
        super().__init__([(file, read_text(file)) for file in files])
        self.source_filename = ",".join(files)
        self.set_macro_macro_spacing(macro_macro_x_spacing, macro_macro_y_spacing)

    def get_source_filename(self) -> str:
        """What was read, with commas between several files."""
        return self.source_filename

    def get_block_name(self) -> str:
        """The block's name."""
        return self.block_name

    def set_block_name(self, name: str) -> None:
        """Name the block, for the headers of saved placements."""
        self.block_name = name

    def get_project_name(self) -> str:
        """The project's name."""
        return self.project_name

    def set_project_name(self, name: str) -> None:
        """Name the project, for the headers of saved placements."""
        self.project_name = name

    def netlist_comments(self) -> dict[str, Any]:
        """Settings in the comments of the netlist's files; those that are there."""
        return self._netlist_comments()

    def placement_comments(self, filename: str | os.PathLike[str]) -> dict[str, Any]:
        """Settings in a placement's comments; those that are there. Nothing is changed."""
        return self._read_plc(read_text(filename), os.fspath(filename))

    def apply_comments(self, comments: dict[str, Any]) -> None:
        """Take over settings as `netlist_comments` and `placement_comments` give them; others stay."""
        for key, take in (
            ("canvas", self.set_canvas_size),
            ("grid", self.set_placement_grid),
            ("congestion_grid", self.set_congestion_grid),
            ("routes", self.set_routes_per_micron),
            ("macro_routes", self.set_macro_routing_allocation),
        ):
            if key in comments:
                take(*comments[key])
        if "smoothing" in comments:
            self.set_congestion_smooth_range(comments["smoothing"])
        if "overlap_threshold" in comments:
            self.set_overlap_threshold(comments["overlap_threshold"])
        if not self.get_blockages():
            for blockage in comments.get("blockages", []):
                self.create_blockage(*blockage)
        self.block_name = comments.get("block", self.block_name)
        self.project_name = comments.get("project", self.project_name)

    def restore_placement(self, filename: str | os.PathLike[str]) -> None:
        """Put the nodes of a .plc file where it says, fixed where it says; others stay as they are.

        Its settings are not taken over: `open_placement` does that.
        """
        self._restore(read_text(filename), os.fspath(filename))

    def save_placement(self, filename: str | os.PathLike[str], user_comments: str = "") -> None:
        """Write a .plc file: settings and costs as comments, then a line for each placed node."""
        write_text(filename, plc_header(self, user_comments) + self._plc_lines())

    def netlist_text(self) -> str:
        """The netlist as it was read, in the form that `PlacementCost` reads; comments are left out."""
        return self._netlist_text()

    def save_netlist(self, filename: str | os.PathLike[str]) -> None:
        """Write the netlist as it was read, as text, in gzip where the name ends in .gz; comments are left out."""
        write_text(filename, self.netlist_text())

    def evaluate(self) -> dict[str, float]:
        """Wirelength in um, and the three costs."""
        wirelength_cost, density_cost, congestion_cost = self.get_costs()
        return {
            "wirelength": self.get_wirelength(),
            "wirelength_cost": wirelength_cost,
            "density_cost": density_cost,
            "congestion_cost": congestion_cost,
        }


def open_placement(netlist_file: str | os.PathLike[str], plc_file: str | os.PathLike[str]) -> PlacementCost:
    """A finished placement, under the settings in its header (and in the netlist's comments, where that has none)."""
    plc = PlacementCost(netlist_file)
    plc.apply_comments(plc.netlist_comments())
    plc.apply_comments(plc.placement_comments(plc_file))
    plc.restore_placement(plc_file)
    return plc


def read_blockages(filename: str | os.PathLike[str]) -> list[list[float]]:
    """Blockages of a file with lines `x0 y0 x1 y1`, each with the rate 0.99, where nothing may be.

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
    """An evaluator as episodes are played on: canvas and grid from comments, everything else from here.

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
    """
    plc = PlacementCost(netlist_file, *macro_spacing)
    if square_soft_macros:
        plc.make_soft_macros_square()
    for blockage in blockages:
        plc.create_blockage(*blockage)
    sources = [plc.netlist_comments()] + ([plc.placement_comments(init_placement)] if init_placement else [])
    for comments in sources:
        plc.apply_comments({key: comments[key] for key in ("blockages", "canvas", "grid", "block") if key in comments})
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
