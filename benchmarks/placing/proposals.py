"""Learns how annealing draws its proposals, on generated blocks: chances, strengths and temperatures by CMA-ES.

A candidate is a `Proposals`; its return is minus the mean cost that annealing reaches with it in `--seconds` CPU
seconds on the blocks of a generation, each over the cost that the numbers before learning reached there. Blocks differ
in size, grid, share and seed; none of them is one that `placing.py` compares methods on. `--uniform` learns the same
without guided kinds, so that random proposals get the same care, and `--full` on fuller blocks. Needs `cmaes` (`pip
install cmaes`).

    python -m benchmarks.placing.proposals --generations 20 --out proposals.jsonl

Each generation is a line of JSON: the mean of the search distribution as a `Proposals`, the returns, their mean and the
best. The command continues a file that is there: it tells the optimiser the returns again that are in it.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from dataclasses import asdict, fields
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from cmaes import CMA

from penstock.native.floorplan import (
    BlockSpec,
    PlacementCost,
    Proposals,
    anneal,
    create_placement_cost,
    generate_block,
)

BLOCKS_PER_GENERATION = 3
UNINFORMED = Proposals(*[0.1] * 10, *[0.05] * 3)
"""Every kind as often as any other, and places drawn almost without regard to their costs: where learning begins."""
FIRST_SEED = 1000  # of generated blocks; `placing_blocks.py` has seeds below


def block(seed: int, folder: str, *, full: bool) -> PlacementCost:
    """Return a generated block, legalised, its soft macros placed by forces; a full one may have no free area."""
    rng = np.random.default_rng(seed)
    while True:
        spec = BlockSpec(
            hard_macros=int(np.exp(rng.uniform(np.log(10), np.log(80)))),
            soft_macros=int(np.exp(rng.uniform(np.log(30), np.log(300)))),
            ports=int(rng.integers(16, 300)),
            columns=int(rng.integers(12, 33)),
            rows=int(rng.integers(12, 33)),
            nets_per_macro=int(rng.integers(5, 15)),
            hard_share=(hard_share := float(rng.uniform(0.2, 0.45))),
            soft_share=float(rng.uniform(0.1, 0.97 - hard_share if full else 0.25)),
            side=float(rng.uniform(300, 2500)),
            seed=seed,
        )
        try:
            plc = create_placement_cost(*generate_block(f"{folder}/{seed}", spec))
        except ValueError:
            continue  # no legal placement of these macros on this grid: others are drawn
        if plc.legalize(only_hard=True):
            plc.place_soft_macros()
            return plc


def reached(start: PlacementCost, proposals: Proposals, seconds: float, seed: int) -> float:
    """Return the cost after annealing for about `seconds` CPU seconds, of which a trial takes a tenth."""
    trial, moves, begun = PlacementCost(start), 0, time.process_time()
    while time.process_time() - begun < seconds / 10:
        moves += anneal(trial, moves=1000, proposals=proposals, seed=seed + moves).judged
    speed = moves / (time.process_time() - begun)
    plc = PlacementCost(start)
    return anneal(plc, moves=max(1000, int(0.9 * seconds * speed)), proposals=proposals, seed=seed).cost


class Space:
    """The numbers of a `Proposals` that are learned, as logarithms; a number of 0 stays 0."""

    def __init__(self, first: Proposals) -> None:
        self.first = first
        self.names = [field.name for field in fields(first) if getattr(first, field.name) > 0]

    def start(self) -> np.ndarray[Any, Any]:
        """Return the point of the numbers before learning."""
        return np.log([getattr(self.first, name) for name in self.names])

    def proposals(self, point: np.ndarray[Any, Any]) -> Proposals:
        """Return what a point stands for."""
        values = dict(zip(self.names, np.exp(np.clip(point, -14.0, 5.0)).tolist(), strict=True))
        values["cold"] = min(values["cold"], values["hot"])
        return Proposals(**values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--uniform", action="store_true", help="Learn without guided kinds.")
    parser.add_argument("--full", action="store_true", help="Soft macros have up to three quarters of the area.")
    parser.add_argument("--generations", type=int, default=20)
    parser.add_argument("--population", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=1.2, help="CPU seconds of each annealing.")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    space = Space(Proposals(*[0.1] * 7) if given.uniform else UNINFORMED)
    optimiser = CMA(mean=space.start(), sigma=0.5, seed=1, population_size=given.population)
    known = [json.loads(line) for line in given.out.read_text().splitlines()] if given.out.exists() else []
    with tempfile.TemporaryDirectory() as folder:
        for generation in range(given.generations):
            points = [optimiser.ask() for _ in range(given.population)]
            if generation < len(known):
                returns = known[generation]["returns"]
            else:
                returns = measured(space, points, generation, given, folder)
            optimiser.tell([(point, -one) for point, one in zip(points, returns, strict=True)])
            if generation >= len(known):
                line = {
                    "generation": generation,
                    "mean_return": fmean(returns),
                    "best_return": max(returns),
                    "returns": returns,
                    "proposals": asdict(space.proposals(optimiser.mean)),
                }
                with given.out.open("a") as out:
                    out.write(json.dumps(line) + "\n")
                print(json.dumps({key: line[key] for key in ("generation", "mean_return", "best_return")}), flush=True)


def measured(space: Space, points: list[Any], generation: int, given: argparse.Namespace, folder: str) -> list[float]:
    """Return each candidate's return on the generation's blocks."""
    seconds = given.seconds
    seeds = [FIRST_SEED + generation * BLOCKS_PER_GENERATION + i for i in range(BLOCKS_PER_GENERATION)]
    starts = [block(seed, folder, full=given.full) for seed in seeds]
    scales = [reached(start, space.first, seconds, seed) for start, seed in zip(starts, seeds, strict=True)]
    returns = []
    for point in points:
        proposals = space.proposals(point)
        costs = [reached(start, proposals, seconds, seed) for start, seed in zip(starts, seeds, strict=True)]
        ratio = fmean(cost / scale for cost, scale in zip(costs, scales, strict=True))
        returns.append(-ratio if math.isfinite(ratio) else -10.0)
    return returns


if __name__ == "__main__":
    main()
