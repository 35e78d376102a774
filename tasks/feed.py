"""What a learn task learns from: the rounds of its stage in order, through the input pipeline."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from storage.errors import CorruptObjectError
from storage.order import ReaderState
from storage.refs import ShardRef
from tasks.arrivals import wait_for
from tasks.choices import RoundChoices
from tasks.pipeline import ShardPipeline
from tasks.placement import tiles_of
from tasks.read_budget import read_budget_bytes
from tasks.stored import stored_shards

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from storage.cache import CacheTally
    from storage.specs import Spec
    from tasks.assignment import Assignment
    from tasks.context import RunContext
    from tasks.membership import Membership
    from tasks.pipeline import LoadedShard, PipelineTally

_ENVIRONMENT_COLUMNS = ("observation", "reward", "terminated", "truncated")


def reader_at(context: RunContext, stage: int) -> ReaderState:
    """Where reading stands before a stage: every shard of the stages before it was taken, and no other."""
    return ReaderState(
        commit=stage - 1,
        epoch=0,
        seed=context.config.seed,
        cursor=context.rounds_of(stage).start * context.config.environment.tiles,
    )


def check_reader(context: RunContext, stage: int, stored: dict[str, Any], checkpoint: str) -> ReaderState:
    """The state of the reader in a checkpoint, if it is the one that the stage has to go on from.

    Raises:
        CorruptObjectError: it is another: going on would skip rows, or learn from some twice.
    """
    expected = reader_at(context, stage)
    try:
        found = ReaderState.from_json(stored)
    except ValueError as error:
        raise CorruptObjectError(f"'{checkpoint}' does not say where reading stands: {error}") from error
    if found != expected:
        raise CorruptObjectError(
            f"'{checkpoint}' was made when reading stood at {found.to_json()}, but stage {stage} goes on from "
            f"{expected.to_json()}: rows would be skipped or learned twice. The checkpoint belongs to another stage or "
            f"run; restore the run's own, or remove the newest commit to go on from the one before"
        )
    return found


class ShardFeed:
    """Rounds of a stage in order, from a reader's state on. For one learn task; a context manager.

    A log in order is a log that may grow: which shard comes next depends on nothing but the cursor. Of several
    learners, each takes contiguous tiles of every round, so their parts one after another are what one would take.

    With a quorum below 1, a round is those of its shards that were chosen (`tasks.choices`).
    """

    def __init__(
        self,
        assignment: Assignment,
        context: RunContext,
        membership: Membership,
        device: torch.device,
        reader: ReaderState,
    ) -> None:
        """Args: whose part, of which run, among whom, to where, and from where on."""
        self._assignment = assignment
        self._context = context
        self._membership = membership
        self._reader = reader
        self._missed_shards = 0
        self._tiles = tiles_of(assignment.replica, assignment.replicas, context.config.environment.tiles)
        self._known = stored_shards(context.run.store, assignment.stage, assignment.attempt)
        self._choices = None
        if not context.config.waits_for_all:
            self._choices = RoundChoices(assignment, context, membership, self._known)
        self._round: list[LoadedShard] = []
        shard_bytes = _shard_bytes(context)
        store = context.run.store
        self._pipeline = ShardPipeline(
            self._find_all(),
            store,
            expected=context.columns,
            columns=learned_columns(context),
            device=device,
            budget_bytes=read_budget_bytes(
                assignment,
                membership.log,
                2 * len(self._tiles) * shard_bytes,
                is_remote=store.path("any") is None,
                is_staged=device.type != "cpu",
            ),
            cache=context.cache,
            unsized_bytes=shard_bytes,
            remove_damaged=True,
        )

    def __enter__(self) -> Self:
        self._pipeline.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._pipeline.__exit__()

    @property
    def wait_seconds(self) -> float:
        """That `next_round` has waited."""
        return self._pipeline.wait_seconds

    @property
    def cache_tally(self) -> CacheTally:
        """What became of looking for shards in the node's cache."""
        return self._pipeline.cache_tally

    @property
    def reader(self) -> ReaderState:
        """Where reading stands: behind all rounds that were taken, of all learners; what was missed counts too."""
        return self._reader

    @property
    def missed_shards(self) -> int:
        """Of the rounds that were taken, those that were not waited for."""
        return self._missed_shards

    def tally(self) -> PipelineTally:
        """What was done so far."""
        return self._pipeline.tally()

    def next_round(self) -> list[LoadedShard]:
        """The next round's shards by tile; blocks, and raises what the pipeline met.

        The tensors of the round before are gone with this call: their memory is used again.
        """
        for loaded in self._round:
            loaded.release()
        tiles = self._context.config.environment.tiles
        shards = len(self._tiles)
        if self._choices is None:
            self._round = [self._pipeline.take() for _ in self._tiles]
        else:
            round_ = self._reader.cursor // tiles
            self._choices.want(round_)
            self._round = [self._pipeline.take()]  # once there is one, its round is chosen
            shards = self._choices.shards_of(round_)
            self._round += [self._pipeline.take() for _ in range(shards - 1)]
        self._missed_shards += len(self._tiles) - shards
        cursor = self._reader.cursor + tiles
        done = cursor // tiles == self._context.rounds_of(self._assignment.stage).stop
        commit = self._assignment.stage if done else self._reader.commit
        self._reader = ReaderState(commit, self._reader.epoch, self._reader.seed, cursor)
        return self._round

    def _find_all(self) -> Iterator[ShardRef]:
        first = self._reader.cursor // self._context.config.environment.tiles
        for round_ in range(first, self._context.rounds_of(self._assignment.stage).stop):
            if self._choices is None:
                yield from (self._find(round_, tile) for tile in self._tiles)
            else:
                yield from self._choices.choose(round_)

    def _find(self, round_: int, tile: int) -> ShardRef:
        key = f"shard/{round_}/{tile}"
        if (round_, tile) not in self._known:
            found = wait_for(
                self._membership, self._context.cache, key, lambda: self._look(round_, tile), ShardRef.from_json
            )
            if found.ref:
                self._known[round_, tile] = found.ref
                if found.near is not None:
                    self._pipeline.near[found.ref] = found.near
        return self._known[round_, tile]

    def _look(self, round_: int, tile: int) -> bool:
        self._known |= stored_shards(self._context.run.store, self._assignment.stage, self._assignment.attempt, round_)
        return (round_, tile) in self._known


def learned_columns(context: RunContext) -> dict[str, Spec]:
    """The columns that losses may use; who acted, and with what, stays in the file."""
    names = {*_ENVIRONMENT_COLUMNS, *context.algorithm.rows}
    return {name: spec for name, spec in context.columns.items() if name in names}


def _shard_bytes(context: RunContext) -> int:
    """About what a file holds: a tile's columns of a round, and half as much beside them."""
    row_bytes = sum(math.prod(spec.shape) * np.dtype(spec.dtype).itemsize for spec in context.columns.values())
    rows = context.config.schedule.round_steps * context.config.environment.envs_per_tile
    return row_bytes * rows * 3 // 2
