"""The protocol between the learner's loop and its input: rounds of training rows, in order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.storage.cache.node_cache import CacheTally
    from penstock.storage.shards.codec import ShardInfo
    from penstock.storage.shards.epoch_order import ReaderState
    from penstock.tasks.data.input.hand_over import ShardLater
    from penstock.tasks.data.input.pipeline import PipelineTally, ShardPipeline
    from penstock.tasks.specs import Batch, Params, Trajectory


class StageRounds(Protocol):
    """The stored steps of each round, and the position of the input at a stage's start. Reads no shard."""

    def share_of(self, round_: int) -> tuple[range, int]:
        """Return this learner's stored steps among those of a whole round, and the size of the whole round."""

    def reader_before(self, stage: int) -> ReaderState:
        """Return the position of the input before a stage."""


@dataclass(frozen=True, slots=True)
class FeedRound:
    """One round as one learner gets it. Its tensors are valid until the next `Feed.next_round`."""

    batches: list[Batch]
    """Training rows `[n, ...]` by column: the round's rows are those of all batches, one after another. None if the
    trajectories were asked for."""
    steps: range
    """This learner's stored steps among those of all learners."""
    all_steps: int
    """Stored steps of the round, of all learners."""
    shards: list[ShardLater] = field(default_factory=list)
    """Shards of this run, one per batch; none if the rows belong to other runs."""
    describe: list[Callable[[], ShardInfo]] = field(default_factory=list)
    """Returns the description of each of these shards, with the episodes that ended in it. Waits for a round that is
    on a device, so ask after the update."""
    trajectories: list[Trajectory] = field(default_factory=list)
    """The stored rows of each shard, if they were asked for."""


class Feed(Protocol):
    """Yields a stage's rounds to one learner. A context manager, used by one thread."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    @property
    def wait_seconds(self) -> float:
        """Return the total seconds for which `next_round` has waited for data."""

    @property
    def missed_shards(self) -> int:
        """Return the number of shards that were left out of the rounds so far (quorum below 1)."""

    @property
    def cache_tally(self) -> CacheTally:
        """Return hits and misses of the node's cache."""

    def tally(self) -> PipelineTally:
        """Return the counters of the input pipeline."""

    def next_round(self, params: Params | None) -> FeedRound:
        """Return the next round; blocks until all of its rows are available.

        Args:
            params: with which `Algorithm.post` makes training rows of stored ones; None asks for trajectories instead.
        """


class PipelineFeed:
    """The part that all feeds share: a shard pipeline that starts and stops with the feed."""

    def __init__(self, pipeline: ShardPipeline) -> None:
        self._pipeline = pipeline
        self.missed_shards = 0

    def __enter__(self) -> Self:
        self._pipeline.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._pipeline.__exit__()

    @property
    def wait_seconds(self) -> float:
        """Return the total seconds for which `next_round` has waited for data."""
        return self._pipeline.wait_seconds

    @property
    def cache_tally(self) -> CacheTally:
        """Return hits and misses of the node's cache."""
        return self._pipeline.cache_tally

    def tally(self) -> PipelineTally:
        """Return the counters of the input pipeline."""
        return self._pipeline.tally()
