"""Compares the grouping of flat netlists with the published clusterings of the same netlists.

    python -m benchmarks.placing.grouping FOLDER [--only ariane133 ...] [--seeds 5] [--moves 100000] [--threads 1]

`PENSTOCK_TEST_DATA` names the folder with `flat/` and `ariane133/`. Each block is grouped by `penstock floorplan group`
in a process of its own, into FOLDER. Prints a line of JSON for each block: counts, areas and costs of what was grouped
at the flat positions, the same of the published clustering as its header has them, CPU and wall seconds, and
the largest resident memory of a process in MB. Ariane133's published clustering is there as a file: both are annealed
with each seed, in turns, and a line of JSON for each pair has the costs.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.placing.blocks import real_file
from penstock.native.floorplan import PlacementCost, anneal, open_placement

BLOCKS = ("ariane133", "ariane136", "mempool_tile")
PROGRAM = "from penstock.flows.cli.main import main; main()"
HEADER = {
    "soft_macros": "SOFT_MACROs",
    "soft_macro_pins": "SOFT_MACRO_PINs",
    "area": r"Area \(stdcell\+macros\)",
    "wirelength": "Wirelength",
    "wirelength_cost": "Wirelength cost",
    "density_cost": "Density cost",
    "congestion_cost": "Congestion cost",
}
SHARES = (0.1, 0.5, 0.9)


def published(placement: Path) -> dict[str, float]:
    """Return what a placement's header says of the netlist that it was written for."""
    text = placement.read_text()
    found = {name: re.search(rf"^# {said} +: +(\S+)", text, re.MULTILINE) for name, said in HEADER.items()}
    return {name: float(match[1]) for name, match in found.items() if match}


def facts(plc: PlacementCost) -> dict[str, float | list[float]]:
    soft = [node for node in plc.get_macro_indices() if plc.is_node_soft_macro(node)]
    areas = [math.prod(plc.get_node_width_height(node)) for node in soft]
    return {
        "soft_macros": len(soft),
        "soft_macro_pins": plc.get_soft_macro_pins_count(),
        "nets": plc.get_net_count(),
        "net_weight": plc.get_total_net_weight(),
        "area": plc.get_area(),
        "soft_areas": [round(float(value), 1) for value in (*np.quantile(areas, SHARES), max(areas))],
        **plc.evaluate(),
    }


def group(name: str, folder: Path, threads: int) -> dict[str, float]:
    """Group a block in a process of its own, and return what that took."""
    files = [str(real_file(f"flat/{name}{ending}")) for ending in (".pb.txt.gz", ".initial.plc")]
    command = [sys.executable, "-c", PROGRAM, "floorplan", "group", *files, str(folder), "--threads", str(threads)]
    begun = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)}: ended with {os.waitstatus_to_exitcode(status)}")
    return {
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "wall_seconds": round(time.perf_counter() - begun, 1),
        "peak_megabytes": round(usage.ru_maxrss / 1024),
        "threads": threads,
    }


def annealed(plc: PlacementCost, moves: int, seed: int) -> float:
    copy = PlacementCost(plc)
    if not copy.legalize(only_hard=True):
        raise SystemExit("no legal placement was found near the initial one")
    copy.place_soft_macros()
    return anneal(copy, moves=moves, seed=seed).cost


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder", type=Path, help="folder for the grouped blocks")
    parser.add_argument("--only", nargs="+", default=BLOCKS, choices=BLOCKS, help="the blocks to group")
    parser.add_argument("--moves", type=int, default=100_000, help="moves of each annealing")
    parser.add_argument("--seeds", type=int, default=5, help="seeds of annealing; 0: none is annealed")
    parser.add_argument("--threads", type=int, default=1, help="threads of the partitioning")
    arguments = parser.parse_args()
    for name in arguments.only:
        took = group(name, arguments.folder / name, arguments.threads)
        ours = open_placement(arguments.folder / name / "netlist.pb.txt.gz", arguments.folder / name / "initial.plc")
        said = published(real_file(f"flat/{name}.initial.plc"))
        print(json.dumps({"block": name, **took, "grouped": facts(ours), "published": said}), flush=True)
        if name != "ariane133" or not arguments.seeds:
            continue
        theirs = open_placement(real_file(f"{name}/netlist.pb.txt.gz"), real_file(f"{name}/initial.plc"))
        print(json.dumps({"block": name, "published": facts(theirs)}), flush=True)
        costs: dict[str, list[float]] = {"grouped": [], "published": []}
        for seed in range(1, arguments.seeds + 1):
            for which, plc in (("grouped", ours), ("published", theirs)):
                costs[which].append(annealed(plc, arguments.moves, seed))
            pair = {which: found[-1] for which, found in costs.items()}
            print(json.dumps({"block": name, "moves": arguments.moves, "seed": seed, **pair}), flush=True)
        print(json.dumps({"block": name, "mean": {which: statistics.fmean(found) for which, found in costs.items()}}))


if __name__ == "__main__":
    main()
