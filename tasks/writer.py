"""Storing acted rounds behind the actor's back: while one round is written, the next is acted.

The shard is stored first and hinted at once, because the learner waits for it; the environment state follows. A task
that dies between the two acts that one round again, with the same content.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from storage.digest import digest
from storage.episodes import Episodes
from storage.errors import StageMismatchError
from storage.refs import ShardRef, StateRef, shard_name, state_name
from storage.shards import ShardInfo, encode_shard
from storage.tensors import save_tensors
from tasks.placement import tiles_of
from tasks.tile import RoundBuffers

if TYPE_CHECKING:
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

    def buffers(self, actor: TileActor) -> RoundBuffers:
        """Buffers for the tile's next round: ones that were written already, or new ones."""
        free = self._free.setdefault(actor.tile, [])
        return free.pop() if free else RoundBuffers(self._context, actor.tile)

    def submit(self, acted: ActedRound) -> None:
        """Write a round soon; blocks while two are pending, and raises what went wrong with an earlier one."""
        while len(self._pending) >= _PENDING_AT_MOST:
            self._pending.pop(0).result()
        self._pending.append(self._executor.submit(self._write, acted))

    def finish(self) -> dict[int, StateRef]:
        """Wait until all is stored for good; the states after the stage, by tile."""
        for pending in self._pending:
            pending.result()
        self._pending.clear()
        last = self._context.rounds_of(self._assignment.stage)[-1]
        kept = {tile: self._sized(ref) for (round_, tile), ref in self._states.items() if round_ == last}
        self._context.run.store.sync([ref.name for ref in (*self._shards.values(), *kept.values())])
        return kept

    def close(self) -> None:
        """Stop the thread; what is pending is still written."""
        self._executor.shutdown(wait=True)

    def _sized(self, ref: StateRef) -> StateRef:
        """As a commit names it: a state that was found by listing knows no size yet."""
        return ref if ref.nbytes else replace(ref, nbytes=self._context.run.store.view(ref.name).nbytes)

    def _write(self, acted: ActedRound) -> None:
        self._write_shard(acted)
        self._free[acted.tile].append(acted.buffers)
        self._write_state(acted)

    def _write_shard(self, acted: ActedRound) -> None:
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
            policy_version=acted.version,
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
            ),
        )
        parts = encode_shard(acted.buffers.columns, acted.end.bootstrap_rows, acted.end.bootstrap_observation, info)
        content = digest(*parts)
        name = shard_name(assignment.stage, assignment.attempt, acted.round, acted.tile, content)
        key = (acted.round, acted.tile)
        stored = self._shards.get(key)
        if stored and stored.digest != content:
            raise StageMismatchError(
                f"round {acted.round} of tile {acted.tile} is stored as '{stored.name}', and acting it again gave "
                f"'{name}'; a stage must be a deterministic function of the commit before it. This attempt is given up "
                f"and the stage starts again"
            )
        ref = ShardRef(
            name=name,
            digest=content,
            nbytes=sum(part.nbytes for part in parts),
            round=acted.round,
            tile=acted.tile,
            rows=steps * envs,
        )
        if not stored:
            context.run.store.write(name, parts)
        self._shards[key] = ref
        self._membership.hint("learn", f"shard/{acted.round}/{acted.tile}", ref.to_json())

    def _write_state(self, acted: ActedRound) -> None:
        store, assignment = self._context.run.store, self._assignment
        data = save_tensors(acted.state, {"round": acted.round, "tile": acted.tile})
        content = digest(data)
        name = state_name(assignment.stage, assignment.attempt, acted.round, acted.tile, content)
        store.write(name, [memoryview(data)])
        self._states[acted.round, acted.tile] = StateRef(
            name=name, digest=content, nbytes=len(data), round=acted.round, tile=acted.tile
        )
        old = self._states.pop((acted.round - _STATES_KEPT, acted.tile), None)
        if old:
            store.delete([old.name])
