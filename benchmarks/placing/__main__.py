"""Compares placers at equal CPU time: methods, blocks, budgets and seeds, one result each, kept and never made twice.

    python -m benchmarks.placing --blocks ariane133 --budgets 10 60 --seeds 1 2 3 4 5
    python -m benchmarks.placing --page                       # the table of what there is
    python -m benchmarks.placing --quick                      # a generated block, two seeds, 5 CPU s each

A budget is CPU seconds of one core, so that a minute of two cores is 120. Costs are the evaluator's, of the final
layout, weighted 1, 1, 0.5 with the settings of episodes (`create_placement_cost`), and every layout is checked to be
legal. `PENSTOCK_TEST_DATA` names the folder that holds Ariane133 and the flat netlists.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from benchmarks.placing.blocks import NAMES, legal_start
from benchmarks.placing.layouts import weighted
from benchmarks.placing.methods import METHODS
from benchmarks.support.programs import RESULTS
from penstock.native.floorplan.placing.starting import legality_problems

if TYPE_CHECKING:
    from penstock.native.floorplan import PlacementCost

MEASURED = RESULTS / "2026-11-26-placing"
PEER = "annealing with restarts"
RANDOM = "random proposals, soft macros too"
READ = {
    **dict.fromkeys(("block", "method"), str),
    **dict.fromkeys(("budget_seconds", "cost", "cpu_seconds"), (int, float)),
    "problems": list,
}
"""Types of what the table needs of a result."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--blocks", nargs="+", choices=NAMES, default=["ariane133"])
    parser.add_argument("--budgets", nargs="+", type=float, default=[10.0], help="CPU seconds")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--cache", type=Path, default=Path("build/placing-blocks"), help="folder for blocks made here")
    parser.add_argument("--results", type=Path, default=MEASURED)
    parser.add_argument("--page", action="store_true", help="write the table and measure nothing")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    if given.quick:
        given.blocks, given.budgets, given.seeds = ["generated-1"], [5.0], [1, 2]
        given.results = Path("build/placing-quick")
    if not given.page:
        starts = {name: legal_start(name, given.cache) for name in given.blocks}
        given.results.mkdir(parents=True, exist_ok=True)
        for name, start in starts.items():
            for budget in given.budgets:
                for seed in given.seeds:
                    for method in given.methods:
                        measure(given.results, start, name, method, budget, seed)
    text = page(read(given.results))
    if given.page:
        given.results.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)


def measure(results: Path, start: PlacementCost, name: str, method: str, budget: float, seed: int) -> None:
    """Run one method once, unless its result is there."""
    words = method.replace("`", "").replace(", ", "-").replace(" ", "-")
    file = results / f"{name}--{words}--{budget:g}--{seed}.json"
    if file.exists() or (method == "start" and seed != 1):
        return
    cpu, wall = time.process_time(), time.monotonic()
    plc = METHODS[method](start, budget, seed)
    found: dict[str, Any] = {"block": name, "method": method, "budget_seconds": budget, "seed": seed}
    found |= {"cost": weighted(plc), "cpu_seconds": time.process_time() - cpu, "seconds": time.monotonic() - wall}
    found |= {"costs": list(plc.get_costs()), "problems": legality_problems(plc)}
    file.write_text(json.dumps(found) + "\n", encoding="utf-8")
    print(f"{name} {budget:g} s, seed {seed}, {method}: {found['cost']:.5f}, {found['cpu_seconds']:.1f} s", flush=True)


def read(results: Path) -> list[dict[str, Any]]:
    """Return all results; where there are none, or a file has none, or one is not legal, the comparison ends."""
    found = [result(file) for file in sorted(results.glob("*.json"))]
    if not found:
        raise SystemExit(f"{results}: found no results, expected a folder with some; measure without --page first")
    for one in found:
        if one["problems"]:
            raise SystemExit(f"{one['block']}, {one['method']}: not legal: {one['problems'][0]}")
    return found


def result(file: Path) -> dict[str, Any]:
    """Return the result in a file; one of something else ends the comparison."""
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise SystemExit(f"{file}: can't be read ({error}), expected a result of `measure`; move it away") from None
    if not isinstance(found, dict) or not all(isinstance(found.get(name), kind) for name, kind in READ.items()):
        raise SystemExit(f"{file}: found other JSON, expected a result with {', '.join(READ)}; move it away")
    return found


def page(found: list[dict[str, Any]]) -> str:
    """Return a table for each block and budget, and what each method is over and under."""
    lines = [
        "# Placing macros: methods at equal CPU time",
        "",
        "`python -m benchmarks.placing`; weighted costs, lower is better; budgets are CPU seconds of one core. The",
        "last two columns are differences of means in standard errors of the difference: below 0, it is better than",
        "that method.",
    ]
    for name in NAMES:
        for budget in sorted({one["budget_seconds"] for one in found if one["block"] == name}):
            rows = {
                method: [
                    one
                    for one in found
                    if (one["block"], one["budget_seconds"], one["method"]) == (name, budget, method)
                ]
                for method in METHODS
            }
            lines += ["", f"## {name}, {budget:g} CPU s", "", "| method | mean | sd | best | seeds | CPU s |"]
            lines[-1] += " next to annealing with restarts | next to random proposals |"
            lines += ["|---|---|---|---|---|---|---|---|"]
            for method, ones in rows.items():
                if ones:
                    lines.append(line(method, ones, rows[PEER], rows[RANDOM]))
    return "\n".join([*lines, ""])


def line(method: str, ones: list[dict[str, Any]], peers: list[dict[str, Any]], randoms: list[dict[str, Any]]) -> str:
    """Return one row of a table."""
    costs = [one["cost"] for one in ones]
    spread = f"{stdev(costs):.4f}" if len(costs) > 1 else ""
    cpu = fmean(one["cpu_seconds"] for one in ones)
    both = [apart(costs, [one["cost"] for one in others]) for others in (peers, randoms)]
    cells = [method, f"{fmean(costs):.4f}", spread, f"{min(costs):.4f}", str(len(costs)), f"{cpu:.1f}", *both]
    return f"| {' | '.join(cells)} |"


def apart(costs: list[float], others: list[float]) -> str:
    """Return the difference of means in standard errors of the difference; empty where it can't be said."""
    if len(costs) < 2 or len(others) < 2 or costs == others:
        return ""
    error = math.sqrt(stdev(costs) ** 2 / len(costs) + stdev(others) ** 2 / len(others))
    return f"{(fmean(costs) - fmean(others)) / error:+.1f}" if error > 0 else ""


if __name__ == "__main__":
    main()
