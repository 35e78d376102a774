"""Measures the board's seconds until CartPole is solved, from the command: imports and servers included."""

from __future__ import annotations

import argparse
import math
import os
import shlex
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.board.training import train
from benchmarks.board.workloads import RANDOM, SOLVED_TITLE, SOLVERS
from benchmarks.peers.evaluation import EVALUATION_EPISODES, SOLVED_RETURN, CartPoleEvaluator
from benchmarks.support.programs import peer

LIMIT_SECONDS = 60.0
"""A peer that has not solved it by then is ended. Penstock has thirty stages, and stable-baselines3 100,000 steps."""


def measure_solving(rounds: int, home: str) -> dict[str, Any]:
    """Return each contender's seconds by round, None where CartPole was not solved, with what it ran.

    Penstock starts a Prefect server of its own in each round. The server's database is there: it is made once, by a run
    that is not measured, as on a machine where it is not the first.
    """
    seconds: dict[str, list[float | None]] = {title: [] for title in SOLVERS}
    steps: dict[str, list[int]] = {title: [] for title in SOLVERS}
    ran: dict[str, Any] = {}
    solve_by_penstock(("cartpole", "--max-stages", "1"), 0, home)
    threads = {title: fastest_threads(title) for title in SOLVERS if not title.startswith("Penstock")}
    for turn in range(rounds):
        titles = list(SOLVERS)
        for title in titles[turn % len(titles) :] + titles[: turn % len(titles)]:
            seed = turn + 1
            if title in threads:
                result = solve_by_peer(title, threads[title], seed)
            else:
                result = solve_by_penstock(SOLVERS[title].settings, seed, home)
            took = result["seconds_to_solved_from_process_start"] if result["solved"] else None
            seconds[title].append(took)
            steps[title].append(result["env_steps"])
            ran[title] = result
            print("solving", turn, title, "not solved" if took is None else f"{took:.2f} s", sep=" | ", flush=True)
    return {
        "title": SOLVED_TITLE,
        "rule": {"mean_return": SOLVED_RETURN, "episodes": EVALUATION_EPISODES, "limit_seconds": LIMIT_SECONDS},
        "seeds": list(range(1, rounds + 1)),
        "torch_threads": threads,
        "seconds": seconds,
        "env_steps": steps,
        "baselines": {RANDOM: random_return()},
        "ran": ran,
    }


def fastest_threads(title: str) -> int:
    """Return the number of torch threads with which a peer takes fewer seconds for a step, of one run each."""
    seconds = {}
    for threads in (1, 2):
        result = solve_by_peer(title, threads, 0)
        seconds[threads] = (result["seconds_to_solved_from_process_start"] or math.inf) / result["env_steps"]
    return min(seconds, key=lambda threads: seconds[threads])


def solve_by_peer(title: str, threads: int, seed: int) -> dict[str, Any]:
    venv, script, *options = SOLVERS[title].settings
    options += ["--torch-threads", str(threads)]
    limit = () if venv == "sb3" else ("--limit-seconds", LIMIT_SECONDS)
    result = peer(venv, script, *options, "--seed", seed, *limit)
    return result | {"command": shlex.join(["python", f"benchmarks/peers/{script}", *options])}


def solve_by_penstock(settings: tuple[str, ...], seed: int, home: str) -> dict[str, Any]:
    """Run `penstock train` with a Prefect server of its own, as a user does who has none."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT")}
    environment["PREFECT_HOME"] = f"{home}/solving"
    store = Path(home) / f"solving-{seed}-{len(list(Path(home).glob('solving-*')))}"
    result = train(argparse.Namespace(settings=list(settings), seed=seed), str(store), environment)
    return result | {"command": shlex.join(["penstock", "train", *settings, "--seed", str(seed)])}


def random_return() -> float:
    """Return what the policy that costs nothing reaches, by the rule's evaluation."""
    generator = np.random.default_rng(0)
    evaluator = CartPoleEvaluator(EVALUATION_EPISODES)
    seeds = range(EVALUATION_EPISODES)
    return evaluator.mean_return(lambda seen: generator.integers(0, 2, len(seen)), seeds)[0]
