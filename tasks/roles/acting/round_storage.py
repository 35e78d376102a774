"""Stores the rounds of an act task in an order from which a restarted task can continue.

A round's state is stored after its shard and after the state before it, so a restarted task never finds a state without
all shards before it. A task that dies in between acts the missing rounds again, with the same content. The two newest
states are kept: one may be half of a pair whose shard was lost.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from penstock.storage.digest import digest
from penstock.storage.errors import StageMismatchError
from penstock.storage.refs import ShardRef, StateRef, shard_name, state_name
from penstock.storage.transfer.background_uploads import Uploads
from penstock.tasks.runtime.announcements import announce_cached, announce_stored
from penstock.tasks.setup.distribution.dataflow import owner_of, tiles_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.tasks.runtime.assignment import Assignment
    from penstock.tasks.runtime.membership import Membership
    from penstock.tasks.runtime.run_context import RunContext

_STATES_KEPT = 2


class RoundStorage:
    """Stores rounds in the order in which they are added. For one act task.

    Args:
        assignment: of the act task.
        context: of the run.
        membership: in the stage's gang.
        shards: that are stored already, by (round, tile).
        states: that are stored already, by (round, tile).
        confirm: given a round's version before its shard is stored; may wait until that is stored, or refuse it.
    """

    def __init__(
        self,
        assignment: Assignment,
        context: RunContext,
        membership: Membership,
        shards: Mapping[tuple[int, int], ShardRef],
        states: Mapping[tuple[int, int], StateRef],
        confirm: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._assignment = assignment
        self._context = context
        self._membership = membership
        self._confirm = confirm
        tiles = tiles_of(assignment.replica, assignment.replicas, context.config.environment.tiles)
        # Of all tiles there may be very many.
        own = [(round_, tile) for round_ in context.rounds_of(assignment.stage) for tile in tiles]
        self._shards = {key: shards[key] for key in own if key in shards}
        self._states = {key: states[key] for key in own if key in states}
        self._remote = context.run.store.path("shards") is None
        threads = assignment.upload_threads if self._remote else 0
        # Without the shard that failed to be stored, the snapshot for which its actor waits never comes.
        self._uploads = Uploads(threads, assignment.upload_budget_bytes, membership.fail)
        self._latest: dict[int, Callable[[], None]] = {}
        """Functions that wait for the upload of each tile's newest round."""
        self.made_shards = self.made_bytes = 0
        """Number and bytes of shards that were not stored before."""

    def add(
        self,
        shard: ShardRef,
        parts: list[memoryview],
        make_state: Callable[[], bytes],
        state_bytes: int,
        release: Callable[[], None],
        stored_as: Future[ShardRef] | None = None,
    ) -> None:
        """Put a round's shard into this node's cache, and queue the uploads of shard and state.

        Args:
            shard: as `shard_ref` makes it.
            parts: its content; cleared once it is stored.
            make_state: returns the content of the environments' state after the round.
            state_bytes: the size of that, for the budget.
            release: called once the shard is stored, and its buffers can be used again.
            stored_as: set once this process can read the shard; if it never can, the caller sets the error.

        Raises:
            StageMismatchError: the round is stored with other content.
            BaseException: what an earlier upload raised.
        """
        context, key = self._context, (shard.round, shard.tile)
        stored_as = stored_as or Future()
        stored = self._shards.get(key)
        if stored and stored.digest != shard.digest:
            raise StageMismatchError(
                f"round {shard.round} of tile {shard.tile} is stored as '{stored.name}', and acting it again gave "
                f"'{shard.name}'; a stage must be a deterministic function of the commit before it. This attempt is "
                f"given up and the stage starts again"
            )
        self._shards[key] = shard
        if stored is None:
            self.made_shards += 1
            self.made_bytes += shard.nbytes
        if stored is None and self._remote:
            context.cache.put(context.run.store, shard, parts)
            announce_cached(self._membership, "buffer", _key(shard), shard, self._learner_of(shard.tile))
        if stored or self._remote:
            stored_as.set_result(shard)
        before = self._latest.get(shard.tile)
        work = partial(self._store, shard, [] if stored else parts, make_state, release, stored_as, before=before)
        self._latest[shard.tile] = self._uploads.submit(shard.nbytes + state_bytes, work)

    def finish(self) -> dict[int, StateRef]:
        """Wait until everything is durable; returns the states after the stage, by tile."""
        self._uploads.finish()
        # The newest of each tile: a tile that may skip rounds may have skipped the stage's last one.
        kept = {tile: self._sized(ref) for (_, tile), ref in sorted(self._states.items())}
        self._context.run.store.sync([ref.name for ref in (*self._shards.values(), *kept.values())])
        return kept

    def shard_digests(self) -> dict[int, tuple[str, ...]]:
        """Return the digests of the stage's stored shards, by tile in order of rounds."""
        digests: dict[int, tuple[str, ...]] = {}
        for (_, tile), ref in sorted(self._shards.items()):
            digests[tile] = (*digests.get(tile, ()), ref.digest)
        return digests

    def close(self) -> None:
        """Stop the threads; pending objects are still written."""
        self._uploads.close()

    def shard_ref(self, round_: int, tile: int, content: str, nbytes: int, rows: int) -> ShardRef:
        """Return the reference of a shard with the digest `content`."""
        name = shard_name(self._assignment.stage, self._assignment.attempt, round_, tile, content)
        return ShardRef(name=name, digest=content, nbytes=nbytes, round=round_, tile=tile, rows=rows)

    def _store(
        self,
        shard: ShardRef,
        parts: list[memoryview],
        make_state: Callable[[], bytes],
        release: Callable[[], None],
        stored_as: Future[ShardRef],
        *,
        before: Callable[[], None] | None,
    ) -> None:
        self._confirm(self._context.acting_version(shard.round))
        if before is not None and not self._context.config.requires_full_round:
            # A restarted task infers acted rounds from stored shards: store no shard before those of earlier rounds.
            before()
        if parts:
            self._context.run.store.write(shard.name, parts)
            parts.clear()
        if not stored_as.done():
            stored_as.set_result(shard)
        announce_stored(self._membership, "buffer", _key(shard), shard, self._learner_of(shard.tile))
        release()
        if before is not None:
            before()
        self._store_state(shard.round, shard.tile, make_state())

    def _store_state(self, round_: int, tile: int, data: bytes) -> None:
        context, assignment = self._context, self._assignment
        content = digest(data)
        name = state_name(assignment.stage, assignment.attempt, round_, tile, content)
        ref = StateRef(name=name, digest=content, nbytes=len(data), round=round_, tile=tile)
        if round_ == context.rounds_of(assignment.stage)[-1]:
            context.cache.put(context.run.store, ref, [data])  # an actor of the next stage on this node starts from it
        context.run.store.write(name, [memoryview(data)])
        self._states[round_, tile] = ref
        rounds = sorted(stored for stored, of in list(self._states) if of == tile)
        for stored in rounds[:-_STATES_KEPT]:
            context.run.store.delete([self._states.pop((stored, tile)).name])

    def _learner_of(self, tile: int) -> int | None:
        """Return the learner that reads a tile's shards; None if all do."""
        if self._context.policy.reduce == "agents":
            return None
        learners = self._context.policy.role_of("buffer").replicas
        return owner_of(tile, learners, self._context.config.environment.tiles)

    def _sized(self, ref: StateRef) -> StateRef:
        """Return the reference with its size, which one found by listing lacks."""
        return ref if ref.nbytes else replace(ref, nbytes=self._context.run.store.view(ref.name).nbytes)


def _key(shard: ShardRef) -> str:
    return f"shard/{shard.round}/{shard.tile}"
