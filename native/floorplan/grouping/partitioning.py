"""Partitioning of a netlist's hypergraph by Mt-KaHyPar, to the same bytes whatever the number of threads."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from penstock.native.floorplan.grouping.fixed_groups import NO_GROUP
from penstock.native.floorplan.grouping.flat import MACRO

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.native.floorplan.grouping.flat import FlatBlock

_PROCESS = "penstock.native.floorplan.grouping.partitioner"
"""A process of its own: the library keeps its threads until its process ends, and as many as it was first given."""


def require_partitioner() -> None:
    """Raise ModuleNotFoundError where Mt-KaHyPar is not installed."""
    if importlib.util.find_spec("mtkahypar") is None:
        raise ModuleNotFoundError(
            "grouping partitions with Mt-KaHyPar, which is not installed: pip install 'penstock-rl[floorplan]'"
        )


def partition(block: FlatBlock, fixed: NDArray[np.int64], parts: int, seed: int, threads: int) -> NDArray[np.int64]:
    """Return the part, from 0 to `parts` - 1, of each cell, port and pin, so that few nets are cut; -1 of macros.

    A node with a group in `fixed` is in the part of that number. The seed is one of the nodes' order, since the
    library's deterministic algorithms take none; seed 0 is the netlist's order.

    Raises:
        ChildProcessError: Mt-KaHyPar failed; the message has its own.
    """
    nodes = np.flatnonzero(block.kinds != MACRO)
    if seed:
        nodes = np.random.Generator(np.random.PCG64(seed)).permutation(nodes)
    number = np.zeros(len(block.kinds), dtype=np.int64)
    number[nodes] = np.arange(1, len(nodes) + 1)
    with tempfile.TemporaryDirectory(prefix="penstock-grouping-") as folder:
        graph, kept, out = (Path(folder) / name for name in ("graph", "fixed", "parts"))
        graph.write_text(_hypergraph(block, number, len(nodes)), encoding="ascii")
        kept.write_text("".join(f"{group}\n" for group in fixed[nodes].tolist()), encoding="ascii")
        given = [str(value) for value in (graph, kept, out, parts, threads)]
        done = subprocess.run([sys.executable, "-m", _PROCESS, *given], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            said = " ".join((done.stderr or done.stdout).split("\n")[-4:])
            raise ChildProcessError(f"Mt-KaHyPar ended with {done.returncode} on {len(nodes)} nodes: {said}")
        found = np.array(out.read_text(encoding="ascii").split(), dtype=np.int64)
    of_node = np.full(len(block.kinds), NO_GROUP, dtype=np.int64)
    of_node[nodes] = found
    return of_node


def _hypergraph(block: FlatBlock, number: NDArray[np.int64], nodes: int) -> str:
    """Return the nets in hMETIS's format, in which nodes are counted from 1. Weights do not count, as published."""
    sinks, first = number[block.sinks].tolist(), block.first_sink.tolist()
    lines = []
    for driver in np.flatnonzero(np.diff(block.first_sink)).tolist():
        pins = dict.fromkeys([int(number[driver]), *sinks[first[driver] : first[driver + 1]]])
        if len(pins) > 1:
            lines.append(" ".join(map(str, pins)))
    return "\n".join([f"{len(lines)} {nodes}", *lines, ""])
