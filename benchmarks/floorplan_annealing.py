"""Settings of annealing, tried on a made-up block of Ariane133's size, which is never Ariane133 itself.

    python benchmarks/floorplan_annealing.py [--moves 200000] [--seeds 2]

prints, for each pair of temperatures and each number of moves between placements of soft macros, the mean weighted cost
that annealing leaves, and its CPU seconds; then the curve of the best: moves, temperature, cost, best cost so far.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import time

from native.floorplan import BlockSpec, PlacementCost, anneal, create_placement_cost, generate_block

BLOCK = BlockSpec(
    hard_macros=133, soft_macros=780, ports=495, columns=24, rows=21, nets_per_macro=13, hard_share=0.3, side=1433.0
)
FIRST = (0.02, 0.005, 0.001)
LAST = (1e-5, 1e-6)
SOFT_SHARES = (0.0, 0.1)
"""Of all moves, between two placements of soft macros; 0: at the end alone."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moves", type=int, default=200_000)
    parser.add_argument("--seeds", type=int, default=2)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        start = create_placement_cost(*generate_block(folder, BLOCK))
    start.legalize(only_hard=True)
    start.place_soft_macros()
    found = {}
    for settings in itertools.product(FIRST, LAST, SOFT_SHARES):
        first, last, share = settings
        begun = time.process_time()
        results = [
            anneal(
                PlacementCost(start),
                moves=given.moves,
                first_temperature=first,
                last_temperature=last,
                soft_every=int(share * given.moves),
                points=20,
                seed=seed,
            )
            for seed in range(given.seeds)
        ]
        found[settings] = statistics.fmean(result.cost for result in results), results[0].curve
        told = {"first_temperature": first, "last_temperature": last, "soft_every": int(share * given.moves)}
        spent = (time.process_time() - begun) / given.seeds
        print(json.dumps({**told, "cost": found[settings][0], "cpu_seconds": spent}), flush=True)
    for moves, temperature, cost, best in min(found.values(), key=lambda one: one[0])[1]:
        print(json.dumps({"moves": moves, "temperature": temperature, "cost": cost, "best": best}))


if __name__ == "__main__":
    main()
