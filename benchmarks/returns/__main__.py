"""Measures how well Penstock's algorithms and their peers learn: returns after a fixed number of environment steps.

Peers' own scripts run here, in the same versions of the environments; every row has a baseline that costs nothing. A
trial is one contender with one seed. Its result is a file below `benchmarks/results/returns`, and a trial that has one
is not run again: a command that was interrupted continues. When --hours are over, or at Ctrl-C, runs of Penstock are
interrupted, and go on from their last commits the next time; their results name the steps at each interruption. Prints
CPU hours.

    make returns                                                 # every row, in order, until --hours are over
    make returns ARGS="--only ppo-hopper --seeds 1 2"
    make returns ARGS="--quick"                                  # five rows, a fifth of the steps or less, two seeds
    make returns ARGS="--quick --only offline-hopper-expert --length 4800"
    make returns ARGS="--list"                                   # what is missing, with estimated hours

`python -m benchmarks.board.page` draws the results into docs/benchmarks.md, and so does this at its end.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import json
import math
import resource
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil

from benchmarks.board.page import write_pages
from benchmarks.peers.measure import machine
from benchmarks.returns.offline_datasets import Dataset, datasets_of
from benchmarks.returns.parts import InterruptedTrialError, finish_run
from benchmarks.returns.rows import ROWS, Contender, Row, expected_seconds
from benchmarks.support.programs import PEERS, RESULTS, ROOT, own_program, peer_python
from penstock.flows.settings.options import parse_overrides
from penstock.tasks.setup.config.loading import REPLAY_PRESETS_FOLDER, build_config, load_preset, merge

MEASURED = RESULTS / "returns"
ROWS_OF_UPDATE = 256
"""Of offline learning, in the presets and by the peer."""
QUICK_DATA = (15_000, 10_000)
"""Steps of the agent, and rows, of a quick trial's data sets."""
PATIENT = ("--cluster.gang-seconds", "600", "--cluster.lease-seconds", "60")
"""A busy machine does not change returns, so only the timeouts are longer."""
QUICK = ("ppo-halfcheetah", "mappo-spread", "connect-four", "lag-cartpole-ppo", "lag-cartpole-impala")
"""Rows of --quick, with two seeds, and a fifth of the steps or less."""
QUICK_TOGETHER = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(ROWS), default=None)
    parser.add_argument("--contenders", nargs="+", default=None, help="part of a contender's title")
    parser.add_argument("--seeds", type=int, nargs="+", default=None)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--length", type=int, default=None, help="steps of a quick trial, or updates of an offline one")
    parser.add_argument(
        "--hours", type=float, default=24.0, help="of wall clock; then no trial begins, and runs are interrupted"
    )
    parser.add_argument(
        "--together", type=int, default=None, help=f"trials that run at once: 1, or {QUICK_TOGETHER} with --quick"
    )
    parser.add_argument("--store", type=Path, default=ROOT / "runs" / "returns", help="of Penstock's runs")
    parser.add_argument("--results", type=Path, default=MEASURED)
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    if args.length is not None and not args.quick:
        parser.error(f"--length {args.length}: only quick trials have another length than their row's; add --quick")

    def length_of(row: Row) -> int:
        return args.length or row.steps_of(args.quick)

    folder = f"quick-{args.length}" if args.length else "quick"
    results = args.results / folder if args.quick else args.results
    trials = [
        (name, row, contender, seed)
        for name, row in ((name, ROWS[name]) for name in args.only or (QUICK if args.quick else ROWS))
        for seed in args.seeds or range(1, (2 if args.quick else row.seeds) + 1)
        for contender in row.contenders
        if not args.contenders or any(part.lower() in contender.title.lower() for part in args.contenders)
    ]
    missing = [each for each in trials if not path_of(results, each[0], each[2], each[3]).is_file()]
    together = args.together or (QUICK_TOGETHER if args.quick else 1)
    seconds = sum(expected_seconds(row, contender, length_of(row)) for _, row, contender, _ in missing) / together
    print(
        f"{len(trials) - len(missing)} of {len(trials)} trials are there; the others take about {duration(seconds)}, "
        f"{together} at once with a core each, and minutes more where a peer has to be installed",
        flush=True,
    )
    if args.list:
        for name in dict.fromkeys(each[0] for each in trials):
            left = [each for each in missing if each[0] == name]
            seconds = sum(expected_seconds(row, contender, length_of(row)) for _, row, contender, _ in left)
            print(f"{name}: {len(left)} trials missing, {duration(seconds)} of one core")
        return
    end = time.monotonic() + args.hours * 3600
    before = cpu_seconds()
    # A shell that starts this in the background makes it, and so its runs, ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, interrupt_with_children)

    def run(trial: tuple[str, Row, Contender, int]) -> None:
        name, row, contender, seed = trial
        if time.monotonic() > end:
            return
        try:
            found = measure(name, row, contender, seed, length_of(row), args.store, end)
        except InterruptedTrialError as stop:
            print(f"{name} | {contender.title} | seed {seed} | {stop}", flush=True)
            return
        path = path_of(results, name, contender, seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        last = found["returns"][-1]
        print(f"{name} | {contender.title} | seed {seed} | {last} | {found['seconds']:.0f} s", flush=True)

    try:
        with ThreadPoolExecutor(together) as threads:
            list(threads.map(run, missing))
    except KeyboardInterrupt:
        sys.exit("interrupted; the same command continues")
    print(f"{(cpu_seconds() - before) / 3600:.2f} CPU hours", flush=True)
    if left := sum(not path_of(results, each[0], each[2], each[3]).is_file() for each in missing):
        print(f"{left} of {len(trials)} trials are left; the same command continues", flush=True)
    if not args.quick and args.results == MEASURED:
        write_pages()


def interrupt_with_children(*_: object) -> None:
    """Pass SIGTERM on as Ctrl-C, which reaches a terminal's whole group: `kill` reaches this process alone."""
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            child.send_signal(signal.SIGINT)
    raise KeyboardInterrupt


def duration(seconds: float) -> str:
    """Return a duration in whole minutes, rounded up, and from an hour and a half on in hours."""
    return f"{math.ceil(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def path_of(results: Path, name: str, contender: Contender, seed: int) -> Path:
    return results / name / f"{contender.slug}-{seed}.json"


def cpu_seconds() -> float:
    """Return the CPU seconds of all processes that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(
    name: str, row: Row, contender: Contender, seed: int, env_steps: int, store: Path, end: float
) -> dict[str, Any]:
    """Run one trial: its mean returns by part of the training, as acted, and the command that repeats it.

    Raises:
        InterruptedTrialError: `end`, a time of `time.monotonic`, came in the middle of a run of Penstock.
    """
    started = time.monotonic()
    made = datasets_of(row.environment, store, *QUICK_DATA if env_steps < row.env_steps else ()) if row.dataset else {}
    if row.dataset and contender.command[-1] == "data":
        data = made[row.dataset]
        found = {"returns": [data.mean_return] * row.parts, "env_steps": 0, "about": machine(["penstock-rl", "minari"])}
        found["command"] = "python -m benchmarks.returns.offline_datasets"
    elif contender.kind == "replay":
        name = f"{name}-{contender.slug}-{env_steps}-{seed}"
        found = replay(row, contender, seed, env_steps, store, name, made[row.dataset], end)
    elif contender.kind == "penstock":
        found = train(row, contender, seed, env_steps, store, f"{name}-{contender.slug}-{env_steps}-{seed}", end)
    elif contender.kind == "self-play":
        found = self_play(row, contender, seed, env_steps, store, f"{name}-{contender.slug}-{env_steps}-{seed}", end)
    else:
        command = peer_command(row, contender, seed, env_steps)
        if contender.kind == "peer" and row.dataset:
            data = made[row.dataset]
            command = peer_command(
                row, contender, seed, row.parts * passes_of(data, row, env_steps) * -(-data.rows // ROWS_OF_UPDATE)
            )
            command += ["--data", data.minari, "--reward-scale", repr(data.reward_scale)]
        found = figures_of(row, command)
    return {
        "row": name,
        "contender": contender.title,
        "environment": row.environment,
        "seed": seed,
        "seconds": time.monotonic() - started,
        **found,
        **({"scale": [made["random"].mean_return, made["expert"].mean_return]} if made else {}),
        "date": dt.datetime.now(tz=dt.UTC).date().isoformat(),
    }


def figures_of(row: Row, command: list[str]) -> dict[str, Any]:
    """Run a script that prints its figures as JSON, and return those of a trial."""
    output = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout)
    return {
        "returns": output["returns_by_stage"],
        **{key: output[key] for key, _ in row.measures if key in output},
        "env_steps": output["env_steps"],
        "about": output["machine"],
        "command": " ".join(["python", *command[1:]]).replace(f"{ROOT}/", ""),
    }


def peer_command(row: Row, contender: Contender, seed: int, env_steps: int) -> list[str]:
    """Return the command of a peer's script, or of a baseline's."""
    if contender.kind == "baseline":
        script = own_program(row.baseline_program, *contender.command)
        return [*script, "--environment", row.environment, "--seed", str(seed), "--parts", str(row.parts)]
    environment, script_name, *options = contender.command
    command = [str(peer_python(environment)), str(PEERS / script_name), *options]
    return [*command, "--seed", str(seed), "--env-steps", str(env_steps)]


def passes_of(data: Dataset, row: Row, updates: int) -> int:
    """Return the passes over the data of a part, for about so many updates in all."""
    return max(1, round(updates / row.parts / -(-data.rows // ROWS_OF_UPDATE)))


def replay(
    row: Row, contender: Contender, seed: int, updates: int, store: Path, name: str, data: Dataset, end: float
) -> dict[str, Any]:
    """Learn from a data set with one seed, evaluated by ten episodes after each part; continue an interrupted run."""
    passes = passes_of(data, row, updates)
    made, preset = row.parts * passes * -(-data.rows // ROWS_OF_UPDATE), contender.command[0]
    settings = load_preset(preset, REPLAY_PRESETS_FOLDER)["algorithm"]
    # What depends on the data set; a round is a pass over all of it, or several, and a stage one round.
    unlearned = settings.get("moment_rounds", 0)
    options = ["--from", data.run, "--preset", preset, "--algorithm.epochs", str(passes)]
    options += ["--shards-per-round", str(data.shards), "--max-stages", str(row.parts + unlearned)]
    options += ["--cluster.gang-seconds", "3600", "--seed", str(seed)]
    if settings["name"] == "iql":
        options += ["--algorithm.reward-scale", repr(data.reward_scale), "--algorithm.anneal-minibatches", str(made)]
    _, facts = finish_run(store, name, ["replay", name, *options], end)
    commits = sorted((store / name / "commits").glob("*.json"))[unlearned:]
    return {
        "returns": [json.loads(path.read_text())["evaluation"]["mean_return"] for path in commits],
        "env_steps": made,
        **{key: value for key, value in facts.items() if key != "interruptions"},
        "command": " ".join(["penstock", "replay", "NAME", *options]),
        "about": machine(["penstock-rl", "torch", "gymnasium", "mujoco", "numpy"]),
    }


def train(
    row: Row, contender: Contender, seed: int, env_steps: int, store: Path, name: str, end: float
) -> dict[str, Any]:
    """Train one seed for all its steps; continue where an interrupted command has ended."""
    preset, *settings = contender.command
    config = build_config(merge(load_preset(preset), parse_overrides(settings)))
    rounds = max(1, env_steps // (config.environment.num_envs * config.schedule.round_steps * row.parts))
    options = [preset, *settings, "--rounds-per-stage", str(rounds), "--max-stages", str(row.parts)]
    options += ["--target-return", "none", "--evaluate-every-stages", str(row.parts), "--evaluation-episodes", "100"]
    options += [*PATIENT, "--seed", str(seed)]
    printed, facts = finish_run(store, name, ["train", *options, "--name", name], end)
    outcome = json.loads(printed)
    commits = sorted((store / name / "commits").glob("*.json"))
    return {
        "returns": [json.loads(path.read_text())["metrics"].get("episode_return") for path in commits],
        "greedy_return": outcome["evaluation"]["mean_return"],
        "env_steps": outcome["env_steps"],
        **facts,
        "command": " ".join(["penstock", "train", *options]),
        "about": machine(["penstock-rl", "torch", "gymnasium", "mujoco", "numpy"]),
    }


def self_play(
    row: Row, contender: Contender, seed: int, env_steps: int, store: Path, name: str, end: float
) -> dict[str, Any]:
    """Train one seed by self-play in stages of the preset, as opponents change at commits; then play its games."""
    program, preset, *settings = contender.command
    config = build_config(merge(load_preset(preset), parse_overrides(settings)))
    steps = config.environment.num_envs * config.schedule.round_steps * config.schedule.rounds_per_stage
    stages = str(max(row.parts, env_steps // steps))
    options = [preset, *settings, "--max-stages", stages, "--target-return", "none", "--evaluate-every-stages", stages]
    options += [*PATIENT, "--seed", str(seed)]
    _, facts = finish_run(store, name, ["train", *options, "--name", name], end)
    playing = own_program(program, "--run", name, "--store", store.absolute(), "--parts", row.parts, "--seed", seed)
    started = time.monotonic()
    found = figures_of(row, playing)
    facts["seconds"] += time.monotonic() - started
    return {
        **found,
        **facts,
        "command": " ".join(["penstock", "train", *options, "--name", "NAME"])
        + f" && python -m benchmarks.{program} --run NAME --seed {seed}",
    }


if __name__ == "__main__":
    main()
