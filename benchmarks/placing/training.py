r"""Compares training a macro placer with annealing, on one block and with the same CPU time.

    python -m benchmarks.placing.training [--netlist NETLIST --placement PLC] [--minutes 60] [--seeds 1 2 3 4 5] \
        [--anneal-rounds 0] [--out DIR]

For each seed, the script runs the complete `penstock train floorplan` for that many minutes, and then annealing for as
many CPU seconds as all processes of the training used. Both use the evaluator of the episodes; the same schedule places
soft macros. Annealing starts from the given placement, legalised, with its own defaults, which were best on another
block (`benchmarks/placing/annealing.py`). Prints a line of JSON per seed and finally the means. `--out` keeps runs,
placements, pictures and each half of a seed's figures. The same command resumes from there, so five hours of training
and as many of annealing may be split. Without a netlist, the synthetic block is used.

With `--anneal-rounds`, the learning rate falls to 0 in that many rounds. The number of rounds per hour depends on the
machine (1,700 with Ariane133 on two cores).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from penstock.native.floorplan import PlacementCost, anneal, create_placement_cost, draw, generate_block

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WEIGHTS = (1.0, 1.0, 0.5)
POLL_SECONDS = 2.0
ROUND_ROWS = 1024


def weighted(plc: PlacementCost) -> float:
    return sum(weight * cost for weight, cost in zip(WEIGHTS, plc.get_costs(), strict=True))


class Processes:
    """A process and all its descendants."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._seen: dict[tuple[int, float], float] = {}

    def seconds(self) -> float:
        """Return the CPU seconds so far; a process's time between the last poll and its end is not counted."""
        for process in self._all():
            try:
                spent = process.cpu_times()
                self._seen[process.pid, process.create_time()] = spent.user + spent.system
            except psutil.NoSuchProcess:
                continue
        return sum(self._seen.values())

    def kill(self) -> None:
        """Kill all processes at once; commits stand."""
        for process in self._all():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def _all(self) -> list[psutil.Process]:
        return [self._root, *self._root.children(recursive=True)]


def trained(
    netlist: Path, placement: Path, macros: int, seed: int, seconds: float, anneal_rounds: int, out: Path
) -> dict[str, Any]:
    """Train for `seconds`, then make the best placement again; the last stage may remain uncommitted."""
    name, store = f"seed-{seed}", str(out / "runs")
    # Restart an unfinished half from scratch: it may have used minutes on another machine.
    shutil.rmtree(out / "runs" / name, ignore_errors=True)
    blocks = f'[{{netlist = "{netlist}", placement = "{placement}"}}]'
    command = ["train", "floorplan", "--name", name, "--seed", str(seed), "--store", store, "--blocks", blocks]
    # A round has whole episodes, and about as many rows as in the preset.
    envs = max(8, ROUND_ROWS // macros // 8 * 8)
    command += ["--round-steps", str(macros), "--num-envs", str(envs), "--envs-per-tile", str(envs), "--lag", "1"]
    command += ["--anneal-rounds", str(anneal_rounds), "--max-stages", "100000", "--json"]
    penstock = [sys.executable, "-c", "from penstock.flows.cli.main import main; main()"]
    with (out / f"{name}.log").open("wb") as log:
        process = subprocess.Popen([*penstock, *command], stdout=log, stderr=log)
        all_of_it, started, spent = Processes(process.pid), time.monotonic(), 0.0
        while time.monotonic() - started < seconds and process.poll() is None:
            time.sleep(POLL_SECONDS)
            spent = all_of_it.seconds()
        if process.poll() is not None:
            raise SystemExit(f"training ended by itself; {log.name} says why")
        all_of_it.kill()
        process.wait()
    best = [*penstock, "floorplan", "best", name, str(out / name), "--store", store, "--greedy", "--json"]
    (found,) = json.loads(subprocess.run(best, check=True, capture_output=True, text=True).stdout)
    shown = subprocess.run(
        [*penstock, "show", name, "--store", store, "--json"], check=True, capture_output=True, text=True
    )
    steps = json.loads(shown.stdout)["stages"][-1]["env steps"]
    return {"cost": found["weighted_cost"], "cpu_seconds": spent, "env_steps": steps}


def kept(path: Path, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the figures, measured now or by an earlier run of this command."""
    if not path.exists():
        found = measure()
        path.write_text(json.dumps(found) + "\n", encoding="utf-8")
    return dict(json.loads(path.read_text(encoding="utf-8")))


def annealed(start: PlacementCost, seed: int, seconds: float, path: Path) -> dict[str, Any]:
    """Anneal with as many moves as fit into `seconds`."""
    moves = 20_000
    # Estimate twice: moves take less time when fewer are accepted, as in a longer annealing.
    for share in (0.1, 1.0):
        trial, begun = PlacementCost(start), time.process_time()
        anneal(trial, moves=moves, seed=seed)
        moves = max(20_000, int(moves * share * seconds / (time.process_time() - begun)))
    plc, begun = PlacementCost(start), time.process_time()
    anneal(plc, moves=moves, seed=seed)
    spent = time.process_time() - begun
    plc.save_placement(path)
    draw(plc, path.with_suffix(".png"))
    return {"cost": weighted(plc), "cpu_seconds": spent, "moves": moves}


def compare(
    netlist: Path, placement: Path, seeds: Sequence[int], seconds: float, anneal_rounds: int, out: Path
) -> None:
    start = create_placement_cost(netlist, placement)
    if not start.legalize(only_hard=True):
        raise SystemExit(f"{placement}: no legal placement near it, from which annealing could begin")
    start.place_soft_macros()
    macros = sum(not start.is_node_soft_macro(m) and not start.is_node_fixed(m) for m in start.get_macro_indices())
    print(json.dumps({"start": weighted(start)}))
    costs: dict[str, list[float]] = {"trained": [], "annealed": []}
    for seed in seeds:
        one = kept(
            out / f"trained-{seed}.json",
            lambda seed=seed: trained(netlist, placement, macros, seed, seconds, anneal_rounds, out),
        )
        other = kept(
            out / f"annealed-{seed}.json",
            lambda seed=seed, one=one: annealed(start, seed, one["cpu_seconds"], out / f"annealed-{seed}.plc"),
        )
        costs["trained"].append(one["cost"])
        costs["annealed"].append(other["cost"])
        print(json.dumps({"seed": seed, "trained": one, "annealed": other}), flush=True)
    print(json.dumps({kind: {"mean": statistics.fmean(all_), "best": min(all_)} for kind, all_ in costs.items()}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--netlist", type=Path)
    parser.add_argument("--placement", type=Path)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--anneal-rounds", type=int, default=0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        out = given.out or Path(folder)
        out.mkdir(parents=True, exist_ok=True)
        files = (given.netlist, given.placement) if given.netlist else generate_block(out / "block")
        compare(*files, given.seeds, 60.0 * given.minutes, given.anneal_rounds, out)


if __name__ == "__main__":
    main()
