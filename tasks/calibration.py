"""A few rounds of a configuration, acted and learned in this process: how large everything is that its loop moves.

`python -m tasks.calibration` reads a configuration as JSON and prints what it found, so that a process that imports no
torch can ask (`tasks.calibrate`). What it stores, it stores in a folder of its own, and removes.
"""

from __future__ import annotations

import json
import sys
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from storage.errors import PenstockError
from storage.run import RunFolder
from storage.store import open_store
from tasks.algorithm import FollowsRounds, window_spec
from tasks.assignment import Assignment
from tasks.context import load_context
from tasks.cost import Sizes
from tasks.learn import StageTally, learn_batch
from tasks.links import GREETING_BYTES, WELCOME_BYTES
from tasks.quantize import encode_params
from tasks.reduce import LocalReduction, untrained_values
from tasks.replay_config import build_stored_config
from tasks.specs import Trajectory
from tasks.step_frames import StepFrame, pack_end, pack_start
from tasks.streams import Purpose, seed_of
from tasks.tile import TileActor
from tasks.writer import RoundWriter

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor

    from storage.refs import ShardRef
    from tasks.algorithm import Loss
    from tasks.config import RunConfig
    from tasks.context import RunContext
    from tasks.specs import Batch, State
    from tasks.tile import ActedRound

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


class Nobody:
    """Stands where a gang would be: nobody is there to be hinted."""

    def hint(self, fragment: str, key: str, value: Any) -> None:
        """Drop it."""


@contextmanager
def trial_run(config: RunConfig) -> Iterator[tuple[Assignment, RunContext]]:
    """A run of that configuration in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="penstock-calibration-") as folder:
        root = open_store(folder)
        stored = config.model_dump(mode="json", exclude={"store", "cluster"}) | {"name": "trial"}
        RunFolder(root, "trial").create({"config": stored})
        assignment = Assignment(
            store=root.url,
            run="trial",
            stage=0,
            attempt=0,
            gang="",
            generation=1,
            role="act",
            replica=0,
            replicas=config.environment.tiles,
            task_run="",
            cache_folder=f"{folder}/cache",
            device=config.placement.device,
        )
        yield assignment, load_context(assignment)


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
        snapshot_bytes=len(encode_params(named, context.config.placement.snapshot_dtype, {"version": 0})),
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


@torch.no_grad()
def training_rows(context: RunContext, state: State, acted: ActedRound) -> Batch:
    """What `post` makes of a tile's round."""
    columns = {name: torch.from_numpy(array.copy()) for name, array in acted.buffers.arrays.items()}
    ends = torch.from_numpy(acted.end.bootstrap_rows), torch.from_numpy(acted.end.bootstrap_observation.copy())
    params = {} if window_spec(context.algorithm) else state.params
    return context.algorithm.post(params, Trajectory(columns, *ends))


def learn_once(context: RunContext, state: State, batches: list[Batch], reduction: LocalReduction) -> None:
    """Learn one round of these tiles' training rows."""
    with torch.no_grad():
        sums = [context.algorithm.stats(batch) for batch in batches]
        stats = reduction.stats({name: torch.stack([part[name] for part in sums]).sum(0) for name in sums[0]})
        batch: Batch = {name: torch.cat([part[name] for part in batches]) for name in batches[0]}
    learn_batch(context, state, 0, batch, stats, StageTally(), reduction)


def calibrate(config: RunConfig) -> dict[str, Any]:
    """What `tasks.calibrate` asks for."""
    torch.set_num_threads(config.placement.torch_threads)
    with trial_run(config) as (assignment, context):
        return {"sizes": sizes_of(assignment, context).to_json()}


def main() -> None:
    """Answer on stdout; a mistake of the configuration's is one line there as well."""
    try:
        found = calibrate(build_stored_config(json.load(sys.stdin)))
    except PenstockError as error:
        found = {"error": str(error)}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
