"""Going on without stragglers: which shards a round is learned from, and where a tile that is late goes on.

A round is learned from when `placement.quorum` of its shards are stored, from all that are stored then. Its choice is
stored before, so that learning it again follows it. A shard that comes later is kept until the stage is committed,
because the tile's environments went through it, and is learned from by nobody.

A tile whose next round is chosen already leaves it out. It goes on with the newest round that it may act without
waiting: that gives it the most time, and its rows are no older than `schedule.lag` allows, as those of any tile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from storage.choices import Choice, store_choice, stored_choices
from storage.errors import CorruptObjectError, StageMismatchError
from storage.refs import ShardRef
from tasks.stored import stored_shards

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tasks.assignment import Assignment
    from tasks.context import RunContext
    from tasks.membership import Membership
    from tasks.snapshots import SnapshotReader
    from tasks.tile import TileActor

_CHOSEN = "chosen"
"""Hint of the newest round that was chosen."""


class RoundChoices:
    """Chooses the shards of a stage's rounds, in order. For a learner's finder; `want` and `shards_of` for its taker.

    Args:
        assignment: of the learner.
        context: of the run.
        membership: in the stage's gang.
        known: shards that are stored by (round, tile); what is found is added.
    """

    def __init__(
        self,
        assignment: Assignment,
        context: RunContext,
        membership: Membership,
        known: dict[tuple[int, int], ShardRef],
    ) -> None:
        self._store = context.run.store
        self._stage, self._attempt = assignment.stage, assignment.attempt
        self._membership = membership
        self._tiles = range(context.config.environment.tiles)
        self._needed = context.config.shards_needed
        self._known = known
        self._made = stored_choices(self._store, self._stage, self._attempt)
        self._shards: dict[int, int] = {}
        self._wanted = -1

    def want(self, round_: int) -> None:
        """Say that learning waits for a round: until then, reading ahead leaves nothing out."""
        self._wanted = round_
        self._membership.wake()

    def shards_of(self, round_: int) -> int:
        """How many shards a round is learned from; once it was chosen."""
        return self._shards[round_]

    def choose(self, round_: int) -> list[ShardRef]:
        """The shards of a round that are learned from, by tile; as they were chosen before, if they were.

        Raises:
            StageMismatchError: a choice that was stored, or a shard that it names, is gone or damaged.
        """
        if round_ not in self._made:
            self._membership.wait(lambda hints: self._heard(round_, hints), lambda: self._look(round_))
        try:
            choice = self._choice(round_)
        except CorruptObjectError as error:
            raise StageMismatchError(f"{error}. This attempt is given up and the stage starts again") from error
        refs = [self._chosen(round_, tile, digest) for tile, digest in choice.digests.items()]
        self._shards[round_] = len(refs)
        return refs

    def _choice(self, round_: int) -> Choice:
        if round_ in self._made:
            return Choice.decode(self._store.read(self._made[round_]), self._made[round_])
        there = {tile: self._known[round_, tile].digest for tile in self._tiles if (round_, tile) in self._known}
        choice = store_choice(self._store, self._stage, self._attempt, Choice(round_, there))
        self._membership.hint("act", _CHOSEN, round_)
        return choice

    def _heard(self, round_: int, hints: Mapping[str, Any]) -> bool:
        for tile in self._tiles:
            # Only what is stored: a choice must never name a shard that is lost on its way up.
            told = hints.get(f"shard/{round_}/{tile}")
            if told is not None:
                self._known.setdefault((round_, tile), ShardRef.from_json(told))
        return self._enough(round_)

    def _look(self, round_: int) -> bool:
        self._known |= stored_shards(self._store, self._stage, self._attempt, round_)
        return self._enough(round_)

    def _enough(self, round_: int) -> bool:
        there = sum((round_, tile) in self._known for tile in self._tiles)
        return there == len(self._tiles) or (there >= self._needed and self._wanted >= round_)

    def _chosen(self, round_: int, tile: int, digest: str) -> ShardRef:
        for look in (False, True):
            if look:
                self._look(round_)
            ref = self._known.get((round_, tile))
            if ref is not None and ref.digest == digest:
                return ref
        raise StageMismatchError(
            f"stage {self._stage}: round {round_} was learned from a shard of tile {tile} with the digest {digest}, as "
            f"its choice says; found {ref.name if ref else 'none'}. This attempt is given up and the stage starts again"
        )


class LateTiles:
    """Where tiles that are late go on. For one act task.

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

    def leave_out(self, actors: Iterable[TileActor], round_: int) -> None:
        """Let those whose next round is `round_` go on with a later one, if it would not be learned from."""
        for actor in actors:
            if actor.next_round == round_:
                actor.next_round = self._next_round(actor.tile, round_)

    def _next_round(self, tile: int, round_: int) -> int:
        stored = self._stored.setdefault(tile, set())
        again = [later for later in stored if later >= round_]
        if again:
            # Its environments went through this one, and through none before it, when it was stored.
            return min(again)
        told = self._membership.hinted(_CHOSEN)
        if told is None and self._membership.hinted("elsewhere"):
            # No hint comes from a learner on another cluster.
            told = self._newest_stored()
        self._newest = self._newest if told is None else max(self._newest, told)
        if round_ > self._newest:
            going_on = round_
        elif self._newest < self._last:
            going_on = min(max(self._newest + 1, self._snapshots.newest + self._lag), self._last)
        else:
            # A commit names a state of every tile, so each acts one round of a stage, though it were for nothing.
            going_on = self._last + 1 if stored else self._last
        if going_on == round_:
            stored.add(round_)
        return going_on

    def _newest_stored(self) -> int:
        return max(stored_choices(self._store, self._stage, self._attempt), default=-1)
