"""Measures what asynchronous stepping of a pool costs: CartPole on one thread, in batches of a half and a quarter.

Beside it stands `step` of as many environments as a batch has, since a batch costs a call to `recv` and one to `send`.
CPU seconds of this process, medians of rounds that alternate.

    python -m benchmarks.pool.async_stepping --rounds 5
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.peers.measure import machine
from benchmarks.support.programs import RESULTS
from benchmarks.support.tables import this_command, write_table
from penstock import native

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS = 4_000_000
"""Environment steps of a measurement."""
HEAD = ("environments", "batch", "async, M env steps/s", "share of step", "share of step of a batch's environments")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--envs", type=int, nargs="+", default=[64, 1024])
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    rows, raw = [], {}
    for envs in args.envs:
        for batch in (envs // 2, envs // 4):
            found: dict[str, list[float]] = {"step": [], "small": [], "async": []}
            for _ in range(args.rounds):
                found["step"].append(step_rate(envs))
                found["small"].append(step_rate(batch))
                found["async"].append(async_rate(envs, batch))
            shares = [
                [mine / other for mine, other in zip(found["async"], found[name], strict=True)]
                for name in ("step", "small")
            ]
            rate = f"{median(found['async']) / 1e6:.1f}"
            rows.append((f"{envs:,}", f"{batch:,}", rate, *(f"{median(each):.2f}" for each in shares)))
            raw[f"{envs}, {batch}"] = found
    command = this_command()
    about = {"rates": raw, "machine": machine(["penstock-rl", "numpy"])}
    print(write_table(args.results, "async-stepping", command, rows, about, head=HEAD))


def step_rate(envs: int) -> float:
    """Return the env steps per CPU second of `step`."""
    pool = native.make("CartPole-v1", envs)
    pool.reset(seed=0)
    actions = np.random.default_rng(0).integers(0, 2, envs)
    return rate(lambda: pool.step(actions), envs)


def async_rate(envs: int, batch: int) -> float:
    """Return the env steps per CPU second of `recv` and `send`."""
    pool = native.make("CartPole-v1", envs, batch_size=batch)
    pool.async_reset(seed=0)
    actions = np.random.default_rng(0).integers(0, 2, batch)

    def turn() -> None:
        pool.send(actions, pool.recv()[4]["env_id"])

    return rate(turn, batch)


def rate(call: Callable[[], object], steps: int) -> float:
    """Return the env steps per CPU second of calls that make `steps` each, after a few that warm up."""
    for _ in range(50):
        call()
    started, calls = time.process_time(), STEPS // steps
    for _ in range(calls):
        call()
    return calls * steps / (time.process_time() - started)


if __name__ == "__main__":
    main()
