"""Runs Penstock and its peers side by side, and writes docs/benchmarks.md from what it has measured.

Contenders take turns within one process tree, in an order that shifts from round to round, and each is measured alone.
Every round has a seed of its own. Every peer runs at the settings that it publishes and at those of the workload, which
Penstock has as well. Rates are of the whole loop, updates included, without the start and without evaluations; the
seconds until CartPole is solved include all of it.

    make board                        # everything, about an hour and a half; installs the peers into .venv-peers first
    make board ARGS=--quick           # PPO, DQN, SAC and CartPole until solved, three seeds; about a quarter of an hour
    python -m benchmarks.board.page   # the pages alone, from the stored results
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.board.page import write_pages
from benchmarks.board.solving import measure_solving
from benchmarks.board.workloads import ALONE, SOLVERS, START_SECONDS, WORKLOADS, Workload
from benchmarks.peers.measure import machine
from benchmarks.support.programs import RESULTS, peer, peer_python, run
from penstock.flows.settings.options import parse_overrides
from penstock.tasks.setup.config.loading import build_config, load_preset, merge

if TYPE_CHECKING:
    from collections.abc import Callable

    Contender = Callable[[int, str], dict[str, Any]]
    """From a seed and the folder of a store to a rate and what ran."""

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
    parser.add_argument("--seconds", type=float, help="of each measurement of a rate; default: 12, with --quick 5")
    parser.add_argument("--no-pages", action="store_true", help="only store the results")
    args = parser.parse_args()
    names = args.only or [name for name in PARTS if not (args.quick and name in LONG)]
    rounds = args.rounds or (3 if args.quick else 5)
    seconds = args.seconds or (5.0 if args.quick else 12.0)
    for name in PEER_VENVS:
        peer_python(name)
    estimate = sum(expected_seconds(name, seconds) for name in names) * rounds
    print(f"about {estimate / 60:.0f} minutes on two quiet cores", flush=True)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="penstock-board-") as home:
        os.environ["PREFECT_HOME"] = home
        from penstock.flows.api.prefect_server import PrefectServer  # noqa: PLC0415  (Prefect reads PREFECT_HOME when it is imported)

        with PrefectServer() as server:
            server.wait_ready()
            server.direct_here()
            measured = {name: measure(name, rounds, seconds, home) for name in names if name != SOLVING}
        solved = measure_solving(rounds, home) if SOLVING in names else None
    now = dt.datetime.now(tz=dt.UTC)
    about = machine(["penstock-rl", "torch", "prefect", "distributed", "numpy", "gymnasium"])
    result: dict[str, Any] = {
        "command": shlex.join(["python", "-m", "benchmarks.board", *sys.argv[1:]]),
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


def expected_seconds(name: str, seconds: float) -> float:
    """Return a round's seconds on two cores, as far as they can be known before."""
    if name == SOLVING:
        return sum(solver.seconds for solver in SOLVERS.values())
    workload = WORKLOADS[name]
    ours = 2 * (START_SECONDS + workload.stages(seconds) * workload.stage_seconds)
    others = len(workload.equal) + len(workload.others) + (ALONE in contenders(name, seconds))
    return ours + others * (START_SECONDS + seconds)


def measure(name: str, rounds: int, seconds: float, home: str) -> dict[str, Any]:
    """Return each contender's env steps/s by round, with what it ran."""
    workload, found = WORKLOADS[name], contenders(name, seconds)
    rates: dict[str, list[float]] = {title: [] for title in found}
    said: dict[str, Any] = {}
    for turn in range(rounds):
        titles = list(found)
        for place, title in enumerate(titles[turn % len(titles) :] + titles[: turn % len(titles)]):
            result = found[title](turn + 1, f"{home}/{name}-{turn}-{place}")
            rates[title].append(result.pop("env_steps_per_second"))
            said[title] = {key: value for key, value in result.items() if key != "returns_by_stage"}
            print(name, turn, title, f"{rates[title][-1]:,.0f}", sep=" | ", flush=True)
    return asdict(workload) | {"seeds": list(range(1, rounds + 1)), "rates": rates, "ran": said}


def contenders(name: str, seconds: float) -> dict[str, Contender]:
    """Return what runs in a round, by title."""
    workload = WORKLOADS[name]
    config = build_config(merge(load_preset(workload.preset), parse_overrides(workload.settings)))
    algorithm: Any = config.algorithm
    peers = on_policy(name, config, algorithm) if algorithm.name == "ppo" else off_policy(config, algorithm)
    found: dict[str, Contender] = {f"Penstock, lag {lag}": partial(train, workload, lag, seconds) for lag in (0, 1)}
    if algorithm.name == "ppo":
        found[ALONE] = partial(bare, workload, seconds)
    return found | {title: partial(run_peer, peers[title], seconds) for title in (*workload.equal, *workload.others)}


def on_policy(name: str, config: Any, algorithm: Any) -> dict[str, list[object]]:
    """Return the peers' commands: environment of Python, script, options."""
    envs, steps = config.environment.num_envs, config.schedule.round_steps
    rows = envs * steps // algorithm.minibatches
    same = ["--epochs", algorithm.epochs, "--minibatch-rows", rows, "--envs", envs, "--round-steps", steps]
    sb3 = ["sb3", "sb3_training.py", "--environment", config.environment.id]
    if name == "halfcheetah":
        return {
            "SB3, equal": [*sb3, *same, "--normalize", "--hidden", 64, 64],
            # The zoo's, for v4: one environment x 512 steps, 20 epochs of 64 rows.
            "SB3, RL zoo": [
                *(*sb3, "--normalize", "--hidden", 256, 256, "--envs", 1, "--round-steps", 512),
                *("--epochs", 20, "--minibatch-rows", 64),
            ],
            "CleanRL, own": ["cleanrl-v5", "cleanrl_learning.py", "--env-steps", 20 * 2048],
        }
    cleanrl = ["cleanrl", "cleanrl_training.py"]
    if name == "pong":
        frames = ["sb3", "sb3_training.py", "--environment", "PongNoFrameskip-v4", "--atari", "--subprocesses"]
        cleanrl += ["--script", "ppo_atari_envpool", "--environment", "Pong-v5", "--torch-threads", 2]
        return {
            "SB3, equal": [*frames, "--torch-threads", 2, *same],
            "CleanRL, equal": [*cleanrl, *same],
            "CleanRL, own": [*cleanrl, "--envs", 8, "--minibatch-rows", 256, "--epochs", 4],
        }
    return {
        "SB3, equal": [*sb3, *same, "--hidden", *algorithm.hidden],
        # The zoo's: 8 environments x 32 steps, 20 epochs of one minibatch.
        "SB3, RL zoo": [
            *(*sb3, "--hidden", 64, 64, "--envs", 8, "--round-steps", 32, "--epochs", 20, "--minibatch-rows", 256)
        ],
        "CleanRL, equal": [*cleanrl, *same],
        "CleanRL, own": [*cleanrl, "--envs", 4, "--minibatch-rows", 128, "--epochs", 4],
    }


def off_policy(config: Any, algorithm: Any) -> dict[str, list[object]]:
    """Return the peers' commands, as `on_policy`."""
    sb3 = ["sb3", "sb3_off_policy.py", "--algorithm", algorithm.name, "--environment", config.environment.id]
    equal = [
        *(*sb3, "--envs", config.environment.num_envs, "--round-steps", config.schedule.round_steps),
        *("--minibatches", algorithm.minibatches, "--minibatch-rows", algorithm.minibatch_rows),
        *("--hidden", *algorithm.hidden, "--warm-up-rows", algorithm.warm_up_rows),
        *("--window-rows", algorithm.window_rows),
    ]
    zoo = [*sb3, "--envs", 1, "--hidden", 256, 256]
    if algorithm.name == "dqn":  # 128 updates of 64 rows each 256 steps
        zoo += ["--round-steps", 256, "--minibatches", 128, "--minibatch-rows", 64]
        zoo += ["--warm-up-rows", 1000, "--window-rows", 100_000]
    else:  # an update of 256 rows for each step
        zoo += ["--round-steps", 1, "--minibatches", 1, "--minibatch-rows", 256]
        zoo += ["--warm-up-rows", 100, "--window-rows", 1_000_000]
    script = {"dqn": "dqn", "sac": "sac_continuous_action"}[algorithm.name]
    own = ["cleanrl-off-policy", "cleanrl_training.py", "--script", script, "--environment", config.environment.id]
    return {"SB3, equal": equal, "SB3, RL zoo": zoo, "CleanRL, own": own}


def run_peer(command: list[object], seconds: float, seed: int, store: str) -> dict[str, Any]:  # noqa: ARG001
    """Run a peer, which stores nothing, once."""
    venv, script, *options = command
    options += ["--seed", seed]
    if script != "cleanrl_learning.py":  # a whole recipe, of so many steps
        options += ["--seconds", seconds]
    told = shlex.join(["python", f"benchmarks/peers/{script}", *map(str, options)])
    return peer(str(venv), str(script), *options) | {"command": told}


def bare(workload: Workload, seconds: float, seed: int, store: str) -> dict[str, Any]:  # noqa: ARG001
    options = ["--torch-threads", "1", "--seconds", str(seconds), "--", workload.preset, *workload.settings]
    options += ["--seed", str(seed)]
    result = run([sys.executable, "-m", "benchmarks.bare.training", *options], None)
    return result | {"command": shlex.join(["python", "-m", "benchmarks.bare.training", *options])}


def train(workload: Workload, lag: int, seconds: float, seed: int, store: str) -> dict[str, Any]:
    """Run `penstock train`; the rate is that of all stages but the first, commits included, evaluations not."""
    command = ["train", workload.preset, *workload.settings, "--lag", str(lag), "--seed", str(seed)]
    command += ["--rounds-per-stage", str(workload.rounds_per_stage), "--max-stages", str(workload.stages(seconds))]
    command += ["--target-return", "none", "--evaluation-episodes", "1"]
    program = str(Path(sys.executable).parent / "penstock")
    whole = [program, *command, "--store", store, "--name", "measured", "--json"]
    subprocess.run(whole, check=True, stdout=subprocess.PIPE, text=True)
    stages = [json.loads(path.read_text()) for path in sorted(Path(store, "measured", "timings").glob("*.json"))][1:]
    env_steps = sum(part["env_steps"] for stage in stages for part in stage["act"])
    taken = sum(stage["stage_seconds"] - stage["evaluate_seconds"] for stage in stages)
    return {"env_steps_per_second": env_steps / taken, "command": shlex.join(["penstock", *command])}


if __name__ == "__main__":
    main()
