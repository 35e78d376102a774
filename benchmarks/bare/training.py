"""Measures the minimal cost of training: one process alternates acting and updating, and stores and sends nothing.

The algorithm object, environment pool, network, epochs and minibatches are those of `penstock train` with the same
settings. The pipeline is missing: no shards, snapshots or commits, no other processes, no acting during learning.

    python -m benchmarks.bare.training --torch-threads 2 --seconds 10 -- cartpole
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

import torch

from benchmarks.peers.measure import machine, print_result
from penstock.flows.settings.options import parse_overrides
from penstock.tasks.roles.acting.tile import ActedRound, RoundBuffers, TileActor, act_together
from penstock.tasks.roles.learning.round_update import StageTally, learn_batches
from penstock.tasks.roles.reducing.reduction import LocalReduction
from penstock.tasks.setup.config.loading import build_config, load_preset, merge
from penstock.tasks.setup.planning.dry_run import training_rows, trial_run

if TYPE_CHECKING:
    from penstock.tasks.runtime.run_context import RunContext
    from penstock.tasks.specs import State


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch-threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("settings", nargs="*", default=["cartpole"])
    args = parser.parse_args()
    torch.set_num_threads(args.torch_threads)
    config = build_config(merge(load_preset(args.settings[0]), parse_overrides(args.settings[1:])))
    with trial_run(config) as (_, context):
        actors = [TileActor(context, tile) for tile in range(context.config.environment.tiles)]
        buffers = [RoundBuffers(context, actor.tile) for actor in actors]
        for actor in actors:
            actor.start()
        state = context.algorithm.init(context.config.seed)
        state = train_round(context, state, 0, actors, buffers)
        rounds, started = 0, time.perf_counter()
        while time.perf_counter() - started < args.seconds:
            rounds += 1
            state = train_round(context, state, rounds, actors, buffers)
        seconds = time.perf_counter() - started
    print_result(
        {
            "benchmark": "acting and updating alone",
            "system": "one process, nothing stored",
            "env_steps_per_second": rounds * context.round_rows / seconds,
            "rounds": rounds,
            "torch_threads": args.torch_threads,
            "machine": machine(["penstock-rl", "torch"]),
        }
    )


def train_round(
    context: RunContext, state: State, round_: int, actors: list[TileActor], buffers: list[RoundBuffers]
) -> State:
    """Act a round of all tiles, and learn from it."""
    acted: list[ActedRound] = []
    act_together(actors, round_, state.params, lambda actor: buffers[actor.tile], acted.append)
    with torch.no_grad():
        batches = [training_rows(context, state, part) for part in acted]
    return learn_batches(context, state, round_, batches, StageTally(), LocalReduction(context.algorithm))


if __name__ == "__main__":
    main()
