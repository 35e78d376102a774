"""Makes data sets for offline learning with Penstock's own runs: random, medium, medium-replay and expert.

An agent learns by SAC (preset `halfcheetah-sac`, seed 1) and is evaluated after each of 40 stages. *expert* is its last
version; *medium* is the first one that an evaluation puts a third to half of the way from random actions to the expert
(if none is there, the one nearest to the middle of that). Each acts, without learning, in a run of its own, and so does
a uniformly random policy. *medium-replay* is what the agent had acted until it was medium. Rows stay in the runs'
shards, which `penstock replay` reads, and the same rows are exported in Minari's format, which others read.

What is made already stays; an interrupted command continues. 20 minutes to an hour for each environment.

    python -m benchmarks.returns.offline_datasets
    python -m benchmarks.returns.offline_datasets --environments Hopper-v5 --train-steps 30000 --rows 20000 --store runs
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import minari
import numpy as np

from penstock.storage.runs.run import open_run

if TYPE_CHECKING:
    from collections.abc import Sequence

ENVIRONMENTS = ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5")
KINDS = ("random", "medium", "medium-replay", "expert")
STORE = Path(__file__).resolve().parents[2] / "runs" / "returns"
STAGES, ENVS, ROUND_STEPS = 40, 10, 1_000
SEED, ACTING_SEED = 1, 100
_MEDIUM = (1 / 3, 1 / 2)
_NEVER = 900_000
"""Rows before learning begins: more than a data set has."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """A data set: a run in a store, and the same rows in Minari's format."""

    run: str
    minari: str
    rows: int
    episodes: int
    shards: int
    mean_return: float
    """Of whole episodes, as acted."""
    reward_scale: float
    """1,000 over the range of the episodes' returns: the scale of rewards that IQL's authors use."""
    version: int
    """Version of the agent that acted, or the last one that did; 0: none."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environments", nargs="+", default=list(ENVIRONMENTS))
    parser.add_argument("--train-steps", type=int, default=300_000)
    parser.add_argument("--rows", type=int, default=200_000, help="of each data set but medium-replay")
    parser.add_argument("--store", type=Path, default=STORE)
    args = parser.parse_args()
    for environment in args.environments:
        for kind, made in datasets_of(environment, args.store, args.train_steps, args.rows).items():
            print(f"{environment} {kind}: {made.rows:,} rows, mean return {made.mean_return:,.1f}", flush=True)


def datasets_of(environment: str, store: Path, train_steps: int = 300_000, rows: int = 200_000) -> dict[str, Dataset]:
    """Return the data sets of an environment by kind; make those that are not there yet."""
    name = f"offline-{environment.lower()}-{train_steps}-{rows}"
    described = folder_of(store) / f"{name}.json"
    if described.is_file():
        return {kind: Dataset(**values) for kind, values in json.loads(described.read_text(encoding="utf-8")).items()}
    acting = ["--num-envs", str(ENVS), "--envs-per-tile", str(ENVS), "--round-steps", str(ROUND_STEPS)]
    acting += ["--rounds-per-stage", str(max(1, rows // (ENVS * ROUND_STEPS))), "--max-stages", "1"]
    acting += ["--algorithm.warm-up-rows", str(_NEVER), "--evaluation-episodes", "1", "--seed", str(ACTING_SEED)]
    preset = ["halfcheetah-sac", "--environment.id", environment, "--target-return", "none"]
    rounds = max(1, train_steps // (STAGES * 64))
    warm_up = str(min(10_240, train_steps // 10))
    learning = ["--rounds-per-stage", str(rounds), "--max-stages", str(STAGES), "--seed", str(SEED)]
    learning += ["--evaluate-every-stages", "1", "--evaluation-episodes", "10"]
    start = ["--algorithm.warm-up-rows", warm_up, "--algorithm.random-steps", warm_up]
    train(f"{name}-agent", store, [*preset, *learning, *start])
    train(f"{name}-random", store, [*preset, *acting, "--algorithm.random-steps", str(10 * _NEVER)])
    made = {"random": describe(f"{name}-random", store, 0)}
    log = open_run(f"{name}-agent", store).log
    commits = [log.read(stage) for stage in range(STAGES)]
    evaluations = [commit.evaluation["mean_return"] for commit in commits if commit.evaluation]
    stage = medium_stage(evaluations, made["random"].mean_return)
    for kind, commit in (("medium", commits[stage]), ("expert", commits[-1])):
        # The agent's steps are counted on from its version's, so nothing is random though the setting is the same.
        source = ["--init-from.run", f"{name}-agent", "--init-from.version", str(commit.version)]
        train(f"{name}-{kind}", store, [*preset, *acting, *source, "--algorithm.random-steps", warm_up])
        made[kind] = describe(f"{name}-{kind}", store, commit.version)
    if not (store / f"{name}-medium-replay" / "commits").is_dir():
        penstock("fork", f"{name}-agent", f"{name}-medium-replay", "--from-stage", str(stage), "--store", str(store))
    made["medium-replay"] = describe(f"{name}-medium-replay", store, commits[stage].version)
    partial = described.with_suffix(".partial")
    partial.write_text(json.dumps({kind: asdict(made[kind]) for kind in KINDS}, indent=1) + "\n", encoding="utf-8")
    partial.rename(described)
    return made


def folder_of(store: Path) -> Path:
    """Return the folder of the exported data sets: beside the store, as it is no run."""
    return store.parent / f"{store.name}-minari"


def medium_stage(evaluations: Sequence[float], random_return: float) -> int:
    """Return the first stage a third to half of the way to the last, or the one nearest to the middle of that."""
    way = (np.asarray(evaluations) - random_return) / (evaluations[-1] - random_return)
    inside = np.flatnonzero((way >= _MEDIUM[0]) & (way <= _MEDIUM[1]))
    return int(inside[0]) if len(inside) else int(np.abs(way - sum(_MEDIUM) / 2).argmin())


def train(name: str, store: Path, options: Sequence[str]) -> None:
    """Train a run to its end, or continue it."""
    if (store / name).is_dir():
        penstock("resume", name, "--store", str(store), "--json")
    else:
        penstock("train", *options, "--name", name, "--store", str(store), "--json")


def describe(name: str, store: Path, version: int) -> Dataset:
    """Export a run in Minari's format if it is not there yet, and describe it."""
    path = folder_of(store) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if not (path / "data").is_dir():
        penstock("export", name, str(path), "--store", str(store), "--json")
    data = minari.MinariDataset(path.absolute() / "data")
    returns, whole = [], []
    for episode in data.iterate_episodes():
        returns.append(float(np.sum(episode.rewards)))
        whole.append(not bool(episode.infos["cut"].any()))
    kept = np.asarray(returns)[np.asarray(whole)] if any(whole) else np.asarray(returns)
    shards = sum(1 for _ in open_run(name, store).log.shard_refs())
    span = float(np.ptp(returns)) or 1.0
    mean = float(kept.mean())
    return Dataset(name, str(path), data.total_steps, len(returns), shards, mean, 1_000 / span, version)


def penstock(*arguments: str) -> dict[str, Any]:
    """Run a command of Penstock and return its JSON, if it prints any."""
    command = [str(Path(sys.executable).parent / "penstock"), *arguments]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT")}
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
    found: dict[str, Any] = {}
    with contextlib.suppress(json.JSONDecodeError):
        found = json.loads(printed)
    return found


if __name__ == "__main__":
    main()
