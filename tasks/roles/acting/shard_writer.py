"""Encodes acted rounds in the background, while the next round is acted, and hands them to `RoundStorage`.

One thread copies rounds from their device, and encodes them, in their order. If the store is remote, a shard enters the
node's cache immediately, and a learner on this node reads it there; uploads run concurrently. A learner in this process
gets the rows themselves, before they are encoded.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from penstock.storage.shards.codec import ShardInfo, encode_shard
from penstock.storage.shards.episode_index import Episodes
from penstock.storage.tensors import save_tensors
from penstock.tasks.roles.acting.round_storage import RoundStorage
from penstock.tasks.roles.acting.tile import Later, RoundBuffers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from penstock.storage.refs import ShardRef, StateRef
    from penstock.tasks.data.input.hand_over import HandedRows
    from penstock.tasks.roles.acting.tile import ActedRound, TileActor
    from penstock.tasks.runtime.assignment import Assignment
    from penstock.tasks.runtime.membership import Membership
    from penstock.tasks.runtime.run_context import RunContext

_PENDING_AT_MOST = 2


class RoundWriter:
    """Writes rounds in the order in which they are submitted. For one act task.

    Args:
        assignment: of the act task.
        context: of the run.
        membership: in the stage's gang.
        shards: that are stored already, by (round, tile).
        states: that are stored already, by (round, tile).
        handed: gets every round, for the learner of this process; None if that is elsewhere.
        confirm: as `RoundStorage`.
    """

    def __init__(
        self,
        assignment: Assignment,
        context: RunContext,
        membership: Membership,
        shards: Mapping[tuple[int, int], ShardRef],
        states: Mapping[tuple[int, int], StateRef],
        *,
        handed: HandedRows | None = None,
        confirm: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._stage = assignment.stage
        self._context = context
        self._membership = membership
        self._handed = handed
        self._storage = RoundStorage(assignment, context, membership, shards, states, confirm)
        self._free: dict[int, list[RoundBuffers]] = {}
        self._pending: list[Future[None]] = []
        self._failure: BaseException | None = None
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="round-writer")

    @property
    def made_shards(self) -> int:
        """Return the number of shards that were not stored before."""
        return self._storage.made_shards

    @property
    def made_bytes(self) -> int:
        """Return the bytes of shards that were not stored before."""
        return self._storage.made_bytes

    def buffers(self, actor: TileActor) -> RoundBuffers:
        """Return buffers for the tile's next round: released ones, or new ones."""
        free = self._free.setdefault(actor.tile, [])
        return free.pop() if free else RoundBuffers(self._context, actor.tile)

    def submit(self, acted: ActedRound) -> None:
        """Hand a round over and queue it; blocks while two are pending, and raises the error of an earlier one."""
        info = Later(partial(self._info_of, acted))
        stored_as: Future[ShardRef] = Future()
        if self._handed is not None:
            self._handed.offer(acted.round, acted.tile, info, acted.played, stored_as)
        try:
            while len(self._pending) >= _PENDING_AT_MOST:
                self._pending.pop(0).result()
            self._pending.append(self._executor.submit(self._write, acted, info, stored_as))
        except BaseException as error:
            stored_as.set_exception(error)
            raise

    def finish(self) -> dict[int, StateRef]:
        """Wait until everything is durable; returns the states after the stage, by tile."""
        for pending in self._pending:
            pending.result()
        self._pending.clear()
        return self._storage.finish()

    def shard_digests(self) -> dict[int, tuple[str, ...]]:
        """Return the digests of the stage's stored shards, by tile in order of rounds."""
        return self._storage.shard_digests()

    def close(self) -> None:
        """Stop the threads; pending objects are still written."""
        self._executor.shutdown(wait=True)
        self._storage.close()

    def _write(self, acted: ActedRound, info: Later[ShardInfo], stored_as: Future[ShardRef]) -> None:
        try:
            self._refuse_after_failure()
            self._encode_and_store(acted, info, stored_as)
        except BaseException as error:
            self._failure = self._failure or error
            if not stored_as.done():
                stored_as.set_exception(error)
            self._membership.fail(error)
            raise

    def _refuse_after_failure(self) -> None:
        """Store nothing after a round that could not be stored.

        What follows it would be taken for what follows the other round that is stored there.
        """
        if self._failure is not None:
            raise self._failure

    def _encode_and_store(self, acted: ActedRound, info: Later[ShardInfo], stored_as: Future[ShardRef]) -> None:
        acted.to_host()
        # The parts are views of the round's buffers.
        end = acted.end
        encoded = encode_shard(acted.buffers.columns, end.bootstrap_rows, end.bootstrap_observation, info())
        steps, envs = acted.buffers.columns.shape
        self._storage.add(
            self._storage.shard_ref(acted.round, acted.tile, encoded.digest, encoded.nbytes, steps * envs),
            encoded.parts,
            partial(save_tensors, acted.state, {"round": acted.round, "tile": acted.tile}),
            sum(array.nbytes for array in acted.state.values()),
            partial(self._free[acted.tile].append, acted.buffers),
            stored_as,
        )

    def _info_of(self, acted: ActedRound) -> ShardInfo:
        """Return the description of a round's shard."""
        context = self._context
        settings = context.config.environment
        steps, envs = acted.buffers.columns.shape
        ended = acted.end.episodes
        return ShardInfo(
            run_seed=context.config.seed,
            stage=self._stage,
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

    def _first_versions(self, acted: ActedRound) -> NDArray[np.int64]:
        """Return the versions that acted the first steps of the ended episodes."""
        if acted.first_versions is not None:
            return acted.first_versions
        # Every round has all steps of its tile.
        steps, envs = acted.buffers.columns.shape
        ended = acted.end.episodes
        rounds = (acted.round * steps + ended["row"] // envs + 1 - ended["length"]) // steps
        # Hundreds of episodes of an untrained policy began in a few rounds.
        began, index = np.unique(rounds, return_inverse=True)
        return np.array([self._context.acting_version(round_) for round_ in began.tolist()], dtype=np.int64)[index]
