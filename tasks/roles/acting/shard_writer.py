"""Stores acted rounds in the background, while the next round is acted.

One thread encodes rounds in their order. If the store is remote, a shard enters the node's cache immediately, and a
learner on this node reads it there; uploads run concurrently. A round's state is stored after its shard and after the
state before it, so a restarted task never finds a state without all shards before it. A task that dies in between acts
the missing rounds again, with the same content.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from penstock.storage.digest import digest
from penstock.storage.errors import StageMismatchError
from penstock.storage.refs import ShardRef, StateRef, shard_name, state_name
from penstock.storage.shards.codec import ShardInfo, encode_shard
from penstock.storage.shards.episode_index import Episodes
from penstock.storage.tensors import save_tensors
from penstock.storage.transfer.background_uploads import Uploads
from penstock.tasks.roles.acting.tile import RoundBuffers
from penstock.tasks.runtime.announcements import announce_cached, announce_stored
from penstock.tasks.setup.distribution.dataflow import owner_of, tiles_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.tasks.roles.acting.tile import ActedRound, TileActor
    from penstock.tasks.runtime.assignment import Assignment
    from penstock.tasks.runtime.membership import Membership
    from penstock.tasks.runtime.run_context import RunContext

_PENDING_AT_MOST = 2
_STATES_KEPT = 2


class RoundWriter:
    """Writes rounds in the order in which they are submitted. For one act task."""

    def __init__(
        self,
        assignment: Assignment,
        context: RunContext,
        membership: Membership,
        shards: dict[tuple[int, int], ShardRef],
        states: dict[tuple[int, int], StateRef],
    ) -> None:
        self._assignment = assignment
        self._context = context
        self._membership = membership
        tiles = tiles_of(assignment.replica, assignment.replicas, context.config.environment.tiles)
        self._shards = {key: ref for key, ref in shards.items() if key[1] in tiles}
        self._states = {key: ref for key, ref in states.items() if key[1] in tiles}
        self._free: dict[int, list[RoundBuffers]] = {}
        self._pending: list[Future[None]] = []
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="round-writer")
        self._remote = context.run.store.path("shards") is None
        self._uploads = Uploads(assignment.upload_threads if self._remote else 0, assignment.upload_budget_bytes)
        self._latest: dict[int, Future[None]] = {}
        """The upload of each tile's newest round."""
        self.made_shards = self.made_bytes = 0
        """Number and bytes of shards that were not stored before."""

    def buffers(self, actor: TileActor) -> RoundBuffers:
        """Return buffers for the tile's next round: released ones, or new ones."""
        free = self._free.setdefault(actor.tile, [])
        return free.pop() if free else RoundBuffers(self._context, actor.tile)

    def submit(self, acted: ActedRound) -> None:
        """Queue a round; blocks while two are pending, and raises the error of an earlier one."""
        while len(self._pending) >= _PENDING_AT_MOST:
            self._pending.pop(0).result()
        self._pending.append(self._executor.submit(self._write, acted))

    def finish(self) -> dict[int, StateRef]:
        """Wait until everything is durable; returns the states after the stage, by tile."""
        for pending in self._pending:
            pending.result()
        self._pending.clear()
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
        self._executor.shutdown(wait=True)
        self._uploads.close()

    def _sized(self, ref: StateRef) -> StateRef:
        """Return the reference with its size, which one found by listing lacks."""
        return ref if ref.nbytes else replace(ref, nbytes=self._context.run.store.view(ref.name).nbytes)

    def _write(self, acted: ActedRound) -> None:
        """Encode the round, put the shard into this node's cache, and queue both uploads."""
        context = self._context
        shard, parts = self._shard_of(acted)
        key = (acted.round, acted.tile)
        stored = self._shards.get(key)
        if stored and stored.digest != shard.digest:
            raise StageMismatchError(
                f"round {acted.round} of tile {acted.tile} is stored as '{stored.name}', and acting it again gave "
                f"'{shard.name}'; a stage must be a deterministic function of the commit before it. This attempt is "
                f"given up and the stage starts again"
            )
        self._shards[key] = shard
        if stored is None:
            self.made_shards += 1
            self.made_bytes += shard.nbytes
        if stored is None and self._remote:
            context.cache.put(context.run.store, shard, parts)
            announce_cached(self._membership, "buffer", _key(acted), shard, self._learner_of(acted.tile))
        work = partial(self._store, acted, shard, [] if stored else parts, before=self._latest.get(acted.tile))
        nbytes = shard.nbytes + sum(array.nbytes for array in acted.state.values())
        self._latest[acted.tile] = self._uploads.submit(nbytes, work)

    def _store(
        self, acted: ActedRound, shard: ShardRef, parts: list[memoryview], *, before: Future[None] | None
    ) -> None:
        if before is not None and not self._context.config.requires_full_round:
            # A restarted task infers acted rounds from stored shards: store no shard before those of earlier rounds.
            before.result()
        if parts:
            self._context.run.store.write(shard.name, parts)
            parts.clear()
        announce_stored(self._membership, "buffer", _key(acted), shard, self._learner_of(acted.tile))
        self._free[acted.tile].append(acted.buffers)
        if before is not None:
            before.result()
        self._store_state(acted)

    def _learner_of(self, tile: int) -> int:
        learners = self._context.policy.role_of("buffer").replicas
        return owner_of(tile, learners, self._context.config.environment.tiles)

    def _store_state(self, acted: ActedRound) -> None:
        context, assignment = self._context, self._assignment
        data = save_tensors(acted.state, {"round": acted.round, "tile": acted.tile})
        content = digest(data)
        name = state_name(assignment.stage, assignment.attempt, acted.round, acted.tile, content)
        ref = StateRef(name=name, digest=content, nbytes=len(data), round=acted.round, tile=acted.tile)
        if acted.round == context.rounds_of(assignment.stage)[-1]:
            context.cache.put(context.run.store, ref, [data])  # an actor of the next stage on this node starts from it
        context.run.store.write(name, [memoryview(data)])
        self._states[acted.round, acted.tile] = ref
        rounds = sorted(round_ for round_, tile in list(self._states) if tile == acted.tile)
        for round_ in rounds[:-_STATES_KEPT]:
            context.run.store.delete([self._states.pop((round_, acted.tile)).name])

    def _shard_of(self, acted: ActedRound) -> tuple[ShardRef, list[memoryview]]:
        """Return a round's shard and its parts, which are views of the round's buffers."""
        context, assignment = self._context, self._assignment
        settings = context.config.environment
        steps, envs = acted.buffers.columns.shape
        ended = acted.end.episodes
        info = ShardInfo(
            run_seed=context.config.seed,
            stage=assignment.stage,
            round=acted.round,
            tile=acted.tile,
            steps=steps,
            envs=envs,
            min_policy_version=acted.version,
            max_policy_version=acted.version,
            environment=settings.id,
            environment_config={"max_episode_steps": settings.max_episode_steps, **settings.settings},
            episodes=Episodes.from_flags(
                row=ended["row"],
                env_id=ended["env"] + context.envs_of(acted.tile).start,
                episode_id=ended["episode_id"],
                length=ended["length"],
                return_=ended["return"],
                terminated=ended["terminated"],
                truncated=ended["truncated"],
                first_policy_version=self._first_versions(acted),
                last_policy_version=np.full(len(ended["row"]), acted.version),
            ),
            follows_round=acted.follows_round,
        )
        encoded = encode_shard(acted.buffers.columns, acted.end.bootstrap_rows, acted.end.bootstrap_observation, info)
        content = encoded.digest
        name = shard_name(assignment.stage, assignment.attempt, acted.round, acted.tile, content)
        ref = ShardRef(
            name=name,
            digest=content,
            nbytes=encoded.nbytes,
            round=acted.round,
            tile=acted.tile,
            rows=steps * envs,
        )
        return ref, encoded.parts

    def _first_versions(self, acted: ActedRound) -> NDArray[np.int64]:
        """Return the versions that acted the first steps of the ended episodes."""
        if acted.first_versions is not None:
            return acted.first_versions
        # Every round has all steps of its tile.
        steps, envs = acted.buffers.columns.shape
        ended = acted.end.episodes
        rounds = (acted.round * steps + ended["row"] // envs + 1 - ended["length"]) // steps
        return np.array([self._context.acting_version(round_) for round_ in rounds.tolist()], dtype=np.int64)


def _key(acted: ActedRound) -> str:
    return f"shard/{acted.round}/{acted.tile}"
