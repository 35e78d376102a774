"""The feed of a training run: the rounds of a stage in order, as actors store them, through the input pipeline."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from penstock.storage.errors import CorruptObjectError
from penstock.storage.shards.epoch_order import ReaderState
from penstock.tasks.data.input.fixed_shapes import has_fixed_shapes, with_fixed_shapes
from penstock.tasks.data.input.hand_over import HandedShard
from penstock.tasks.data.input.memory_budget import read_budget_bytes
from penstock.tasks.data.input.pipeline import ShardPipeline
from penstock.tasks.roles.learning.feed import FeedRound, PipelineFeed
from penstock.tasks.roles.learning.round_choice import RoundChoices
from penstock.tasks.roles.learning.shard_finder import ShardFinder
from penstock.tasks.setup.distribution.dataflow import tiles_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.storage.refs import ShardRef
    from penstock.storage.shards.specs import Spec
    from penstock.tasks.data.input.hand_over import HandedRows
    from penstock.tasks.data.input.pipeline import LoadedShard
    from penstock.tasks.runtime.assignment import Assignment
    from penstock.tasks.runtime.membership import Membership
    from penstock.tasks.runtime.run_context import RunContext
    from penstock.tasks.specs import Batch, Params

_ENVIRONMENT_COLUMNS = ("observation", "reward", "terminated", "truncated")


def reader_at(context: RunContext, stage: int) -> ReaderState:
    """Return the position of the input before a stage: all shards of earlier stages are taken, and no other."""
    return ReaderState(
        commit=stage - 1,
        epoch=0,
        seed=context.config.seed,
        cursor=context.rounds_of(stage).start * context.config.environment.tiles,
    )


class ActedRounds:
    """Implements `StageRounds` for a run that acts: every round has all tiles, and learner r of N contiguous ones."""

    def __init__(self, context: RunContext, replica: int = 0, replicas: int = 1) -> None:
        self._context = context
        self.tiles = tiles_of(replica, replicas, context.config.environment.tiles)

    def share_of(self, round_: int) -> tuple[range, int]:  # noqa: ARG002  (all rounds are alike)
        """Return the steps of this learner's tiles among those of a round, and the size of the round."""
        tile_rows = self._context.tile_rows
        return range(self.tiles.start * tile_rows, self.tiles.stop * tile_rows), self._context.round_rows

    def reader_before(self, stage: int) -> ReaderState:
        """Return the position of the input before a stage."""
        return reader_at(self._context, stage)


def check_reader(expected: ReaderState, stage: int, stored: Mapping[str, object], checkpoint: str) -> None:
    """Check that a checkpoint was made at the position from which the stage must continue to read.

    Raises:
        CorruptObjectError: it was made elsewhere: rows would be skipped or learned twice.
    """
    try:
        found = ReaderState.from_json(stored)
    except ValueError as error:
        raise CorruptObjectError(f"'{checkpoint}' has no valid input position: {error}") from error
    if found != expected:
        raise CorruptObjectError(
            f"'{checkpoint}' was made at the input position {found.to_json()}, but stage {stage} resumes from "
            f"{expected.to_json()}: rows would be skipped or learned twice. The checkpoint belongs to another stage or "
            f"run; restore the run's own, or remove the newest commit to resume from the one before"
        )


class ShardFeed(PipelineFeed):
    """Implements `Feed` for rounds that actors store while they are learned, from a reader's position on.

    The next shard depends on the cursor alone. Each of several learners takes contiguous tiles of every round, so their
    parts one after another are those of a single learner.

    With a quorum below 1, a round consists of its chosen shards (`penstock.tasks.roles.acting.stragglers`).
    """

    def __init__(
        self,
        assignment: Assignment,
        context: RunContext,
        membership: Membership,
        device: torch.device,
        reader: ReaderState,
        handed: HandedRows | None = None,
    ) -> None:
        """Open the stage's rounds.

        Args:
            assignment: the learner's part.
            context: of the run.
            membership: in the stage's gang.
            device: of the rows.
            reader: position to start from.
            handed: rounds of the actor in this process; None if there is none.
        """
        self._assignment = assignment
        self._context = context
        self._reader = reader
        self._rounds = ActedRounds(context, *context.policy.share_of_rows(assignment.replica, assignment.replicas))
        self._tiles = self._rounds.tiles
        self._handed = handed
        self._has_fixed_shapes = has_fixed_shapes(context, device)
        self._finder = ShardFinder(assignment, context, membership, handed)
        self._choices = None
        if not context.config.requires_full_round:
            self._choices = RoundChoices(assignment, context, membership, self._finder.known)
        self._round: list[LoadedShard] = []
        shard_bytes = _shard_bytes(context)
        store = context.run.store
        pipeline = ShardPipeline(
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
        super().__init__(pipeline)

    @property
    def reader(self) -> ReaderState:
        """Return the position after all rounds taken so far, of all learners; skipped shards count, too."""
        return self._reader

    def next_round(self, params: Params | None) -> FeedRound:
        """Return the next round, a batch or trajectory per shard by tile; blocks, and raises the pipeline's errors."""
        missed, round_ = self.missed_shards, self._reader.cursor // self._context.config.environment.tiles
        loaded = self.take_shards()
        trajectories = [item.trajectory for item in loaded]
        if self._has_fixed_shapes:
            trajectories = [with_fixed_shapes(trajectory) for trajectory in trajectories]
        batches: list[Batch] = []
        if params is not None:
            with torch.no_grad():
                batches = [self._context.algorithm.post(params, trajectory) for trajectory in trajectories]
        steps, all_steps = self._rounds.share_of(round_)
        left_out = (self.missed_shards - missed) * self._context.tile_rows
        return FeedRound(
            batches,
            range(steps.start, steps.stop - left_out),
            all_steps - left_out,
            [item.stored_as for item in loaded],
            [item.describe for item in loaded],
            trajectories if params is None else [],
        )

    def take_shards(self) -> list[LoadedShard]:
        """Return the next round's shards by tile; blocks, and raises the pipeline's errors.

        Tensors of the round before become invalid: their memory is reused.
        """
        for loaded in self._round:
            loaded.release()
        tiles = self._context.config.environment.tiles
        if self._handed is not None:
            self._handed.begin_round(self._reader.cursor // tiles)
        shards = len(self._tiles)
        if self._choices is None:
            self._round = [self._pipeline.take() for _ in self._tiles]
        else:
            round_ = self._reader.cursor // tiles
            self._choices.want(round_)
            self._round = [self._pipeline.take()]  # once there is one, its round is chosen
            shards = self._choices.shards_of(round_)
            self._round += [self._pipeline.take() for _ in range(shards - 1)]
        self.missed_shards += len(self._tiles) - shards
        cursor = self._reader.cursor + tiles
        done = cursor // tiles == self._context.rounds_of(self._assignment.stage).stop
        commit = self._assignment.stage if done else self._reader.commit
        self._reader = ReaderState(commit, self._reader.epoch, self._reader.seed, cursor)
        return self._round

    def _find_all(self) -> Iterator[ShardRef | HandedShard]:
        first = self._reader.cursor // self._context.config.environment.tiles
        for round_ in range(first, self._context.rounds_of(self._assignment.stage).stop):
            if self._choices is None:
                yield from (self._find(round_, tile) for tile in self._tiles)
            else:
                yield from self._choices.choose(round_)

    def _find(self, round_: int, tile: int) -> ShardRef | HandedShard:
        found = self._finder.take(round_, tile)
        if isinstance(found, HandedShard):
            return found
        ref, cached = found
        if cached is not None:
            self._pipeline.cached[ref] = cached
        return ref


def learned_columns(context: RunContext) -> dict[str, Spec]:
    """Return the columns that losses may use: those of the environment and of the algorithm."""
    names = {*_ENVIRONMENT_COLUMNS, *context.algorithm.rows}
    return {name: spec for name, spec in context.columns.items() if name in names}


def _shard_bytes(context: RunContext) -> int:
    """Estimate the bytes of a file: a tile's columns of a round, and half as much for the rest."""
    row_bytes = sum(math.prod(spec.shape) * np.dtype(spec.dtype).itemsize for spec in context.columns.values())
    rows = context.config.schedule.round_steps * context.config.environment.envs_per_tile
    return row_bytes * rows * 3 // 2
