"""Runs Mt-KaHyPar on files, as `python -m penstock.native.floorplan.grouping.partitioner`."""

from __future__ import annotations

import sys
from pathlib import Path

import mtkahypar
import numpy as np

IMBALANCE = 0.3
"""Share by which a part may be larger than the mean, unless its fixed nodes alone are more."""


def main(graph: str, fixed: str, out: str, *numbers: str) -> None:
    """Partition a hypergraph in hMETIS's format, and write a line for each node with its part.

    Args:
        graph: The hypergraph.
        fixed: A line for each node with its part, -1 where it is free.
        out: The file for the parts.
        numbers: Number of parts, number of threads.
    """
    parts, threads = map(int, numbers)
    library = mtkahypar.initialize(threads, print_warnings=False)
    context = library.context_from_preset(mtkahypar.PresetType.DETERMINISTIC)
    context.set_partitioning_parameters(parts, IMBALANCE, mtkahypar.Objective.KM1)
    hypergraph = library.hypergraph_from_file(graph, context)
    kept = np.array(Path(fixed).read_text(encoding="ascii").split(), dtype=np.int64)
    sizes = np.bincount(kept[kept >= 0], minlength=parts)
    most = context.compute_max_block_weights(len(kept))
    context.set_individual_target_block_weights(np.maximum(most, sizes).tolist())
    hypergraph.add_fixed_vertices(kept.tolist(), parts)
    found = hypergraph.partition(context).get_partition()
    Path(out).write_text("".join(f"{part}\n" for part in found), encoding="ascii")


if __name__ == "__main__":
    main(*sys.argv[1:])
