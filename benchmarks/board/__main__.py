"""Runs Penstock and its peers side by side, and writes docs/benchmarks.md from what it has measured.

Contenders take turns within one process tree, in an order that shifts from round to round, and each is measured alone.
Every round has a seed of its own. Every peer runs at the settings that it publishes and at those of the workload, which
Penstock has as well, with the threads and processes with which it is the fastest. Rates are of the whole
loop, updates included, without the start and without evaluations; the seconds until CartPole is solved include it all.

    make board                        # everything, about an hour and a half; installs the peers into .venv-peers first
    make board ARGS=--quick           # PPO, DQN, SAC and CartPole until solved, three seeds; about a quarter of an hour
    python -m benchmarks.board.page   # the pages alone, from the stored results
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import tempfile
import time
from dataclasses import asdict
from statistics import median
from typing import Any

from benchmarks.board.contenders import NEARLY, Cores, contenders, peers_of, rates_beforehand
from benchmarks.board.page import write_pages
from benchmarks.board.solving import measure_solving
from benchmarks.board.workloads import SOLVERS, START_SECONDS, WORKLOADS
from benchmarks.peers.measure import machine
from benchmarks.support.programs import RESULTS, peer_python
from benchmarks.support.tables import this_command

SOLVING = "solving"
PARTS = (*WORKLOADS, SOLVING)
LONG = ("halfcheetah", "pong")
"""Parts that the quick version leaves out."""
PEER_VENVS = ("sb3", "cleanrl", "cleanrl-v5", "cleanrl-off-policy")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="without HalfCheetah and Pong, three rounds, shorter")
    parser.add_argument("--only", nargs="+", choices=PARTS)
    parser.add_argument("--rounds", type=int, help="each with a seed of its own; default: 5, with --quick 3")
    parser.add_argument("--seconds", type=float, help="of each measurement of a rate; default: 12, with --quick 4")
    parser.add_argument("--no-pages", action="store_true", help="only store the results")
    args = parser.parse_args()
    names = args.only or [name for name in PARTS if not (args.quick and name in LONG)]
    rounds = args.rounds or (3 if args.quick else 5)
    seconds = args.seconds or (4.0 if args.quick else 12.0)
    nearly = 1.0 if args.quick else NEARLY
    for name in PEER_VENVS:
        peer_python(name)
    estimate = sum(expected_seconds(name, seconds, rounds) for name in names)
    print(f"about {estimate / 60:.0f} minutes on two quiet cores", flush=True)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="penstock-board-") as home:
        os.environ["PREFECT_HOME"] = home
        from penstock.flows.api.prefect_server import PrefectServer  # noqa: PLC0415  (Prefect reads PREFECT_HOME when it is imported)

        with PrefectServer() as server:
            server.wait_ready()
            server.direct_here()
            measured = {name: measure(name, rounds, seconds, home, nearly) for name in names if name != SOLVING}
        solved = measure_solving(rounds, home) if SOLVING in names else None
    now = dt.datetime.now(tz=dt.UTC)
    about = machine(["penstock-rl", "torch", "prefect", "distributed", "numpy", "gymnasium"])
    result: dict[str, Any] = {
        "command": this_command(),
        "date": now.date().isoformat(),
        "finished_at": now.isoformat(timespec="seconds"),
        "machine": about,
        "expected_seconds": round(estimate),
        "wall_seconds": round(time.perf_counter() - started),
        "workloads": measured,
        **({SOLVING: solved} if solved else {}),
    }
    parts = [result["date"], "board", *(["quick"] if args.quick else []), *(args.only or [])]
    path = RESULTS / f"{'-'.join(parts)}.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"{path}: {result['wall_seconds'] / 60:.0f} minutes", flush=True)
    if not args.no_pages:
        write_pages()


def expected_seconds(name: str, seconds: float, rounds: int) -> float:
    """Return a part's seconds on two cores, as far as they can be known before."""
    if name == SOLVING:
        return rounds * sum(solver.seconds for solver in SOLVERS.values())
    workload, peers = WORKLOADS[name], peers_of(name).values()
    ours = 2 * (START_SECONDS + workload.stages(seconds) * workload.stage_seconds)
    others = 1.5 * len(peers) + 1  # some in several ways, and acting and updating alone
    return rounds * (ours + others * (START_SECONDS + seconds)) + sum(
        len(each.choices) * (START_SECONDS + seconds / 2) for each in peers
    )


def measure(name: str, rounds: int, seconds: float, home: str, nearly: float) -> dict[str, Any]:
    """Return each contender's env steps/s by round, with what it ran; of a peer's ways to use the cores the fastest."""
    workload, beforehand = WORKLOADS[name], rates_beforehand(name, seconds / 2)
    found = contenders(name, seconds, beforehand, nearly)
    rates: dict[tuple[str, Cores | None], list[float]] = {key: [] for key in found}
    said: dict[tuple[str, Cores | None], Any] = {}
    for turn in range(rounds):
        keys = list(found)
        for place, key in enumerate(keys[turn % len(keys) :] + keys[: turn % len(keys)]):
            result = found[key](turn + 1, f"{home}/{name}-{turn}-{place}")
            rates[key].append(result.pop("env_steps_per_second"))
            said[key] = {part: value for part, value in result.items() if part != "returns_by_stage"}
            print(name, turn, *filter(None, key), f"{rates[key][-1]:,.0f}", sep=" | ", flush=True)
    best = sorted(rates, key=lambda key: median(rates[key]))  # the fastest of a title is its last
    by_title = {title: (title, cores) for title, cores in best}
    titles = {title: by_title[title] for title, _ in found}
    return asdict(workload) | {
        "seeds": list(range(1, rounds + 1)),
        "rates": {title: rates[key] for title, key in titles.items()},
        "cores": {title: str(key[1]) for title, key in titles.items() if key[1]},
        "beforehand": {title: {str(cores): rate for cores, rate in each.items()} for title, each in beforehand.items()},
        "slower": {", ".join(map(str, key)): rates[key] for key in rates if key != titles[key[0]]},
        "ran": {title: said[key] for title, key in titles.items()},
    }


if __name__ == "__main__":
    main()
