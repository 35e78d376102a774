"""The rounds of a replay: their shards, and each learner's share of their rows.

A round is the next `shards_per_round` of an endless sequence: the plan's shards, in a fresh order each epoch. Its
position in it follows from the round's number, so a killed replay resumes with the same rows. Each of several learners
has contiguous places of every round, so their rows one after another are those of a single learner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from penstock.storage.refs import plan_name
from penstock.storage.shards.epoch_order import ReaderState
from penstock.tasks.data.replay.plan import ReplayPlan
from penstock.tasks.seeds import Purpose, seed_of
from penstock.tasks.setup.config.replay import ReplayConfig
from penstock.tasks.setup.distribution.dataflow import tiles_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.tasks.data.replay.plan import PlannedShard
    from penstock.tasks.runtime.run_context import RunContext


def shard_order(seed: int, shards: int, first: int, last: int) -> Iterator[int]:
    """Yield indices into a plan at positions `first` to `last` (excluded) of the endless sequence of epochs.

    Args:
        seed: the run's.
        shards: number of shards in the plan.
        first: position, counted from the beginning of the replay.
        last: position after the last one.
    """
    epoch = -1
    order: list[int] = []
    for position in range(first, last):
        if position // shards != epoch:
            epoch = position // shards
            generator = torch.Generator().manual_seed(seed_of(seed, Purpose.REPLAY, epoch))
            order = torch.randperm(shards, generator=generator).tolist()
        yield order[position % shards]


class ReplayRounds:
    """The rounds of a replay, and one learner's places in them."""

    def __init__(self, context: RunContext, replica: int = 0, replicas: int = 1) -> None:
        """Args: the run, the learner's number, and the number of learners; errors as `ReplayPlan.decode`."""
        config = context.config
        if not isinstance(config, ReplayConfig) or config.plan is None:
            raise TypeError(f"run '{context.run.name}' is not a replay with a plan")
        name = plan_name(config.plan)
        self.plan = ReplayPlan.decode(context.run.store.read(name), name, config.plan)
        self._seed = config.seed
        self._rounds_per_stage = config.schedule.rounds_per_stage
        self._shards_per_round = config.schedule.shards_per_round
        self._places = tiles_of(replica, replicas, self._shards_per_round)

    @property
    def own_shards(self) -> int:
        """Return the learner's number of shards in every round."""
        return len(self._places)

    @property
    def largest_bytes(self) -> int:
        """Return an upper bound of the bytes of a learner's part of a round: the largest files of the plan together."""
        sizes = np.sort(self.plan.table["nbytes"].to_numpy())[::-1]
        return int(np.resize(sizes, self.own_shards).sum())

    def own(self, rounds: range) -> Iterator[PlannedShard]:
        """Yield the learner's shards of these rounds, in order."""
        for round_ in rounds:
            first = round_ * self._shards_per_round
            for index in self._order(first + self._places.start, first + self._places.stop):
                yield self.plan[index]

    def share_of(self, round_: int) -> tuple[range, int]:
        """Return the learner's rows among those of a round, and the number of rows of all learners."""
        first = round_ * self._shards_per_round
        counts = [self.plan[index].row_count for index in self._order(first, first + self._shards_per_round)]
        start = sum(counts[: self._places.start])
        return range(start, start + sum(counts[self._places.start : self._places.stop])), sum(counts)

    def reader_before(self, stage: int) -> ReaderState:
        """Return the position of the input before a stage, as a checkpoint stores it."""
        position = stage * self._rounds_per_stage * self._shards_per_round
        return ReaderState(stage - 1, position // len(self.plan), self._seed, position % len(self.plan))

    def _order(self, first: int, last: int) -> Iterator[int]:
        return shard_order(self._seed, len(self.plan), first, last)
