"""Measures what each demand of exactness costs a step of CartPole-v1, on one core, up to the pool as Python calls it.

Compiles and runs `cartpole_stairs.cpp`, once a round for each instruction set that this processor has, and steps the
pool from Python in stretches of the same length. Rates are the best stretch of all rounds and the median of rounds'
medians.

    chrt -r 1 python -m benchmarks.bare.cartpole_stairs --rounds 5     # under a minute; a core of its own if shared
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.peers.measure import machine
from benchmarks.peers.stepping import random_actions
from benchmarks.support.programs import BENCHMARKS, RESULTS, ROOT
from benchmarks.support.tables import this_command, write_table
from penstock import native

SOURCE = BENCHMARKS / "bare" / "cartpole_stairs.cpp"
ENVIRONMENTS = 1024
STRETCHES, STRETCH_SECONDS, STEPS_AT_A_TIME = 31, 0.003, 64
STAIRS = {
    "float32": "float32, polynomials, any order of operations, one division, only the state is written",
    "float64": "the same in float64",
    "order": "Gymnasium's operations in its order, with four divisions, nothing fused",
    "library": "sine and cosine equal to the C library's bit for bit",
    "ends": "tests for an end, steps counted for the time limit",
    "resets": "resets of ended episodes, by NumPy's generators",
    "outputs": "actions checked; observations, rewards and flags written as the pool's: its bits",
    "pool": "the pool, called from C++: one object an environment, episode returns, infos",
    "python": "the pool, called from Python",
}
"""Each demand comes with all above it."""

Rates = dict[str, dict[str, float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    flags = Path("/proc/cpuinfo").read_text(encoding="ascii").split()
    levels = [level for level, flag in (("avx512", "avx512vl"), ("avx2", "avx2")) if flag in flags]
    if not levels:
        raise SystemExit("this processor has neither AVX2 nor AVX-512, which the stairs are for")
    with tempfile.TemporaryDirectory() as folder:
        program = str(Path(folder) / "stairs")
        options = ["-std=c++20", "-O3", "-ffp-contract=off", "-pthread", "-I", str(ROOT / "native" / "include")]
        subprocess.run(["c++", *options, str(SOURCE), "-o", program], check=True)
        rounds = [{level: climbed(program, level) for level in levels} for _ in range(args.rounds)]
    for taken in rounds:
        taken[levels[0]]["python"] = from_python()
    head = ["each demand with all above it"]
    for level in levels:
        head += [f"{level}, M env steps/s, best (median)", "ns a step", "of them new"]
    rows = [[text] for text in STAIRS.values()]
    for level in levels:
        before = 0.0
        for row, stair in zip(rows, STAIRS, strict=True):
            if stair not in rounds[0][level]:
                row += ["", "", ""]
                continue
            best = max(taken[level][stair]["best"] for taken in rounds)
            middle = median(taken[level][stair]["median"] for taken in rounds)
            nanoseconds = 1e9 / best
            new = f"{nanoseconds - before:.2f}"
            row += [f"{best / 1e6:,.0f} ({middle / 1e6:,.0f})", f"{nanoseconds:.2f}", new]
            before = nanoseconds
    raw = {"rounds": rounds, "machine": machine(["penstock-rl", "numpy"])}
    print(write_table(args.results, "cartpole-stairs", this_command(), rows, raw, head=head))


def climbed(program: str, level: str) -> Rates:
    finished = subprocess.run([program, level], capture_output=True, text=True, check=True)
    rates: dict[str, Any] = json.loads(finished.stdout)
    return {name: value for name, value in rates.items() if name != "level"}


def from_python() -> dict[str, float]:
    """Return the best and the median rate of stretches of `step`, resets not counted."""
    pool = native.make("CartPole-v1", ENVIRONMENTS, num_threads=1)
    pool.reset(seed=0)
    actions = random_actions("discrete:2", ENVIRONMENTS, "int64")[:STEPS_AT_A_TIME]
    ended = 0
    for _ in range(8):
        for each in actions:
            _, _, terminated, truncated, _ = pool.step(each)
            ended += int((terminated | truncated).sum())
    stepped = 1 - ended / (8 * len(actions) * ENVIRONMENTS)
    rates = []
    for _ in range(STRETCHES):
        calls, started, elapsed = 0, time.perf_counter(), 0.0
        while elapsed < STRETCH_SECONDS:
            for each in actions:
                pool.step(each)
            calls += len(actions)
            elapsed = time.perf_counter() - started
        rates.append(calls * ENVIRONMENTS * stepped / elapsed)
    return {"best": max(rates), "median": median(rates)}


if __name__ == "__main__":
    main()
