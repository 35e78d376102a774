"""Compares the pool with EnvPool, Gymnasium, ale-py, PufferLib's Ocean and bare loops, in one process tree.

Each contender steps once per round, with its best number of threads (1 or 2), found in a round that is not counted. A
ratio is the median over rounds of the ratio within a round. Peers are installed in `.venv-peers/pool` on first use.

    python -m benchmarks.pool                     # everything, 5 rounds: about a quarter of an hour
    python -m benchmarks.pool --only cartpole-1024 cartpole-64 --rounds 7
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.peers.measure import machine
from benchmarks.support.programs import BENCHMARKS, RESULTS, VENVS, own_program, peer, ratio, run
from benchmarks.support.tables import write_table

CACHE = VENVS / "bare"
BARE_CARTPOLE, BARE_MUJOCO = BENCHMARKS / "bare" / "cartpole.cpp", BENCHMARKS / "bare" / "mujoco.cpp"


@dataclass(frozen=True)
class Task:
    """An environment to step, and the required ratios to its peers."""

    id: str
    num_envs: int
    actions: str
    peers: dict[str, float | None]
    """Required ratio by contender; None for one that does less work than Penstock and is shown for comparison."""
    their_id: str = ""
    threads: tuple[int, ...] = (1, 2)


# Penstock steps Atari with ale-py, which resizes by area, as EnvPool does by default.
CHEAPER = "envpool, bilinear resize"
# Its own vector environment and the bare emulator are further contenders; that one neither resizes nor stacks frames.
ATARI_PEERS: dict[str, float | None] = {"envpool": 1.05, CHEAPER: None, "ale": 1.0, "emulator": 0.95}
IN_BATCHES = {"penstock", "envpool", CHEAPER, "ale"}
"""Contenders that step Atari asynchronously too: the better of the two counts."""
LIBRARIES = {"gymnasium", "ale", "emulator"}
ENVPOOLS_ID = {"Taxi-v4": "Taxi-v3"}
GRID_PEERS: dict[str, float | None] = {"envpool": 1.0, "gymnasium": 20}
TASKS = {
    "cartpole-1024": Task("CartPole-v1", 1024, "discrete:2", {"envpool": 80, "ocean": 1.5, "bare": 0.6}),
    "cartpole-64": Task("CartPole-v1", 64, "discrete:2", {"envpool": 25, "ocean": 0.5}),
    "pendulum-1024": Task("Pendulum-v1", 1024, "box:1:2", {"envpool": 25}),
    "acrobot-1024": Task("Acrobot-v1", 1024, "discrete:3", {"envpool": 12}),
    "doorkey-64": Task("MiniGrid-DoorKey-8x8-v0", 64, "discrete:7", GRID_PEERS),
    "empty-64": Task("MiniGrid-Empty-8x8-v0", 64, "discrete:7", GRID_PEERS),
    "fourrooms-64": Task("MiniGrid-FourRooms-v0", 64, "discrete:7", GRID_PEERS),
    "dynamic-64": Task("MiniGrid-Dynamic-Obstacles-8x8-v0", 64, "discrete:3", GRID_PEERS),
    "frozenlake-64": Task("toy/FrozenLake-v1", 64, "discrete:4", GRID_PEERS, "FrozenLake-v1"),
    "taxi-64": Task("toy/Taxi-v4", 64, "discrete:6", GRID_PEERS, "Taxi-v4"),
    "cliffwalking-64": Task("toy/CliffWalking-v1", 64, "discrete:4", GRID_PEERS, "CliffWalking-v1"),
    "blackjack-64": Task("toy/Blackjack-v1", 64, "discrete:2", GRID_PEERS, "Blackjack-v1"),
    "ant-64": Task("Ant-v5", 64, "box:8:1", {"envpool": 1.35, "bare": 0.9}, threads=(2,)),
    "halfcheetah-64": Task("HalfCheetah-v5", 64, "box:6:1", {"envpool": 1.4, "bare": 0.9}, threads=(2,)),
    "pong-64": Task("ALE/Pong-v5", 64, "discrete:6", ATARI_PEERS, their_id="Pong-v5", threads=(2,)),
    "breakout-64": Task("ALE/Breakout-v5", 64, "discrete:4", ATARI_PEERS, their_id="Breakout-v5", threads=(2,)),
}
# Model, frame skip, bound of the controls, healthy heights (none if equal) and reset noise of each task.
MUJOCO = {
    "Ant-v5": ("ant.xml", 5, 1.0, 0.2, 1.0, 0.1),
    "HalfCheetah-v5": ("half_cheetah.xml", 5, 1.0, 0.0, 0.0, 0.1),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[*TASKS, "start"], default=[*TASKS, "start"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    rows: list[tuple[str, str, str, str]] = []
    raw: dict[str, Any] = {"machine": machine(("gymnasium", "ale-py", "mujoco", "minigrid"))}
    for name in args.only:
        found, raw[name] = start(args.rounds) if name == "start" else stepping(TASKS[name], args.rounds, args.seconds)
        rows += found
        for row in found:
            print(" | ".join(row), flush=True)
    write(args, rows, raw)


def stepping(task: Task, rounds: int, seconds: float) -> tuple[list[tuple[str, str, str, str]], Any]:
    contenders = ["penstock", *task.peers]
    modes = dict.fromkeys(contenders, ("sync",))
    if task.id.startswith("ALE/"):
        modes |= dict.fromkeys(IN_BATCHES, ("sync", "async"))
    best = {name: best_settings(name, task, modes[name], seconds) for name in contenders}
    taken = [
        {name: rate(name, task, mode, threads, seconds) for name, (mode, threads) in best.items()}
        for _ in range(rounds)
    ]
    rows = []
    for name, reach in task.peers.items():
        measured = [each["penstock"] / each[name] for each in taken]
        ours, theirs = (median(each[side] for each in taken) for side in ("penstock", name))
        mine, others = ("{}, {} threads".format(*best[side]) for side in ("penstock", name))
        note = (
            f"{ours:,.0f} ({mine}) and {theirs:,.0f} ({others}) "
            f"env steps/s{'' if reach is None or median(measured) >= reach else '; missed'}"
        )
        asked = "-" if reach is None else f">= {reach:g}"
        rows.append((f"{task.id}, {task.num_envs} envs / {name}", ratio(measured), asked, note))
    about = {"id": task.id, "num_envs": task.num_envs, "reach": task.peers}
    return rows, {**about, "settings": best, "rounds": taken}


def best_settings(name: str, task: Task, modes: tuple[str, ...], seconds: float) -> tuple[str, int]:
    threads = (1,) if name in {"ocean", "gymnasium"} else task.threads
    rates = {(mode, count): rate(name, task, mode, count, seconds) for mode in modes for count in threads}
    return max(rates, key=lambda settings: rates[settings])


def rate(name: str, task: Task, mode: str, threads: int, seconds: float) -> float:
    common = ["--num-envs", task.num_envs, "--seconds", seconds]
    stepped = [*common, "--num-threads", threads, "--actions", task.actions, "--mode", mode]
    if name == "penstock":
        result = penstock("--id", task.id, *stepped)
    elif name in {"envpool", CHEAPER}:
        resize = ["--resize", "bilinear" if name == CHEAPER else "area"] if task.id.startswith("ALE/") else []
        their_id = ENVPOOLS_ID.get(task.their_id, task.their_id or task.id)
        result = peer("pool", "pool_envpool.py", "--id", their_id, *stepped, *resize)
    elif name in LIBRARIES:
        their_id = task.id if task.id.startswith("ALE/") else task.their_id or task.id
        result = run(own_program("pool.libraries", "--library", name, "--id", their_id, *stepped), None)
    elif name == "ocean":
        result = peer("pool", "pool_ocean.py", *common)
    elif task.id in MUJOCO:
        result = bare_mujoco(task, threads, seconds)
    else:
        # This is the best of short intervals, while the others are means: it is a baseline, not a contender.
        return float(run([compiled(BARE_CARTPOLE), str(task.num_envs), str(threads)], None))
    return float(result["env_steps_per_second"])


def start(rounds: int) -> tuple[list[tuple[str, str, str, str]], Any]:
    arguments = ["--id", "HalfCheetah-v5", "--num-envs", 64, "--actions", "box:6:1", "--mode", "start"]
    taken = [(penstock(*arguments), peer("pool", "pool_envpool.py", *arguments)) for _ in range(rounds)]
    rows = []
    for key, unit, scale in (("seconds", "ms", 1e3), ("pss_bytes", "MB", 1e-6)):
        ours, theirs = (median(side[key] for side in sides) * scale for sides in zip(*taken, strict=True))
        measured = ratio([mine[key] / other[key] for mine, other in taken])
        rows.append(
            (f"start of 64 HalfCheetah-v5, {unit} / envpool", measured, "<= 0.5", f"{ours:.0f} and {theirs:.0f}")
        )
    return rows, taken


def penstock(*arguments: object) -> dict[str, Any]:
    return run(own_program("pool.stepping", *arguments), None)


def compiled(source: Path, *flags: str) -> str:
    CACHE.mkdir(parents=True, exist_ok=True)
    program = CACHE / source.stem
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        options = ["-std=c++20", "-O3", "-ffp-contract=off", "-pthread"]
        subprocess.run(["c++", *options, str(source), *flags, "-o", str(program)], check=True)
    return str(program)


def bare_mujoco(task: Task, threads: int, seconds: float) -> dict[str, Any]:
    import gymnasium  # noqa: PLC0415
    import mujoco  # noqa: PLC0415

    home = Path(mujoco.__file__).parent
    library = next(home.glob("libmujoco.so.*"))
    program = compiled(BARE_MUJOCO, "-I", str(home / "include"), str(library), f"-Wl,-rpath,{home}")
    model, frame_skip, bound, z_min, z_max, noise = MUJOCO[task.id]
    assets = Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets"
    settings = [task.num_envs, threads, frame_skip, max(seconds, 2.0), bound, z_min, z_max, noise]
    return run([program, str(assets / model), *map(str, settings)], None)


def write(args: argparse.Namespace, rows: list[tuple[str, str, str, str]], raw: dict[str, Any]) -> None:
    command = shlex.join(["python", "-m", "benchmarks.pool", "--only", *args.only, "--rounds", str(args.rounds)])
    write_table(args.results, "pool", command, rows, raw)


if __name__ == "__main__":
    main()
