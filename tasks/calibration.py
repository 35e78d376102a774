"""A few rounds of a configuration, acted and learned in this process: how large is what its loop moves, and how slow.

`python -m tasks.calibration` reads a configuration as JSON and prints what it found, so that a process that imports no
torch can ask (`tasks.calibrate`). What it stores, it stores in a folder of its own, and removes.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import torch

from storage.errors import PenstockError
from storage.tensors import save_tensors
from tasks.algorithm import FollowsRounds
from tasks.calibration_times import seconds_of
from tasks.checkpoints import write_checkpoint
from tasks.cost import Sizes
from tasks.feed import reader_at
from tasks.learn import prepare_device
from tasks.links import GREETING_BYTES, WELCOME_BYTES
from tasks.quantize import encode_params
from tasks.reduce import LocalReduction, untrained_values
from tasks.replay_config import build_stored_config
from tasks.step_frames import StepFrame, pack_end, pack_start
from tasks.streams import Purpose, seed_of
from tasks.tile import TileActor
from tasks.trial_rounds import Nobody, learn_once, training_rows, trial_run
from tasks.writer import RoundWriter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from storage.refs import ShardRef
    from tasks.algorithm import Loss
    from tasks.assignment import Assignment
    from tasks.config import RunConfig
    from tasks.context import RunContext
    from tasks.specs import State

_ROUNDS = 2


class CountingReduction(LocalReduction):
    """One learner, of which is counted what it would send if there were several."""

    def __init__(self, context: RunContext) -> None:
        super().__init__(context.algorithm)
        self.updates = self.gradient_bytes = self.returned = self.returned_bytes = 0
        self.sums = self.sums_bytes = self.judged = self.judged_bytes = self.followed = self.followed_bytes = 0

    def stats(self, sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Sums travel as float64."""
        total = super().stats(sums)
        self.sums, self.sums_bytes = int(bool(total)), sum(value.nbytes for value in total.values())
        return total

    def update(self, state: State, loss: Loss, gradient: Tensor) -> State:
        """A gradient goes up, and its group's vector comes down."""
        self.updates += 1
        self.gradient_bytes += gradient.nbytes
        self.returned += 1
        self.returned_bytes += state.params[loss.group].flat.nbytes
        return super().update(state, loss, gradient)

    def after_minibatch(self, state: State) -> State:
        """Targets come down."""
        values = untrained_values(self._algorithm, state)
        self.returned += len(values)
        self.returned_bytes += sum(value.nbytes for value in values)
        return super().after_minibatch(state)

    def row_values(self, own: Tensor) -> Tensor:
        """What rows are worth is told to everybody."""
        self.judged += 1
        self.judged_bytes += own.nbytes
        return super().row_values(own)

    def after_round(self, state: State, stats: Mapping[str, Tensor]) -> State:
        """What changes once a round is told to a server."""
        if isinstance(self._algorithm, FollowsRounds):
            values = untrained_values(self._algorithm, state)
            self.followed, self.followed_bytes = len(values), sum(value.nbytes for value in values)
        return super().after_round(state, stats)


def sizes_of(assignment: Assignment, context: RunContext) -> Sizes:
    """Act two rounds of a tile, store them, and learn one of all tiles.

    Algorithms that learn from earlier rounds too learn from this one alone, so of those it is what the first rounds
    cost.
    """
    state = context.algorithm.init(seed_of(context.config.seed, Purpose.PARAMETERS))
    shards: dict[tuple[int, int], ShardRef] = {}
    writer = RoundWriter(assignment, context, Nobody(), shards, {})  # type: ignore[arg-type]
    actor = TileActor(context, 0)
    actor.start()
    try:
        for _ in range(_ROUNDS):
            acted = actor.act_round(0, state.params, writer.buffers(actor))
            state_file = save_tensors(acted.state, {"round": acted.round, "tile": 0})
            end = len(pack_end(acted.end, acted.state, acted.buffers.arrays["observation"][0]))
            start = len(pack_start(acted.round, False, acted.state))
            batch = training_rows(context, state, acted)
            writer.submit(acted)
    finally:
        writer.close()
        actor.close()
    reduction = CountingReduction(context)
    learn_once(context, state, [batch] * context.config.environment.tiles, reduction)
    named = {
        f"{group}/{name}": value.detach()
        for group in context.algorithm.actor_groups
        for name, value in state.params[group].items()
    }
    frame = StepFrame(context)
    return Sizes(
        action_bytes=frame.action.nbytes,
        observation_bytes=frame.observation.nbytes,
        frame_bytes=frame.last.nbytes,
        # A message of a length that nobody knows begins with its length.
        end_bytes=end + 8,
        start_bytes=start + 8,
        greeting_bytes=GREETING_BYTES,
        welcome_bytes=WELCOME_BYTES,
        shard_bytes=writer.made_bytes // writer.made_shards,
        state_bytes=len(state_file),
        snapshot_bytes=len(encode_params(named, context.config.placement.snapshot_dtype, {"version": 0})),
        checkpoint_bytes=write_checkpoint(context.run.store, 0, state, reader_at(context, 1).to_json()).nbytes,
        updates=reduction.updates,
        gradient_bytes=reduction.gradient_bytes,
        returned=reduction.returned,
        returned_bytes=reduction.returned_bytes,
        sums=reduction.sums,
        sums_bytes=reduction.sums_bytes,
        judged=reduction.judged,
        judged_bytes=reduction.judged_bytes,
        followed=reduction.followed,
        followed_bytes=reduction.followed_bytes,
    )


def calibrate(config: RunConfig, *, timed: bool) -> dict[str, Any]:
    """What `tasks.calibrate` asks for: `sizes`, and `parts`, what the parts of a round took."""
    torch.set_num_threads(config.placement.torch_threads)
    with trial_run(config) as (assignment, context):
        sizes = sizes_of(assignment, context)
        device = prepare_device(config.placement.device, config.placement.torch_threads)
        state = context.algorithm.init(seed_of(config.seed, Purpose.PARAMETERS))
        parts = seconds_of(assignment, context, state, sizes, device) if timed else None
        return {"sizes": sizes.to_json(), "parts": parts.to_json() if parts else None}


def main() -> None:
    """Answer on stdout; a mistake of the configuration's is one line there as well."""
    try:
        question = json.load(sys.stdin)
        found = calibrate(build_stored_config(question["config"]), timed=question["timed"])
    except PenstockError as error:
        found = {"error": str(error)}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
