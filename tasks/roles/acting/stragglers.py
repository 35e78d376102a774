"""Skips stragglers (quorum below 1): a round is learned without late shards, and a late tile skips rounds.

A round is learned when `distribution.quorum` of its shards are stored, from all that are stored then. The choice is
stored first, so learning the round again follows it. A later shard is kept until the stage is committed, because the
tile's environments went through it, but is never learned from.

A tile whose next round is already chosen skips it. It resumes with the newest round that it may act without waiting:
that gives it the most time, and its rows are no older than `schedule.lag` allows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from penstock.storage.runs.round_choices import stored_choices

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from penstock.storage.refs import ShardRef
    from penstock.tasks.data.snapshots.exchange import SnapshotReader
    from penstock.tasks.runtime.assignment import Assignment
    from penstock.tasks.runtime.membership import Membership
    from penstock.tasks.runtime.run_context import RunContext


CHOSEN = "chosen"
"""Notification key of the newest chosen round."""


class ActsRounds(Protocol):
    """An actor of one tile, real or simulated."""

    tile: int
    next_round: int


ActorT = TypeVar("ActorT", bound=ActsRounds)


def due_rounds(
    rounds: range, actors: Collection[ActorT], late: LateTiles | None, check: Callable[[], None]
) -> Iterator[tuple[int, list[ActorT]]]:
    """Yield each round that is to be acted, with the actors whose next round it is.

    Args:
        rounds: of the stage; those that no actor has next, such as stored ones, are left out.
        actors: of the act task.
        late: decides which round late tiles act next; None with quorum 1.
        check: called before each round, and raises if the member must leave.
    """
    for round_ in rounds:
        check()
        if late is not None:
            late.leave_out(actors, round_)
        if due := [actor for actor in actors if actor.next_round == round_]:
            yield round_, due


class LateTiles:
    """Decides which round a late tile acts next. For one act task.

    Args:
        assignment: of the act task.
        context: of the run.
        membership: in the stage's gang.
        snapshots: of the act task.
        shards: that were stored when it began, by (round, tile).
    """

    def __init__(
        self,
        assignment: Assignment,
        context: RunContext,
        membership: Membership,
        snapshots: SnapshotReader,
        shards: Mapping[tuple[int, int], ShardRef],
    ) -> None:
        self._store = context.run.store
        self._stage, self._attempt = assignment.stage, assignment.attempt
        self._membership = membership
        self._snapshots = snapshots
        self._lag = context.config.schedule.lag
        self._last = context.rounds_of(assignment.stage)[-1]
        self._newest = self._newest_stored()
        self._stored: dict[int, set[int]] = {}
        for round_, tile in shards:
            self._stored.setdefault(tile, set()).add(round_)

    def leave_out(self, actors: Iterable[ActsRounds], round_: int) -> None:
        """Let actors whose next round is `round_` skip to a later one, if it would not be learned from."""
        for actor in actors:
            if actor.next_round == round_:
                actor.next_round = self._next_round(actor.tile, round_)

    def _next_round(self, tile: int, round_: int) -> int:
        stored = self._stored.setdefault(tile, set())
        again = [later for later in stored if later >= round_]
        if again:
            # When this round was stored, the environments had acted it, and none of the skipped ones.
            return min(again)
        chosen = self._membership.latest(CHOSEN)
        if chosen is None and self._membership.latest("elsewhere"):
            # No notification comes from a learner on another cluster.
            chosen = self._newest_stored()
        self._newest = self._newest if chosen is None else max(self._newest, chosen)
        if round_ > self._newest:
            resumed = round_
        elif self._newest < self._last:
            resumed = min(max(self._newest + 1, self._snapshots.newest + self._lag), self._last)
        else:
            # A commit names a state of every tile, so each acts at least one round of a stage, even an unused one.
            resumed = self._last + 1 if stored else self._last
        if resumed == round_:
            stored.add(round_)
        return resumed

    def _newest_stored(self) -> int:
        return max(stored_choices(self._store, self._stage, self._attempt), default=-1)
