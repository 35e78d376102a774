"""Finds the shards of a stage's rounds as actors hand them over or store them: by notification, or in storage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.storage.refs import ShardRef
from penstock.tasks.runtime.announcements import wait_for
from penstock.tasks.runtime.stored_objects import stored_shards

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.tasks.data.input.hand_over import HandedRows, HandedShard
    from penstock.tasks.runtime.assignment import Assignment
    from penstock.tasks.runtime.membership import Membership
    from penstock.tasks.runtime.run_context import RunContext


class ShardFinder:
    """Finds shards by (round, tile). For one learner.

    Args:
        assignment: of the learner.
        context: of the run.
        membership: in the stage's gang.
        handed: rounds of the actor in this process; None if there is none.
    """

    def __init__(
        self, assignment: Assignment, context: RunContext, membership: Membership, handed: HandedRows | None = None
    ) -> None:
        self._assignment = assignment
        self._context = context
        self._membership = membership
        self._handed = handed
        self.known = stored_shards(context.run.store, assignment.stage, assignment.attempt)
        """The stored shards that are known so far."""

    def find(self, round_: int, tile: int) -> tuple[ShardRef, memoryview | None]:
        """Wait for a shard; returns its reference, and its content if this node has it and the store may not yet."""
        cached = self._wait(round_, tile, lambda: False)
        return self.known[round_, tile], cached

    def take(self, round_: int, tile: int) -> HandedShard | tuple[ShardRef, memoryview | None]:
        """Wait for a round; returns it if it was handed over, and otherwise its shard, as `find`."""
        handed = self._handed
        if handed is None:
            return self.find(round_, tile)
        cached = self._wait(round_, tile, lambda: handed.holds(round_, tile))
        return handed.take(round_, tile) or (self.known[round_, tile], cached)

    def _wait(self, round_: int, tile: int, is_here: Callable[[], bool]) -> memoryview | None:
        if (round_, tile) in self.known:
            return None
        key = f"shard/{round_}/{tile}"
        found = wait_for(
            self._membership, self._context.cache, key, lambda: self._poll(round_, tile), ShardRef.from_json, is_here
        )
        if found.ref:
            self.known[round_, tile] = found.ref
        return found.cached

    def _poll(self, round_: int, tile: int) -> bool:
        self.known |= stored_shards(self._context.run.store, self._assignment.stage, self._assignment.attempt, round_)
        return (round_, tile) in self.known
