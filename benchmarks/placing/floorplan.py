"""Measures the evaluation and annealing of placements, in CPU seconds of one core.

    python -m benchmarks.placing.floorplan NETLIST PLC [--seconds 3]

Prints JSON: milliseconds per full evaluation (three costs), milliseconds per schedule of soft macros, annealing moves
evaluated per second, and hard macros placed per second in a pool. Each macro goes to its first allowed cell; mask and
wirelength are computed after it. The rate is given without and with the cost of an episode's end. Figures are CPU time,
but a busy machine still increases it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from typing import TYPE_CHECKING

from penstock.native import make
from penstock.native.floorplan import (
    GUIDED,
    UNIFORM,
    PlacementCost,
    Proposals,
    anneal,
    create_placement_cost,
    load_environment,
    open_placement,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def cpu_seconds_each(call: Callable[[], object], seconds: float) -> float:
    """Return the CPU seconds per call of the fastest batch that ran within `seconds`."""
    call()
    best, begun = float("inf"), time.process_time()
    while time.process_time() - begun < seconds:
        start, count = time.process_time(), 0
        while time.process_time() - start < seconds / 10:
            call()
            count += 1
        best = min(best, (time.process_time() - start) / count)
    return best


def placed_a_second(netlist: str, placement: str, environments: int = 4, episodes: int = 3) -> dict[str, float]:
    """Return the rates of one thread; an episode that ends early counts with the macros that it placed."""
    with tempfile.TemporaryDirectory() as folder:
        load_environment(create_placement_cost(netlist, placement), "Floorplan-bench-v0", folder)
        pool = make("Floorplan-bench-v0", environments, autoreset_mode="SameStep")
        cells = int(pool.single_action_space.n)
        observation, _ = pool.reset(seed=0)
        ends = finished = 0
        seconds, placed = {False: 0.0, True: 0.0}, {False: 0, True: 0}
        while ends < environments * episodes:
            action = observation[:, :cells].argmax(axis=1)
            start = time.process_time()
            observation, _, terminated, _, infos = pool.step(action)
            ended = bool(terminated.any())
            seconds[ended] += time.process_time() - start
            placed[ended] += environments
            ends += int(terminated.sum())
            finished += int((infos["final_info"]["density"][terminated] >= 0).sum()) if ended else 0
    return {
        "macros_placed_a_second": placed[False] / seconds[False],
        "with_ends_a_second": sum(placed.values()) / sum(seconds.values()),
        "episodes": ends,
        "episodes_finished": finished,
    }


def annealed_a_second(plc: PlacementCost, moves: int) -> float:
    """Return moves per second at annealing's default temperatures, without the time of placing soft macros."""

    def took(moves: int) -> float:
        begun = time.process_time()
        anneal(PlacementCost(plc), moves=moves, soft_every=0)
        return time.process_time() - begun

    return moves / (took(moves) - took(0))


def annealed_with(plc: PlacementCost, proposals: Proposals, moves: int) -> float:
    """Return moves per second where soft macros are annealed too."""
    begun = time.process_time()
    anneal(PlacementCost(plc), moves=moves, proposals=proposals)
    return moves / (time.process_time() - begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("netlist")
    parser.add_argument("placement")
    parser.add_argument("--seconds", type=float, default=3.0)
    given = parser.parse_args()
    plc = open_placement(given.netlist, given.placement)
    found = {"evaluation_ms": 1e3 * cpu_seconds_each(plc.get_costs, given.seconds)}
    plc.legalize(only_hard=True)
    found["soft_schedule_ms"] = 1e3 * cpu_seconds_each(plc.place_soft_macros, given.seconds)
    found["annealing_moves_a_second"] = annealed_a_second(plc, 200_000)
    # Episodes use a finer congestion grid, which is smoothed.
    played = create_placement_cost(given.netlist, given.placement)
    played.legalize(only_hard=True)
    played.place_soft_macros()
    found["annealing_moves_a_second_as_in_episodes"] = annealed_a_second(played, 200_000)
    found["with_uniform_proposals"] = annealed_with(played, UNIFORM, 200_000)
    found["with_guided_proposals"] = annealed_with(played, GUIDED, 200_000)
    found |= placed_a_second(given.netlist, given.placement)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
