"""Compares settings of annealing on a synthetic block of Ariane133's size, never on Ariane133 itself.

    python -m benchmarks.placing.annealing [--moves 100000] [--seeds 4] [--first 0.001 ...] [--last 1e-6 ...]

Tries each first and last temperature and each number of placements of soft macros (`--soft`) with one seed, and the
best two with all seeds. Prints a line of JSON for each: the mean weighted cost after annealing, the cost of each seed,
and CPU seconds per seed. The last lines are the best one's curve: moves, temperature, cost, best cost so far.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass, field

from penstock.native.floorplan import (
    AnnealResult,
    BlockSpec,
    PlacementCost,
    anneal,
    create_placement_cost,
    generate_block,
)

BLOCK = BlockSpec(
    hard_macros=133, soft_macros=780, ports=495, columns=24, rows=21, nets_per_macro=13, hard_share=0.3, side=1433.0
)
FINALISTS = 2


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of annealing, as `anneal` takes them."""

    moves: int
    first_temperature: float
    last_temperature: float
    soft_every: int


@dataclass(slots=True)
class Trial:
    """The costs of one set of settings with several seeds."""

    settings: Settings
    results: list[AnnealResult] = field(default_factory=list)
    cpu_seconds: float = 0.0

    def cost(self) -> float:
        """Return the mean cost."""
        return statistics.fmean(result.cost for result in self.results)

    def add(self, start: PlacementCost, seeds: int) -> None:
        """Anneal with further seeds until there are `seeds` results, and print the figures."""
        begun = time.process_time()
        for seed in range(len(self.results), seeds):
            self.results.append(anneal(PlacementCost(start), points=20, seed=seed, **asdict(self.settings)))
        self.cpu_seconds += time.process_time() - begun
        costs = [result.cost for result in self.results]
        told = {"cost": self.cost(), "costs": costs, "cpu_seconds_a_seed": self.cpu_seconds / seeds}
        print(json.dumps({**asdict(self.settings), **told}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moves", type=int, default=100_000)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--first", type=float, nargs="+", default=[0.002, 0.001, 0.0005, 0.0002])
    parser.add_argument("--last", type=float, nargs="+", default=[1e-5, 1e-6])
    parser.add_argument("--soft", type=int, nargs="+", default=[10, 50], help="Placements of soft macros on the way.")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        start = create_placement_cost(*generate_block(folder, BLOCK))
    start.legalize(only_hard=True)
    start.place_soft_macros()
    trials = [
        Trial(Settings(given.moves, first, last, given.moves // soft))
        for first, last, soft in itertools.product(given.first, given.last, given.soft)
    ]
    for trial in trials:
        trial.add(start, 1)
    trials = sorted(trials, key=Trial.cost)[:FINALISTS]
    for trial in trials:
        trial.add(start, given.seeds)
    for moves, temperature, cost, best in min(trials, key=Trial.cost).results[0].curve:
        print(json.dumps({"moves": moves, "temperature": temperature, "cost": cost, "best": best}))


if __name__ == "__main__":
    main()
