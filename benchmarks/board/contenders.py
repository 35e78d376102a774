"""Makes the contenders of a workload: Penstock at two lags, its functions alone, and peers with their threads.

A peer has one or two torch threads, and stable-baselines3's environments are in its process or in one each. One run of
each is measured beforehand; those that are nearly the fastest then run in every round, and the fastest of them counts.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.board.workloads import ALONE, WORKLOADS, Workload
from benchmarks.support.programs import peer, run
from penstock.flows.settings.options import parse_overrides
from penstock.tasks.setup.config.loading import build_config, load_preset, merge

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Contender = Callable[[int, str], dict[str, Any]]
    """From a seed and the folder of a store to a rate and what ran."""


@dataclass(frozen=True, slots=True)
class Cores:
    """Says how a peer uses the cores."""

    torch_threads: int = 1
    subprocesses: bool = False

    @property
    def options(self) -> tuple[object, ...]:
        """Return the options of a peer's script."""
        return "--torch-threads", self.torch_threads, *(["--subprocesses"] if self.subprocesses else [])

    def __str__(self) -> str:
        threads = "one torch thread" if self.torch_threads == 1 else f"{self.torch_threads} torch threads"
        return f"{threads}, a process for each environment" if self.subprocesses else threads


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer's script with its settings, in an environment of Python of its own."""

    venv: str
    script: str
    options: Sequence[object]

    @property
    def choices(self) -> list[Cores]:
        """Return the ways in which it can use two cores. CleanRL's scripts say where their environments are."""
        several = self.venv == "sb3" and self.options[self.options.index("--envs") + 1] != 1
        return [Cores(threads, apart) for threads, apart in product((1, 2), (False, True) if several else (False,))]

    def measure(self, cores: Cores, seconds: float, seed: int, store: str = "") -> dict[str, Any]:  # noqa: ARG002
        """Run it, which stores nothing, once."""
        options = [*self.options, *cores.options, "--seed", seed]
        if self.script == "cleanrl_learning.py":  # a whole recipe: rounds of 2,048 steps, of two seconds or so
            options += ["--env-steps", 2048 * max(8, round(seconds))]
        else:
            options += ["--seconds", seconds]
        told = shlex.join(["python", f"benchmarks/peers/{self.script}", *map(str, options)])
        return peer(self.venv, self.script, *options) | {"command": told}


NEARLY = 0.75
"""A peer's way to use the cores is measured in every round if it reaches this share of the fastest's rate."""


def rates_beforehand(name: str, seconds: float) -> dict[str, dict[Cores, float]]:
    """Return the env steps/s of each peer of a workload, for each way to use the cores: one run of `seconds` each."""
    found: dict[str, dict[Cores, float]] = {}
    for title, contender in peers_of(name).items():
        found[title] = {}
        for cores in contender.choices:
            rate = contender.measure(cores, seconds, 0)["env_steps_per_second"]
            found[title][cores] = rate
            print(name, "beforehand", title, cores, f"{rate:,.0f}", sep=" | ", flush=True)
    return found


def contenders(
    name: str, seconds: float, beforehand: Mapping[str, Mapping[Cores, float]], nearly: float = NEARLY
) -> dict[tuple[str, Cores | None], Contender]:
    """Return what runs in a round, by title, and for peers by each way that was nearly the fastest beforehand."""
    workload = WORKLOADS[name]
    found: dict[tuple[str, Cores | None], Contender] = {
        (f"Penstock, lag {lag}", None): partial(train, workload, lag, seconds) for lag in (0, 1)
    }
    found[ALONE, None] = partial(bare, workload, seconds)
    for title, contender in peers_of(name).items():
        rates = beforehand[title]
        for cores, rate in rates.items():
            if rate >= nearly * max(rates.values()):
                found[title, cores] = partial(contender.measure, cores, seconds)
    return found


def peers_of(name: str) -> dict[str, Peer]:
    """Return a workload's peers by title."""
    workload, config = WORKLOADS[name], config_of(name)
    algorithm: Any = config.algorithm
    made = on_policy(name, config, algorithm) if algorithm.name == "ppo" else off_policy(config, algorithm)
    titles = (*workload.equal, *workload.others)
    return {
        title: Peer(str(venv), str(script), options) for title in titles for venv, script, *options in [made[title]]
    }


def config_of(name: str) -> Any:
    workload = WORKLOADS[name]
    return build_config(merge(load_preset(workload.preset), parse_overrides(workload.settings)))


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
            "CleanRL, own": ["cleanrl-v5", "cleanrl_learning.py"],
        }
    cleanrl = ["cleanrl", "cleanrl_training.py"]
    if name == "pong":
        frames = ["sb3", "sb3_training.py", "--environment", "PongNoFrameskip-v4", "--atari"]
        cleanrl += ["--script", "ppo_atari_envpool", "--environment", "Pong-v5"]
        return {
            "SB3, equal": [*frames, *same],
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
