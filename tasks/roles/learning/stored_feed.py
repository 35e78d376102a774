"""The feed of a replay: shards that other runs have stored, in the seeded order of the replay's plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from penstock.storage.errors import CorruptObjectError, ObjectNotFoundError, SpecMismatchError
from penstock.storage.shards.header import without_resuming
from penstock.tasks.data.input.memory_budget import read_budget_bytes
from penstock.tasks.data.input.pipeline import ShardPipeline
from penstock.tasks.data.input.run_selection import from_root
from penstock.tasks.data.replay.rounds import ReplayRounds
from penstock.tasks.roles.learning.feed import FeedRound, PipelineFeed
from penstock.tasks.roles.learning.shard_feed import learned_columns

if TYPE_CHECKING:
    from penstock.tasks.data.input.pipeline import LoadedShard
    from penstock.tasks.data.replay.plan import PlannedShard
    from penstock.tasks.runtime.assignment import Assignment
    from penstock.tasks.runtime.membership import Membership
    from penstock.tasks.runtime.run_context import RunContext
    from penstock.tasks.specs import Batch, Params


class StoredFeed(PipelineFeed):
    """Implements `Feed` for a replay: this learner's shards of each planned round, through the input pipeline."""

    def __init__(
        self, assignment: Assignment, context: RunContext, membership: Membership, device: torch.device
    ) -> None:
        """Open the plan; reads no shard before the context is entered.

        Args:
            assignment: gives the stage, and this learner's replica.
            context: of the replay.
            membership: logs warnings.
            device: on which the rows are wanted.
        """
        self.rounds = ReplayRounds(context, assignment.replica, assignment.replicas)
        self._context = context
        stage = context.rounds_of(assignment.stage)
        self._round = stage.start
        self._planned = self.rounds.own(stage)
        # The source runs are in the same root folder as this one.
        store = context.run.root
        pipeline = ShardPipeline(
            (from_root(planned.run, planned.ref) for planned in self.rounds.own(stage)),
            store,
            columns=learned_columns(context),
            device=device,
            budget_bytes=read_budget_bytes(
                assignment,
                membership.log,
                2 * self.rounds.largest_bytes,
                is_remote=store.path("any") is None,
                is_staged=device.type != "cpu",
            ),
            cache=context.cache,
        )
        super().__init__(pipeline)

    def next_round(self, params: Params | None) -> FeedRound:
        """Return the next planned round in one batch that shares no memory with the pipeline; blocks.

        Raises:
            TypeError: `params` is None: a replay learns from a choice of rows, which are no trajectory.
            CorruptObjectError: a shard is damaged or missing.
            SpecMismatchError: a shard lacks a column that the algorithm needs, or steps were selected of rows that have
                several.
            StoreError: the store can't be read.
        """
        if params is None:
            raise TypeError("a replay has training rows and no trajectories; pass the parameters")
        taken = [self._take() for _ in range(self.rounds.own_shards)]
        parts = [self._rows(params, planned, loaded) for planned, loaded in taken]
        batch = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        for _, loaded in taken:
            loaded.release()
        steps, all_steps = self.rounds.share_of(self._round)
        self._round += 1
        return FeedRound([batch], steps, all_steps)

    def _take(self) -> tuple[PlannedShard, LoadedShard]:
        planned = next(self._planned)
        where = f"'{planned.ref.name}' of run '{planned.run}'"
        try:
            return planned, self._pipeline.take()
        except (CorruptObjectError, ObjectNotFoundError) as error:
            found = without_resuming(error)  # which acts nothing again in a replay
            raise CorruptObjectError(
                f"shard {where}, which this replay reads, is damaged or missing: {found}. Restore it from a copy, or "
                f"start another replay without it"
            ) from error
        except SpecMismatchError as error:
            raise SpecMismatchError(
                f"shard {where} lacks columns that '{self._context.config.algorithm.name}' requires: {error}; replay "
                f"runs of the same environment"
            ) from error

    def _rows(self, params: Params, planned: PlannedShard, loaded: LoadedShard) -> Batch:
        with torch.no_grad():
            batch = self._context.algorithm.post(params, loaded.trajectory)
        row_steps = self._context.config.algorithm.row_steps
        chosen = planned.row_ids(loaded.info.steps, loaded.info.envs, row_steps)
        if chosen is None:
            return batch
        rows, steps = len(next(iter(batch.values()))), loaded.info.steps * loaded.info.envs
        if rows * row_steps < steps:
            raise SpecMismatchError(
                f"post made {rows} training rows of {steps} stored steps, and source.min_return selects rows of "
                f"{row_steps} step{'s' if row_steps > 1 else ''}: leave min_return out"
            )
        index = torch.from_numpy(chosen).to(next(iter(batch.values())).device)
        return {name: column.index_select(0, index) for name, column in batch.items()}
