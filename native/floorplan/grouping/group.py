"""Groups a flat netlist: reads, partitions, breaks up, merges and writes."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np

from penstock.native.floorplan.grouping.clustered import write_clustered
from penstock.native.floorplan.grouping.fixed_groups import NO_GROUP, fixed_groups
from penstock.native.floorplan.grouping.flat import CELL, read_flat
from penstock.native.floorplan.grouping.partitioning import partition, require_partitioner
from penstock.native.floorplan.grouping.spread import break_up, merge


def group_netlist(
    netlist: str | os.PathLike[str],
    placement: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    groups: int = 500,
    utilisation: float = 0.5,
    seed: int = 0,
    threads: int | None = None,
) -> tuple[Path, Path]:
    """Write `netlist.pb.txt.gz` and `initial.plc`, in which soft macros stand for a flat netlist's standard cells.

    The same files, settings and seed give the same bytes, whatever the number of threads.

    Args:
        netlist: The flat netlist: hard macros, ports, and standard cells with positions.
        placement: Settings, and positions where it has them: a placement of this netlist, or of one clustered from it.
        folder: Created if missing.
        groups: Groups that are made beside those around macros and ports, before wide ones are broken up and small
            ones merged.
        utilisation: Share of a soft macro's area that its cells have.
        seed: Of the nodes' order in the partitioning, whose algorithms are deterministic.
        threads: Of the partitioning; by default one for each core that this process may use.

    Raises:
        BlockFileError: A file cannot be read, the two do not belong together, or there is nothing to be grouped.
        ValueError: A setting that cannot be.
        ModuleNotFoundError: Mt-KaHyPar is not installed.
        ChildProcessError: Mt-KaHyPar failed.
    """
    for name, value, least in (("groups", groups, 0), ("seed", seed, 0), ("threads", threads, 1)):
        if value is not None and not least <= value < 2**31:
            raise ValueError(f"{name} is {value}, expected a whole number from {least} to {2**31 - 1}")
    if not 0 < utilisation <= 1:
        raise ValueError(f"utilisation is {utilisation}, expected a share above 0 and at most 1")
    require_partitioner()
    block = read_flat(netlist, placement)
    found = fixed_groups(block)
    around = int(found.max()) + 1
    free = int(((block.kinds == CELL) & (found == NO_GROUP)).sum())
    if groups > free:
        raise ValueError(
            f"groups is {groups}, but of the {len(block.cells())} standard cells in {netlist} only {free} are not next "
            f"to a macro or a port; ask for at most {free} groups"
        )
    if groups:
        cores = len(os.sched_getaffinity(0))
        parts = partition(block, found, around + groups, seed, cores if threads is None else threads)
        # A fixed group takes nobody in: what else is in its part is a group of its own.
        found = np.where((found == NO_GROUP) & (parts != NO_GROUP), parts + around, found)
    canvas = block.plc.get_canvas_width_height()
    length = math.sqrt(canvas[0] * canvas[1]) / 4
    few = len(found) // max(1, len(np.unique(found[found >= 0]))) // 4
    break_up(block, found, length)
    merge(block, found, few, length / 2)
    cells = block.cells()
    _, found[cells] = np.unique(found[cells], return_inverse=True)
    comment = (
        f"Grouped from {Path(netlist).name}, seed {seed}: {len(cells)} standard cells in "
        f"{int(found[cells].max()) + 1} soft macros."
    )
    return write_clustered(block, found, utilisation, folder, comment)
