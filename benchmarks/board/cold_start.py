"""Measures a first command: seconds from `penstock train cartpole` to its first step, to solved, to its end.

Cold means that no process of Penstock, Prefect or Dask runs and PREFECT_HOME is empty; files are in the page cache.
The first command of all, which is not counted, lets Penstock keep a migrated database of Prefect. Next to it: the same
with a Prefect server that runs, and stable-baselines3 at the same settings and by the same rule
(`peers/sb3_cartpole.py`). All take turns.

    python -m benchmarks.board.cold_start --rounds 5  # two minutes
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks.board.training import train
from benchmarks.peers.measure import machine
from benchmarks.support.programs import RESULTS, peer
from benchmarks.support.tables import this_command, write_table
from penstock.flows.api.prefect_server import PrefectServer

COLD, WARM, SB3 = "Penstock, cold", "Penstock, a Prefect server runs", "stable-baselines3, equal settings"
FIRST_STEP, SOLVED, END = "the first environment step", "solved", "the end of the command"
NAMES = (COLD, WARM, SB3)
HEAD = ("seconds to", *NAMES, "cold / SB3", "with a server / SB3")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    taken: dict[str, dict[str, list[float]]] = {
        name: {FIRST_STEP: [], SOLVED: [], END: []} for name in (COLD, WARM, SB3)
    }
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT")}
    left: list[str] = []
    with tempfile.TemporaryDirectory(prefix="penstock-cold-") as folder:
        subprocess.run([sys.executable, "-c", "import torch, prefect, distributed"], check=True)
        penstock(0, f"{folder}/first", clean | {"PREFECT_HOME": f"{folder}/first/home"})
        os.environ["PREFECT_HOME"] = f"{folder}/warm"
        for turn in range(args.rounds):
            home = f"{folder}/{turn}/home"
            add(taken[COLD], penstock(turn + 1, f"{folder}/{turn}/cold", clean | {"PREFECT_HOME": home}))
            left += with_home(home)
            with PrefectServer() as server:
                server.wait_ready()
                known = {"PREFECT_API_URL": server.api_url, "PREFECT_API_AUTH_STRING": server.auth_string}
                add(taken[WARM], penstock(turn + 1, f"{folder}/{turn}/warm", clean | known))
            solved = peer("sb3", "sb3_cartpole.py", "--settings", "preset", "--seed", turn + 1)
            taken[SB3][SOLVED].append(solved["seconds_to_solved_from_process_start"])
            taken[SB3][FIRST_STEP].append(
                solved["seconds_to_solved_from_process_start"] - solved["seconds_to_solved_from_first_step"]
            )
            print({name: each[SOLVED][-1] for name, each in taken.items()}, file=sys.stderr, flush=True)
    rows = []
    for what in (FIRST_STEP, SOLVED, END):
        ratios = (ratio(taken, name, what) for name in (COLD, WARM))
        rows.append((what, *(shown(taken[name][what]) for name in NAMES), *ratios))
    raw = {"machine": machine(("penstock-rl", "prefect", "distributed", "torch")), "seconds": taken, "left": left}
    notes = [f"Processes that cold commands left behind: {len(left)}."]
    command = this_command()
    print(write_table(args.results, "cold-start", command, rows, raw, head=HEAD, notes=notes))


def penstock(seed: int, store: str, environment: dict[str, str]) -> dict[str, Any]:
    return train(argparse.Namespace(settings=["cartpole"], seed=seed), store, environment)


def add(taken: dict[str, list[float]], result: dict[str, Any]) -> None:
    solved = result["seconds_to_solved_from_process_start"]
    taken[FIRST_STEP].append(solved - result["seconds_to_solved_from_first_step"])
    taken[SOLVED].append(solved)
    taken[END].append(result["seconds_of_command"])


def with_home(home: str) -> list[str]:
    """Return the command lines of processes that were started with a PREFECT_HOME and are still there."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("PREFECT_HOME") == home:
                found.append(shlex.join(process.cmdline()))
        except psutil.Error:
            continue
    return found


def shown(seconds: list[float]) -> str:
    return f"{median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f})" if seconds else ""


def ratio(taken: dict[str, dict[str, list[float]]], name: str, what: str) -> str:
    base = taken[SB3][what]
    return f"{median(taken[name][what]) / median(base):.2f}" if base else ""


if __name__ == "__main__":
    main()
