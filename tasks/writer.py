"""Storing acted rounds behind the actor's back: while some rounds are on their way, the next is acted.

One thread makes files of rounds, in their order. Where the store is remote, a shard enters the node's cache at once,
and a learner on this node reads it there; its upload runs behind, beside others. A round's state follows its shard and
the state before it, so that what a restarted task finds has no state without all shards before it. A task that dies
in between acts the rounds again that are not stored, with the same content.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from storage.digest import digest
from storage.episodes import Episodes
from storage.errors import StageMismatchError
from storage.refs import ShardRef, StateRef, shard_name, state_name
from storage.shards import ShardInfo, encode_shard
from storage.tensors import save_tensors
from storage.uploads import Uploads
from tasks.arrivals import tell_made, tell_stored
from tasks.placement import owner_of, tiles_of
from tasks.tile import RoundBuffers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tasks.assignment import Assignment
    from tasks.context import RunContext
    from tasks.membership import Membership
    from tasks.tile import ActedRound, TileActor

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
        """Of each tile, the upload of its newest round."""
        self.made_shards = self.made_bytes = 0
        """Of shards that were not stored before."""

    def buffers(self, actor: TileActor) -> RoundBuffers:
        """Buffers for the tile's next round: ones that were written already, or new ones."""
        free = self._free.setdefault(actor.tile, [])
        return free.pop() if free else RoundBuffers(self._context, actor.tile)

    def submit(self, acted: ActedRound) -> None:
        """Write a round soon; blocks while two wait for it, and raises what went wrong with an earlier one."""
        while len(self._pending) >= _PENDING_AT_MOST:
            self._pending.pop(0).result()
        self._pending.append(self._executor.submit(self._write, acted))

    def finish(self) -> dict[int, StateRef]:
        """Wait until all is stored for good; the states after the stage, by tile."""
        for pending in self._pending:
            pending.result()
        self._pending.clear()
        self._uploads.finish()
        # The newest of each tile: where a tile may leave rounds out, the stage's last one may be among them.
        kept = {tile: self._sized(ref) for (_, tile), ref in sorted(self._states.items())}
        self._context.run.store.sync([ref.name for ref in (*self._shards.values(), *kept.values())])
        return kept

    def shard_digests(self) -> dict[str, list[str]]:
        """Of all that is stored of the stage, by tile (as JSON has it) in order of rounds."""
        digests: dict[str, list[str]] = {}
        for (_, tile), ref in sorted(self._shards.items()):
            digests.setdefault(str(tile), []).append(ref.digest)
        return digests

    def close(self) -> None:
        """Stop the threads; what is pending is still written."""
        self._executor.shutdown(wait=True)
        self._uploads.close()

    def _sized(self, ref: StateRef) -> StateRef:
        """As a commit names it: a state that was found by listing knows no size yet."""
        return ref if ref.nbytes else replace(ref, nbytes=self._context.run.store.view(ref.name).nbytes)

    def _write(self, acted: ActedRound) -> None:
        """Make the round's files, offer the shard to this node, and have both stored."""
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
            tell_made(self._membership, "buffer", _key(acted), shard, self._learner_of(acted.tile))
        work = partial(self._store, acted, shard, [] if stored else parts, before=self._latest.get(acted.tile))
        nbytes = shard.nbytes + sum(array.nbytes for array in acted.state.values())
        self._latest[acted.tile] = self._uploads.submit(nbytes, work)

    def _store(
        self, acted: ActedRound, shard: ShardRef, parts: list[memoryview], *, before: Future[None] | None
    ) -> None:
        if before is not None and not self._context.config.waits_for_all:
            # What is stored tells a restarted task which rounds the tile has acted: no shard without those before it.
            before.result()
        if parts:
            self._context.run.store.write(shard.name, parts)
            parts.clear()
        tell_stored(self._membership, "buffer", _key(acted), shard, self._learner_of(acted.tile))
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
            context.cache.put(context.run.store, ref, [data])  # whoever acts the next stage on this node begins with it
        context.run.store.write(name, [memoryview(data)])
        self._states[acted.round, acted.tile] = ref
        rounds = sorted(round_ for round_, tile in list(self._states) if tile == acted.tile)
        for round_ in rounds[:-_STATES_KEPT]:
            context.run.store.delete([self._states.pop((round_, acted.tile)).name])

    def _shard_of(self, acted: ActedRound) -> tuple[ShardRef, list[memoryview]]:
        """A round's shard, its parts still in the round's buffers."""
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
        """The versions that acted the first steps of the episodes that ended."""
        if acted.first_versions is not None:
            return acted.first_versions
        # Every round has all steps of its tile.
        steps, envs = acted.buffers.columns.shape
        ended = acted.end.episodes
        rounds = (acted.round * steps + ended["row"] // envs + 1 - ended["length"]) // steps
        return np.array([self._context.acting_version(round_) for round_ in rounds.tolist()], dtype=np.int64)


def _key(acted: ActedRound) -> str:
    return f"shard/{acted.round}/{acted.tile}"
