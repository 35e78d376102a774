"""Acts and learns a few rounds of a configuration, and reports the bytes that its loop moves and the seconds it takes.

`python -m penstock.tasks.setup.planning.calibration_process` reads a configuration as JSON from stdin and prints the
result, so that a process that imports no torch can ask for it (`run_calibration`). Everything it stores is in a
temporary folder.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import torch

from penstock.storage.errors import PenstockError
from penstock.storage.tensors import save_tensors
from penstock.tasks.data.snapshots.checkpoints import write_checkpoint
from penstock.tasks.data.snapshots.differences import encode_difference
from penstock.tasks.data.snapshots.handed_versions import encode_version
from penstock.tasks.model.algorithms.contract import FollowsRounds
from penstock.tasks.roles.acting.shard_writer import RoundWriter
from penstock.tasks.roles.acting.tile import TileActor
from penstock.tasks.roles.learning.shard_feed import reader_at
from penstock.tasks.roles.reducing.agents import trained_values
from penstock.tasks.roles.reducing.pace import parts_of
from penstock.tasks.roles.reducing.reduction import LocalReduction, served_values, untrained_values
from penstock.tasks.roles.stepping.protocol import StepFrame, pack_end, pack_start
from penstock.tasks.roles.stepping.sockets import GREETING_BYTES, WELCOME_BYTES
from penstock.tasks.runtime.device import prepare_device
from penstock.tasks.seeds import Purpose, seed_of
from penstock.tasks.setup.config.replay import build_stored_config
from penstock.tasks.setup.planning.dry_run import NullMembership, learn_once, training_rows, trial_run
from penstock.tasks.setup.planning.part_timing import seconds_of
from penstock.tasks.setup.planning.traffic import Sizes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from penstock.storage.refs import ShardRef
    from penstock.tasks.model.algorithms.contract import Loss
    from penstock.tasks.runtime.assignment import Assignment
    from penstock.tasks.runtime.run_context import RunContext
    from penstock.tasks.setup.config.run import RunConfig
    from penstock.tasks.setup.planning.run_calibration import CalibrationRequest, CalibrationResult
    from penstock.tasks.specs import State

_ROUNDS = 2


class CountingReduction(LocalReduction):
    """Reduces for one learner, and counts the messages that several learners would send."""

    def __init__(self, context: RunContext) -> None:
        super().__init__(context.algorithm)
        self.updates = self.gradient_bytes = self.server_reply_vectors = self.server_reply_bytes = 0
        self.arrivals = self.stale_reply_vectors = self.stale_reply_bytes = 0
        self.sums = self.sums_bytes = self.priority_messages = self.priority_bytes = 0
        self.round_state_vectors = self.round_state_bytes = 0

    def stats(self, sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Count the sums, which are sent as float64."""
        total = super().stats(sums)
        self.sums += int(bool(total))
        self.sums_bytes += sum(value.nbytes for value in total.values())
        return total

    def update(self, state: State, loss: Loss, gradient: Tensor) -> State:
        """Count a gradient to the server, and the parameter vector of its group that the server returns."""
        self.updates += 1
        self.gradient_bytes += gradient.nbytes
        self.server_reply_vectors += 1
        self.server_reply_bytes += state.params[loss.group].flat.nbytes
        return super().update(state, loss, gradient)

    def after_minibatch(self, state: State) -> State:
        """Count the target vectors that the server returns."""
        values = untrained_values(self._algorithm, state)
        self.server_reply_vectors += len(values)
        self.server_reply_bytes += sum(value.nbytes for value in values)
        parts = parts_of(self._algorithm)
        between = [state.params[loss.group].flat for part in parts[:-1] for loss in part]
        replies = [*between, *served_values(self._algorithm, state)]
        self.arrivals += len(parts)
        self.stale_reply_vectors += len(replies)
        self.stale_reply_bytes += sum(value.nbytes for value in replies)
        return super().after_minibatch(state)

    def row_values(self, own: Tensor) -> Tensor:
        """Count the priorities of rows, which a gang's member sends to the others."""
        self.priority_messages += 1
        self.priority_bytes += own.nbytes
        return super().row_values(own)

    def after_round(self, state: State, stats: Mapping[str, Tensor]) -> State:
        """Count the vectors that change once a round, which a gang's member sends to its server."""
        if isinstance(self._algorithm, FollowsRounds):
            values = untrained_values(self._algorithm, state)
            self.round_state_vectors, self.round_state_bytes = len(values), sum(value.nbytes for value in values)
        return super().after_round(state, stats)


def sizes_of(assignment: Assignment, context: RunContext) -> Sizes:
    """Act two rounds of a tile, store them, learn a round of all tiles, and return the sizes of its messages.

    An algorithm that also learns from earlier rounds learns from this one alone here, so its sizes are those of a run's
    first rounds.
    """
    state = context.algorithm.init(seed_of(context.config.seed, Purpose.PARAMETERS))
    shards: dict[tuple[int, int], ShardRef] = {}
    writer = RoundWriter(assignment, context, NullMembership(), shards, {})  # type: ignore[arg-type]
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
    first = _snapshot(context, state, 1)
    state = learn_once(context, state, [batch] * context.config.environment.tiles, reduction)
    second, difference = _snapshot(context, state, 2), None
    if context.config.distribution.snapshot_differences:
        difference = encode_difference(first, second)
    frame, learned = StepFrame(context), context.algorithm.losses
    return Sizes(
        action_bytes=frame.action.nbytes,
        observation_bytes=frame.observation.nbytes,
        frame_bytes=frame.last.nbytes,
        # A message of variable length has a header with its length.
        end_bytes=end + 8,
        start_bytes=start + 8,
        greeting_bytes=GREETING_BYTES,
        welcome_bytes=WELCOME_BYTES,
        shard_bytes=writer.made_bytes // writer.made_shards,
        state_bytes=len(state_file),
        snapshot_bytes=len(second),
        difference_bytes=len(difference or b""),
        checkpoint_bytes=write_checkpoint(context.run.store, 0, state, reader_at(context, 1).to_json()).nbytes,
        updates=reduction.updates,
        gradient_bytes=reduction.gradient_bytes,
        server_reply_vectors=reduction.server_reply_vectors,
        server_reply_bytes=reduction.server_reply_bytes,
        arrivals=reduction.arrivals,
        stale_reply_vectors=reduction.stale_reply_vectors,
        stale_reply_bytes=reduction.stale_reply_bytes,
        sums=reduction.sums,
        sums_bytes=reduction.sums_bytes,
        priority_messages=reduction.priority_messages,
        priority_bytes=reduction.priority_bytes,
        round_state_vectors=reduction.round_state_vectors,
        round_state_bytes=reduction.round_state_bytes,
        owned_bytes=sum(value.nbytes for value in trained_values(state, (loss.group for loss in learned))),
    )


def _snapshot(context: RunContext, state: State, version: int) -> bytes:
    algorithm, dtype = context.algorithm, context.config.distribution.snapshot_dtype
    return encode_version(state.params, algorithm.actor_groups, dtype, version)


def calibrate(config: RunConfig, *, timed: bool) -> CalibrationResult:
    """Return `sizes`, and with `timed` also `parts`, the seconds of the parts of a round."""
    torch.set_num_threads(config.distribution.torch_threads)
    with trial_run(config) as (assignment, context):
        sizes = sizes_of(assignment, context)
        device = prepare_device(config.distribution.device, config.distribution.torch_threads)
        state = context.algorithm.init(seed_of(config.seed, Purpose.PARAMETERS))
        parts = seconds_of(assignment, context, state, sizes, device) if timed else None
        return {"sizes": sizes.to_json(), "parts": parts.to_json() if parts else None}


def main() -> None:
    """Read a `CalibrationRequest` from stdin and write the result, or the error, to stdout."""
    output: CalibrationResult | dict[str, str]
    try:
        request: CalibrationRequest = json.load(sys.stdin)
        output = calibrate(build_stored_config(request["config"]), timed=request["timed"])
    except PenstockError as error:
        output = {"error": str(error)}
    json.dump(output, sys.stdout)


if __name__ == "__main__":
    main()
