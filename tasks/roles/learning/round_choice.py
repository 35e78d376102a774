"""Records which shards of a round are learned from when stragglers are left out (quorum below 1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.storage.errors import CorruptObjectError, StageMismatchError
from penstock.storage.refs import ShardRef
from penstock.storage.runs.round_choices import Choice, store_choice, stored_choices
from penstock.tasks.roles.acting.stragglers import CHOSEN
from penstock.tasks.runtime.stored_objects import stored_shards

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.tasks.runtime.assignment import Assignment
    from penstock.tasks.runtime.membership import Membership
    from penstock.tasks.runtime.run_context import RunContext


class RoundChoices:
    """Chooses the shards of a stage's rounds, in order. For a learner's finder; `want` and `shards_of` for its taker.

    Args:
        assignment: of the learner.
        context: of the run.
        membership: in the stage's gang.
        known: stored shards by (round, tile); found ones are added.
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
        """Announce that learning waits for a round: until then, reading ahead skips no shard."""
        self._wanted = round_
        self._membership.wake()

    def shards_of(self, round_: int) -> int:
        """Return the number of shards of a round, once it was chosen."""
        return self._shards[round_]

    def choose(self, round_: int) -> list[ShardRef]:
        """Return the shards that a round is learned from, by tile; repeats an earlier choice if there is one.

        Raises:
            StageMismatchError: a choice that was stored, or a shard that it names, is missing or damaged.
        """
        if round_ not in self._made:
            self._membership.wait(lambda entries: self._notified(round_, entries), lambda: self._poll(round_))
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
        present = {tile: self._known[round_, tile].digest for tile in self._tiles if (round_, tile) in self._known}
        choice = store_choice(self._store, self._stage, self._attempt, Choice(round_, present))
        self._membership.notify("act", CHOSEN, round_)
        return choice

    def _notified(self, round_: int, entries: Mapping[str, Any]) -> bool:
        for tile in self._tiles:
            # Only stored shards: a choice must never name a shard whose upload may fail.
            stored = entries.get(f"shard/{round_}/{tile}")
            if stored is not None:
                self._known.setdefault((round_, tile), ShardRef.from_json(stored))
        return self._enough(round_)

    def _poll(self, round_: int) -> bool:
        self._known |= stored_shards(self._store, self._stage, self._attempt, round_)
        return self._enough(round_)

    def _enough(self, round_: int) -> bool:
        present = sum((round_, tile) in self._known for tile in self._tiles)
        return present == len(self._tiles) or (present >= self._needed and self._wanted >= round_)

    def _chosen(self, round_: int, tile: int, digest: str) -> ShardRef:
        for polls in (False, True):
            if polls:
                self._poll(round_)
            ref = self._known.get((round_, tile))
            if ref is not None and ref.digest == digest:
                return ref
        raise StageMismatchError(
            f"stage {self._stage}: round {round_} was learned from a shard of tile {tile} with the digest {digest}, as "
            f"its choice says; found {ref.name if ref else 'none'}. This attempt is given up and the stage starts again"
        )
