"""Compares PPO's options on HalfCheetah-v5: each alone, all of CleanRL's script, and those with its one environment.

Every case is the preset `halfcheetah` with the options named here, and the learning rate annealed over its 488 rounds,
however many steps are run: a shorter run is the beginning of a longer one. Acting and learning take turns in one
process, without a flow or a store, by the functions that a run's members call; no episode is cut at a stage's end. What
is finished stays in the JSON file, and is not run again.

    python -m benchmarks.returns.ppo_options                                          # 204,800 steps, three seeds
    python -m benchmarks.returns.ppo_options --steps 983040 --seeds 1 2 3 4 5 --only base cleanrl
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from benchmarks.support.programs import RESULTS
from penstock.tasks.roles.acting.tile import RoundBuffers, TileActor
from penstock.tasks.roles.learning.round_update import StageTally, learn_batches
from penstock.tasks.roles.reducing.reduction import LocalReduction
from penstock.tasks.seeds import Purpose, seed_of
from penstock.tasks.setup.config.loading import build_config, load_preset, merge
from penstock.tasks.setup.planning.dry_run import training_rows, trial_run

_TENTHS = 10
_ROUND_ROWS = 2048
_BASE = {
    "actions": "sampled",
    "reward_normalization": "round",
    "advantage_normalization": "round",
    "value_clip_range": 0.0,
    "target_kl": 0.0,
    "joint_gradient_norm": False,
}
_CLEANRL = {
    "actions": "clipped",
    "reward_normalization": "running",
    "advantage_normalization": "minibatch",
    "value_clip_range": 0.2,
    "joint_gradient_norm": True,
}
_ONE = {"environment": {"num_envs": 1, "envs_per_tile": 1}, "schedule": {"round_steps": _ROUND_ROWS}}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "base": ({}, {}),
    "clipped": ({"actions": "clipped"}, {}),
    "squashed": ({"actions": "squashed"}, {}),
    "running": ({"reward_normalization": "running"}, {}),
    "minibatch": ({"advantage_normalization": "minibatch"}, {}),
    "raw-advantages": ({"advantage_normalization": "none"}, {}),
    "value-clip": ({"value_clip_range": 0.2}, {}),
    "target-kl": ({"target_kl": 0.03}, {}),
    "joint": ({"joint_gradient_norm": True}, {}),
    "clipped-running": ({"actions": "clipped", "reward_normalization": "running"}, {}),
    "squashed-running": ({"actions": "squashed", "reward_normalization": "running"}, {}),
    "cleanrl": (_CLEANRL, {}),
    "one-env": ({}, _ONE),
    "clipped-running-one-env": ({"actions": "clipped", "reward_normalization": "running"}, _ONE),
    "cleanrl-one-env": (_CLEANRL, _ONE),
}
"""By name: options that differ from `_BASE`, and other settings that differ from the preset."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=204_800, help="environment steps; a multiple of 20,480 is best")
    parser.add_argument("--results", type=Path, default=RESULTS / "ppo-options.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, dict[str, Any]] = json.loads(args.results.read_text()) if args.results.exists() else {}
    for seed in args.seeds:
        for case in args.only:
            key = key_of(case, args.steps, seed)
            if key not in found:
                found[key] = train(case, args.steps, seed)
                args.results.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
                print(f"{key}: {shown(found[key]['returns_by_tenth'])}", flush=True)
    print_table(found, args.only, args.steps, args.seeds)


def key_of(case: str, steps: int, seed: int) -> str:
    """Return the name of a result."""
    return f"{case}, {steps} steps, seed {seed}"


def train(case: str, steps: int, seed: int) -> dict[str, Any]:
    """Train one seed; returns the mean return of the episodes that ended in each tenth, and the seconds."""
    options, settings = CASES[case]
    changed: dict[str, Any] = {**settings, "seed": seed, "algorithm": _BASE | options}
    config = build_config(merge(load_preset("halfcheetah"), changed))
    started, rounds = time.perf_counter(), steps // _ROUND_ROWS
    returns: list[list[float]] = [[] for _ in range(_TENTHS)]
    with trial_run(config) as (_, context):
        state = context.algorithm.init(seed_of(seed, Purpose.PARAMETERS))
        reduction = LocalReduction(context.algorithm)
        tiles = range(config.environment.tiles)
        actors, buffers = [TileActor(context, tile) for tile in tiles], [RoundBuffers(context, tile) for tile in tiles]
        for actor in actors:
            actor.start()
        for round_ in range(rounds):
            batches = []
            for actor, each in zip(actors, buffers, strict=True):
                acted = actor.act_round(round_, state.params, each)
                returns[round_ * _TENTHS // rounds] += acted.end.episodes["return"].tolist()
                batches.append(training_rows(context, state, acted))
            state = learn_batches(context, state, round_, batches, StageTally(), reduction)
        for actor in actors:
            actor.close()
    return {
        "returns_by_tenth": [mean(each) if each else None for each in returns],
        "seconds": time.perf_counter() - started,
    }


def print_table(found: dict[str, dict[str, Any]], cases: list[str], steps: int, seeds: list[int]) -> None:
    """Print the returns of every seed by tenth, and interquartile means over seeds."""
    for case in cases:
        curves = [found[key_of(case, steps, seed)]["returns_by_tenth"] for seed in seeds]
        for seed, curve in zip(seeds, curves, strict=True):
            print(f"{case:24} seed {seed}: {shown(curve)}")
        whole, half, end = (
            interquartile_mean([mean_return(curve[-tenths:]) for curve in curves])
            for tenths in (_TENTHS, _TENTHS // 2, 1)
        )
        print(f"{case:24} interquartile means: whole {whole:.0f}, second half {half:.0f}, last tenth {end:.0f}")


def mean_return(curve: list[float | None]) -> float:
    """Return the mean over tenths; not a number where no episode ended."""
    return mean([each for each in curve if each is not None] or [math.nan])


def shown(curve: list[float | None]) -> str:
    """Return a curve's numbers; a dash where no episode ended."""
    return " ".join("     -" if each is None else f"{each:6.0f}" for each in curve)


def interquartile_mean(values: list[float]) -> float:
    """Return the mean of the middle half; values at its edges count in part."""
    quarter = len(values) / 4
    weights = [
        min(rank + 1, len(values) - quarter) - max(rank, quarter)
        if min(rank + 1, len(values) - quarter) > max(rank, quarter)
        else 0.0
        for rank in range(len(values))
    ]
    return sum(value * weight for value, weight in zip(sorted(values), weights, strict=True)) / sum(weights)


if __name__ == "__main__":
    main()
