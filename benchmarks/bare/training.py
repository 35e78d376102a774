"""Measures the minimal cost of training: one process alternates acting and updating, and stores and sends nothing.

The algorithm object, environment pool, network, epochs and minibatches are those of `penstock train` with the same
settings. The pipeline is missing: no shards, snapshots or commits, no other processes, no acting during learning. An
off-policy algorithm's window is in memory, and rounds count once it learns.

    python -m benchmarks.bare.training --torch-threads 2 --seconds 10 -- cartpole
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

import torch

from benchmarks.peers.measure import machine, print_result
from penstock.flows.settings.options import parse_overrides
from penstock.tasks.model.algorithms.contract import window_spec
from penstock.tasks.roles.acting.tile import ActedRound, RoundBuffers, TileActor, act_together
from penstock.tasks.roles.learning.round_update import (
    StageTally,
    learn_batches,
    learn_minibatches,
    round_stats,
    row_count_of,
    together,
)
from penstock.tasks.roles.learning.window import RoundWindow
from penstock.tasks.roles.reducing.reduction import LocalReduction
from penstock.tasks.setup.config.loading import build_config, load_preset, merge
from penstock.tasks.setup.planning.dry_run import training_rows, trial_run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from penstock.tasks.runtime.run_context import RunContext
    from penstock.tasks.specs import Batch, State


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
        learner, round_ = Learner(context), 0
        while not learner.update_rows:
            act_and_learn(learner, round_, actors, buffers)
            round_ += 1
        first, started = round_, time.perf_counter()
        while time.perf_counter() - started < args.seconds:
            act_and_learn(learner, round_, actors, buffers)
            round_ += 1
        seconds, rounds = time.perf_counter() - started, round_ - first
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


def act_and_learn(learner: Learner, round_: int, actors: list[TileActor], buffers: list[RoundBuffers]) -> None:
    """Act a round of all tiles, and learn from it."""
    acted: list[ActedRound] = []
    act_together(actors, round_, learner.state.params, lambda actor: buffers[actor.tile], acted.append)
    with torch.no_grad():
        batches = [training_rows(learner.context, learner.state, part) for part in acted]
    learner.learn(round_, batches)


class Learner:
    """Learns rounds, each alone or from a window of the newest ones."""

    def __init__(self, context: RunContext) -> None:
        self.context = context
        self.state: State = context.algorithm.init(context.config.seed)
        self._reduction, self._tally = LocalReduction(context.algorithm), StageTally()
        self._window: RoundWindow | None = None
        if spec := window_spec(context.algorithm):
            if spec.row_steps > 1 or spec.steps_after:
                raise SystemExit("found training rows of several steps, expected some of one: set return-steps to 1")
            self._window = RoundWindow(spec, context.round_rows)
            self._ring: Batch = {}
            self._ring_rows = spec.capacity_rows // context.round_rows * context.round_rows

    @property
    def update_rows(self) -> int:
        """Return the number of rows of all minibatches so far."""
        return self._tally.update_rows

    def learn(self, round_: int, batches: Sequence[Batch]) -> None:
        """Learn a round."""
        if self._window is None:
            self.state = learn_batches(self.context, self.state, round_, batches, self._tally, self._reduction)
            return
        stats, rows = round_stats(self.context, batches, self._reduction), together(batches)
        for name, column in rows.items():
            if name not in self._ring:
                self._ring[name] = column.new_empty(self._ring_rows, *column.shape[1:])
            place = round_ * len(column) % self._ring_rows
            self._ring[name][place : place + len(column)] = column
        self._window.begin_round()
        own = range(row_count_of(batches))
        self.state = learn_minibatches(
            self.context, self.state, round_, self._window, own, self._take, stats, self._tally, self._reduction
        )

    def _take(self, rows: Tensor) -> Batch:
        assert self._window is not None
        places = (rows + self._window.rounds.start * self.context.round_rows) % self._ring_rows
        return {name: column[places] for name, column in self._ring.items()}


if __name__ == "__main__":
    main()
