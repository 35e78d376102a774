"""Finds the shards of a stage's rounds as actors store them: by notification, or in storage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.storage.refs import ShardRef
from penstock.tasks.runtime.announcements import wait_for
from penstock.tasks.runtime.stored_objects import stored_shards

if TYPE_CHECKING:
    from penstock.tasks.runtime.assignment import Assignment
    from penstock.tasks.runtime.membership import Membership
    from penstock.tasks.runtime.run_context import RunContext


class ShardFinder:
    """Finds shards by (round, tile). For one learner.

    Args:
        assignment: of the learner.
        context: of the run.
        membership: in the stage's gang.
    """

    def __init__(self, assignment: Assignment, context: RunContext, membership: Membership) -> None:
        self._assignment = assignment
        self._context = context
        self._membership = membership
        self.known = stored_shards(context.run.store, assignment.stage, assignment.attempt)
        """The stored shards that are known so far."""

    def find(self, round_: int, tile: int) -> tuple[ShardRef, memoryview | None]:
        """Wait for a shard; returns its reference, and its content if this node has it and the store may not yet."""
        cached = None
        if (round_, tile) not in self.known:
            key = f"shard/{round_}/{tile}"
            found = wait_for(
                self._membership, self._context.cache, key, lambda: self._poll(round_, tile), ShardRef.from_json
            )
            if found.ref:
                self.known[round_, tile] = found.ref
                cached = found.cached
        return self.known[round_, tile], cached

    def _poll(self, round_: int, tile: int) -> bool:
        self.known |= stored_shards(self._context.run.store, self._assignment.stage, self._assignment.attempt, round_)
        return (round_, tile) in self.known
