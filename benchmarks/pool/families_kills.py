"""Trains one id of each family, kills it with SIGKILL at random moments, and compares every byte that it ends with.

The parts are those of kills.py: a flow, workers or both are killed, the command is given again as a person would give
it, and commits, shards, states, snapshots and checkpoint are compared with those of a run that nothing disturbed.
"""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.faults.kill_trials import LIMIT_SECONDS, Trial, content, differing
from benchmarks.pool.families_settings import settings_for
from penstock.storage.runs.run import RunFolder
from penstock.storage.stores.open import open_store
from tests.support.services.environment_server import EnvironmentProcess

SEED, SOCKET = 22, "socket/"
VICTIMS = ("the flow", "a worker", "several workers", "everything")
ENDS_COMMAND = ("the flow", "everything")
MOST_DISTURBED, MOST_RUNS = 2, 6
PRESET = """
seed = 7
[environment]
num_envs = 8
envs_per_tile = 4
max_episode_steps = 100
[algorithm]
epochs = 1
minibatches = 2
[schedule]
round_steps = 16
rounds_per_stage = 12
max_stages = 3
evaluation_episodes = 2
[cluster]
lease_seconds = 6.0
"""


def kill(name: str) -> dict[str, Any]:
    """Train an id undisturbed, and again with kills; return the kills and how many files were compared.

    One kill at least ends the command, which is then given again; runs are repeated until one did.
    """
    with tempfile.TemporaryDirectory(prefix="penstock-kills-") as folder, contextlib.ExitStack() as stack:
        os.environ |= {"PREFECT_HOME": f"{folder}/prefect", "COLUMNS": "200"}
        address = None
        if name.startswith(SOCKET):
            address = stack.enter_context(EnvironmentProcess(name.removeprefix(SOCKET))).address
        trial = Trial(Path(folder), random.Random(f"{SEED} {name}"), disk=False)
        stack.callback(trial.close)
        return compare(trial, name, address)


def compare(trial: Trial, name: str, address: str | None) -> dict[str, Any]:
    """Return what `kill` does, in a folder and with a Prefect server of its own."""
    store, preset = f"{trial.folder}/runs", trial.folder / "preset.toml"
    preset.write_text(PRESET, encoding="utf-8")
    settings = {"environment.id": name, **settings_for(name, address)}
    if address:
        settings["environment.address"] = address
    options = [word for key, value in settings.items() for word in (f"--{key}", value)]

    def train(run: str) -> tuple[str, ...]:
        return ("train", str(preset), "--name", run, "--store", store, "--act-tasks", "2", *options)

    begun = time.perf_counter()
    command = trial.start(*train("undisturbed"))
    if command.wait(LIMIT_SECONDS):
        return {"error": f"undisturbed: {command.output[-300:]}"}
    seconds = time.perf_counter() - begun
    expected, differences = content(RunFolder(open_store(store), "undisturbed")), list[str]()
    for index in range(MOST_RUNS):
        run = RunFolder(open_store(store), f"killed-{index}")
        resume = ("resume", run.name, "--store", store, "--trust")
        begun, before = time.perf_counter(), sum(trial.kills.values())
        trial.survive(run, {"train": train(run.name), "resume": resume}, seconds, VICTIMS, MOST_DISTURBED)
        differences += differing(run, expected)
        if sum(trial.kills.values()) == before:  # it ended before its kill: the undisturbed run may have begun cold
            seconds = min(seconds, time.perf_counter() - begun)
        if any(trial.kills[victim] for victim in ENDS_COMMAND):
            break
    kills = sum(trial.kills.values())
    found = {"kills": dict(trial.kills), "files": len(expected), "bytes": sum(map(len, expected.values()))}
    if not any(trial.kills[victim] for victim in ENDS_COMMAND):
        found["error"] = f"{MOST_RUNS} runs ended before a command of theirs was killed"
    if problems := [*trial.interventions, *(name.removeprefix(store) for name in differences)]:
        found["error"] = f"{len(differences)} of {len(expected)} files differ after {kills} kills: {problems[0]}"[:400]
    return found
