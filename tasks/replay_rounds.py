"""What the rounds of a replay are made of, and which of their rows a learner has: the same for whoever asks.

A round is the next `shards_per_round` of an endless sequence: the plan's shards, in a fresh order each epoch. Where in
it a round begins follows from the round's number, so a replay that was killed goes on with the same rows. Of several
learners, each has contiguous places of every round, so their rows one after another are what one would take.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tasks.placement import tiles_of
from tasks.replay_config import ReplayConfig
from tasks.replay_plan import ReplayPlan, plan_name
from tasks.streams import Purpose, seed_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tasks.context import RunContext
    from tasks.replay_plan import PlannedShard


def shard_order(seed: int, shards: int, first: int, last: int) -> Iterator[int]:
    """Indices into a plan at positions `first` to `last` (excluded) of the endless sequence of epochs.

    Args:
        seed: of the run.
        shards: how many the plan has.
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
    """The rounds of a replay, and the places in them that one of its learners has."""

    def __init__(self, context: RunContext, replica: int = 0, replicas: int = 1) -> None:
        """Args: the run, and which of how many learners; errors as `ReplayPlan.decode`."""
        config = context.config
        if not isinstance(config, ReplayConfig) or config.plan is None:
            raise TypeError(f"run '{context.run.name}' is no replay with a plan")
        name = plan_name(config.plan)
        self.plan = ReplayPlan.decode(context.run.store.read(name), name, config.plan)
        self._seed = config.seed
        self._shards_per_round = config.schedule.shards_per_round
        self._places = tiles_of(replica, replicas, self._shards_per_round)

    @property
    def own_shards(self) -> int:
        """How many shards of every round are the learner's."""
        return len(self._places)

    @property
    def largest_bytes(self) -> int:
        """Of the files of a learner's part of a round, if the largest ones of the plan come together."""
        sizes = np.sort(self.plan.table["nbytes"].to_numpy())[::-1]
        return int(np.resize(sizes, self.own_shards).sum())

    def own(self, rounds: range) -> Iterator[PlannedShard]:
        """The learner's shards of these rounds, in order."""
        for round_ in rounds:
            first = round_ * self._shards_per_round
            for index in self._order(first + self._places.start, first + self._places.stop):
                yield self.plan[index]

    def share_of(self, round_: int) -> tuple[range, int]:
        """Global ids of the learner's rows of a round, and how many all learners have."""
        first = round_ * self._shards_per_round
        counts = [self.plan[index].row_count for index in self._order(first, first + self._shards_per_round)]
        start = sum(counts[: self._places.start])
        return range(start, start + sum(counts[self._places.start : self._places.stop])), sum(counts)

    def reader_at(self, round_: int, stage: int) -> dict[str, Any]:
        """Where reading stands before a round, as a checkpoint says it."""
        position = round_ * self._shards_per_round
        return {
            "commit": stage,
            "epoch": position // len(self.plan),
            "seed": self._seed,
            "cursor": position % len(self.plan),
        }

    def _order(self, first: int, last: int) -> Iterator[int]:
        return shard_order(self._seed, len(self.plan), first, last)
