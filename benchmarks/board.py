"""Runs Penstock and its peers side by side, and writes docs/benchmarks.md from what it has measured.

Contenders take turns within one process tree, in an order that shifts from round to round, and each is measured alone.
Every peer runs at the settings that it publishes and at those of the workload, which Penstock has as well. All rates
are of the whole loop, updates included, without the start and without evaluations.

    make board                        # everything; installs the peers into .venv-peers first
    make board ARGS=--quick           # PPO, DQN and SAC, three rounds; about a quarter of an hour
    python benchmarks/board.py --write benchmarks/results/2026-11-25-board.json      # the page alone
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
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from peers.measure import machine
from run import HERE, peer, peer_python, ratio, run

from penstock.flows.settings.options import parse_overrides
from penstock.tasks.setup.config.loading import build_config, load_preset, merge

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PAGE = HERE.parent / "docs" / "benchmarks.md"
OURS = "Penstock, lag 1"
ALONE = "acting and updating alone, by Penstock's functions"


@dataclass(frozen=True, slots=True)
class Workload:
    """A preset with settings, and who runs it."""

    title: str
    preset: str
    settings: tuple[str, ...]
    equal: tuple[str, ...]
    """Peers at the same settings."""
    others: tuple[str, ...]
    """Peers at other settings, which they publish."""
    rounds_per_stage: int
    stages: int = 3
    goal: float = 1.0
    """Ratio to the best peer at equal settings that Penstock should reach."""
    judged: str = OURS
    """The row of Penstock that the goal is for."""
    against: str | None = None
    """The peer that the goal is for; None: the fastest at equal settings."""


WORKLOADS = {
    "ppo": Workload(
        "PPO on CartPole-v1: [64, 64], 32 x 128 rows a round, 4 epochs of 4 minibatches",
        "cartpole",
        ("--hidden", "[64, 64]"),
        ("SB3, equal", "CleanRL, equal"),
        ("SB3, RL zoo", "CleanRL, own"),
        rounds_per_stage=60,
        goal=4.0,
    ),
    "dqn": Workload(
        "DQN on CartPole-v1: [120, 84], 25 updates of 128 rows each 256 steps",
        "cartpole-dqn",
        (
            *("--double", "false", "--dueling", "false", "--return-steps", "1", "--huber", "true"),
            *("--gradient-norm", "10"),
        ),
        ("SB3, equal",),
        ("SB3, RL zoo",),
        rounds_per_stage=120,
        goal=2.0,
        judged="Penstock, lag 0",
    ),
    "sac": Workload(
        "SAC on Pendulum-v1: [64, 64], an update of 256 rows for each step",
        "pendulum-sac",
        (),
        ("SB3, equal",),
        ("SB3, RL zoo",),
        rounds_per_stage=60,
        goal=2.0,
        judged="Penstock, lag 0",
    ),
    "halfcheetah": Workload(
        "PPO on HalfCheetah-v5: CleanRL's recipe, 2,048 rows a round, 10 epochs of 32 minibatches",
        "halfcheetah",
        (),
        # CleanRL's own settings are the workload's.
        ("CleanRL, own", "SB3, equal"),
        (),
        rounds_per_stage=20,
        goal=8.0,
        against="CleanRL, own",
        judged="Penstock, lag 0",
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="PPO, DQN and SAC, three rounds each")
    parser.add_argument("--only", nargs="+", choices=list(WORKLOADS))
    parser.add_argument("--rounds", type=int, help="default: 5, with --quick 3")
    parser.add_argument("--write", type=Path, nargs="+", help="write the page from these results, and measure nothing")
    args = parser.parse_args()
    if args.write:
        write_page(args.write)
        return
    names = args.only or [name for name in WORKLOADS if not (args.quick and name == "halfcheetah")]
    rounds = args.rounds or (3 if args.quick else 5)
    for name in ("sb3", "cleanrl", "cleanrl-v5"):
        peer_python(name)
    with tempfile.TemporaryDirectory(prefix="penstock-board-") as home:
        os.environ["PREFECT_HOME"] = home
        from penstock.flows.api.prefect_server import PrefectServer  # noqa: PLC0415  (Prefect reads PREFECT_HOME when it is imported)

        with PrefectServer() as server:
            server.wait_ready()
            server.direct_here()
            measured = {name: measure(name, rounds, home) for name in names}
    result = {
        "command": shlex.join(["python", "benchmarks/board.py", *sys.argv[1:]]),
        "date": dt.datetime.now(tz=dt.UTC).date().isoformat(),
        "machine": machine(["penstock-rl", "torch", "prefect", "distributed", "numpy", "gymnasium"]),
        "workloads": measured,
    }
    parts = [result["date"], "board", *(["quick"] if args.quick else []), *(args.only or [])]
    path = HERE / "results" / f"{'-'.join(parts)}.json"
    before = [each for each in sorted(path.parent.glob("*-board*.json")) if each != path]
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    write_page([*before, path])


def measure(name: str, rounds: int, home: str) -> dict[str, Any]:
    """Return each contender's env steps/s by round, with what it ran."""
    workload, found = WORKLOADS[name], contenders(name)
    rates: dict[str, list[float]] = {title: [] for title in found}
    said: dict[str, Any] = {}
    for turn in range(rounds):
        titles = list(found)
        for title in titles[turn % len(titles) :] + titles[: turn % len(titles)]:
            result = found[title](store=f"{home}/{name}-{turn}-{len(title)}-{title[-1]}")
            rates[title].append(result.pop("env_steps_per_second"))
            said[title] = {key: value for key, value in result.items() if key != "returns_by_stage"}
            print(name, turn, title, f"{rates[title][-1]:,.0f}", sep=" | ", flush=True)
    return {"title": workload.title, "rates": rates, "ran": said}


def contenders(name: str) -> dict[str, Callable[..., dict[str, Any]]]:
    """Return what runs in a round: each returns its rate and what it ran."""
    workload = WORKLOADS[name]
    config = build_config(merge(load_preset(workload.preset), parse_overrides(workload.settings)))
    algorithm: Any = config.algorithm
    envs, steps = config.environment.num_envs, config.schedule.round_steps
    hidden: list[object] = ["--hidden", *algorithm.hidden] if algorithm.name != "ppo" or name == "ppo" else []
    if algorithm.name == "ppo":
        rows = envs * steps // algorithm.minibatches
        same: list[object] = ["--epochs", algorithm.epochs, "--minibatch-rows", rows]
        same += ["--envs", envs, "--round-steps", steps]
        normalize = ["--normalize", "--hidden", 64, 64] if name == "halfcheetah" else hidden
        sb3 = partial(peer, "sb3", "sb3_training.py", "--environment", config.environment.id)
        equal: Callable[..., Any] = partial(sb3, *same, *normalize)
        # The zoo's: 8 environments x 32 steps, 20 epochs of one minibatch.
        zoo: Callable[..., Any] = partial(
            sb3, "--epochs", 20, "--minibatch-rows", 256, "--envs", 8, "--round-steps", 32, "--hidden", 64, 64
        )
        cleanrl = partial(peer, "cleanrl", "cleanrl_training.py", *same)
        own = partial(peer, "cleanrl", "cleanrl_training.py", "--envs", 4, "--minibatch-rows", 128, "--epochs", 4)
        if name == "halfcheetah":
            own = partial(peer, "cleanrl-v5", "cleanrl_learning.py", "--env-steps", 20 * 2048)
    else:
        sb3 = partial(peer, "sb3", "sb3_off_policy.py", "--algorithm", algorithm.name)
        sb3 = partial(sb3, "--environment", config.environment.id)
        equal = partial(
            sb3,
            *("--envs", envs, "--round-steps", steps, "--minibatches", algorithm.minibatches),
            *("--minibatch-rows", algorithm.minibatch_rows, *hidden, "--warm-up-rows", algorithm.warm_up_rows),
            *("--window-rows", algorithm.window_rows),
        )
        if algorithm.name == "dqn":  # one environment; 128 updates of 64 rows each 256 steps
            zoo = partial(sb3, "--envs", 1, "--round-steps", 256, "--minibatches", 128, "--minibatch-rows", 64)
            zoo = partial(zoo, "--hidden", 256, 256, "--warm-up-rows", 1000, "--window-rows", 100_000)
        else:  # one environment, an update of 256 rows for each step
            zoo = partial(sb3, "--envs", 1, "--round-steps", 1, "--minibatches", 1, "--minibatch-rows", 256)
            zoo = partial(zoo, "--hidden", 256, 256, "--warm-up-rows", 100, "--window-rows", 1_000_000)
        cleanrl = own = zoo
    peers = {"SB3, equal": equal, "SB3, RL zoo": zoo, "CleanRL, equal": cleanrl, "CleanRL, own": own}
    found: dict[str, Callable[..., dict[str, Any]]] = {
        f"Penstock, lag {lag}": partial(train, workload, lag) for lag in (0, 1)
    }
    if algorithm.name == "ppo":
        found[ALONE] = partial(bare, workload)
    return found | {title: partial(without_store, peers[title]) for title in (*workload.equal, *workload.others)}


def without_store(measured: Callable[..., dict[str, Any]], store: str) -> dict[str, Any]:  # noqa: ARG001
    """Run a peer, which stores nothing, once."""
    return measured()


def bare(workload: Workload, store: str) -> dict[str, Any]:  # noqa: ARG001
    command = [sys.executable, str(HERE / "bare" / "training.py"), "--torch-threads", "1"]
    return run([*command, "--", workload.preset, *workload.settings], None)


def train(workload: Workload, lag: int, store: str) -> dict[str, Any]:
    """Run `penstock train`; the rate is that of all stages but the first, commits included, evaluations not."""
    command = [str(Path(sys.executable).parent / "penstock"), "train", workload.preset, *workload.settings]
    command += ["--lag", str(lag), "--rounds-per-stage", str(workload.rounds_per_stage)]
    command += ["--max-stages", str(workload.stages), "--target-return", "none", "--evaluation-episodes", "1"]
    command += ["--store", store, "--name", "measured", "--json"]
    subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    stages = [json.loads(path.read_text()) for path in sorted(Path(store, "measured", "timings").glob("*.json"))][1:]
    steps = sum(part["env_steps"] for stage in stages for part in stage["act"])
    seconds = sum(stage["stage_seconds"] - stage["evaluate_seconds"] for stage in stages)
    return {"env_steps_per_second": steps / seconds, "command": shlex.join(["penstock", *command[1:-5]])}


HEAD = """# Benchmarks

`make board` writes this page; nothing here is written by hand. Each table is of one machine and one command: contenders
took turns, round by round, each alone on the machine, with one torch thread. Rates are env steps/s of the whole loop,
updates included, without start and evaluations: the median of the rounds, and their range. Ratios above 1 are wins of
Penstock, those below 1 its losses, computed round by round. *Equal*: the same network, environments, rows, epochs and
minibatches, and for off-policy algorithms the same updates. *RL zoo* and *own*: what the peer publishes for this
environment; where it computes another amount for each step, the rate says what a user of that peer gets, and no ratio
says who is faster. Random actions, the policy that costs nothing, have no updates to compare.
"""


def write_page(paths: list[Path]) -> None:
    """Write docs/benchmarks.md: for each workload the last of these results that has it."""
    workloads: dict[str, tuple[dict[str, Any], Path, dict[str, Any]]] = {}
    for path in paths:
        result = json.loads(path.read_text(encoding="utf-8"))
        for name, found in result["workloads"].items():
            workloads[name] = found, path, result
    sections = [table(WORKLOADS[name], *workloads[name]) for name in WORKLOADS if name in workloads]
    PAGE.write_text("\n".join([HEAD, *sections]), encoding="utf-8")
    print(PAGE.read_text(encoding="utf-8"))


def table(workload: Workload, found: Mapping[str, Any], path: Path, result: Mapping[str, Any]) -> str:
    """Return a workload's section."""
    rates: dict[str, list[float]] = found["rates"]
    ours = [title for title in rates if title.startswith("Penstock")]
    equal = [title for title in rates if title in workload.equal]
    lines = [f"## {found['title']}", "", f"| | env steps/s | {' | '.join(f'{title} / this' for title in ours)} |"]
    lines.append("|---" * (2 + len(ours)) + "|")
    for title, values in sorted(rates.items(), key=lambda item: -median(item[1])):
        shares = [
            "" if title == mine else ratio([a / b for a, b in zip(rates[mine], values, strict=True)]) for mine in ours
        ]
        if title not in (*ours, *equal, ALONE):
            shares = ["other work"] * len(ours)
        spread = f"{median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})"
        lines.append(f"| {title} | {spread} | {' | '.join(shares)} |")
    best = workload.against or max(equal, key=lambda title: median(rates[title]))
    reached = median(a / b for a, b in zip(rates[workload.judged], rates[best], strict=True))
    verdict = "reached" if reached >= workload.goal else "**missed**"
    whom = best if workload.against else f"the best peer at equal settings, {best}"
    about = result["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    lines += [
        "",
        f"Goal: {workload.judged}, at {workload.goal:g} times {whom}. Measured: {reached:.2f}, {verdict}.",
        "",
        f"{result['date']}, `{result['command']}`, {about['processor']}, {about['cores']} cores, {versions}.",
        f"Every round: [{path.name}](../benchmarks/results/{path.name}).",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
