"""A tile: a fixed group of environments that is acted as one batch, whoever runs it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from native import fill_noise
from storage.shards import ShardColumns, allocate
from tasks.begun_with import FIRST_VERSION, BegunWith
from tasks.remote_pool import RemotePool
from tasks.streams import Purpose, environment_seeds

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from native import EnvironmentPool, RoundEnd
    from tasks.algorithm import Params
    from tasks.context import RunContext


_BESIDE_THE_POOL = ("carry", FIRST_VERSION)
"""What a tile's state has that the pool did not save."""


class RoundBuffers:
    """The columns of one round, and the views into them that every step needs; made once and used again."""

    def __init__(self, context: RunContext, tile: int) -> None:
        steps, envs = context.config.schedule.round_steps, context.config.environment.envs_per_tile
        self.arrays = allocate(context.columns, steps, envs)
        self.columns = ShardColumns(context.columns, self.arrays)
        self.arrays["env_id"][:] = np.asarray(context.envs_of(tile), dtype=np.int32)
        self.observation_rows = torch.from_numpy(self.arrays["observation"]).unbind(0)
        self.action_rows = list(self.arrays["action"])
        self.row_columns = [(name, torch.from_numpy(self.arrays[name]).unbind(0)) for name in context.algorithm.rows]
        noise = context.algorithm.noise
        self.noise = np.empty((steps, envs, *noise.shape), dtype=np.float32)
        self.noise_rows = torch.from_numpy(self.noise).unbind(0)


@dataclass(frozen=True, slots=True)
class ActedRound:
    """A round of one tile: what the writer stores. The buffers are lent to it."""

    tile: int
    round: int
    version: int
    buffers: RoundBuffers
    end: RoundEnd
    state: dict[str, NDArray[Any]]
    follows_round: int | None = None
    """As `storage.shards.ShardInfo`."""
    first_versions: NDArray[np.int64] | None = None
    """Of the episodes that ended, the versions with which they began; None where no round is left out, which tells."""


class TileActor:
    """Owns a tile's environments. Not thread-safe."""

    def __init__(self, context: RunContext, tile: int, pool: EnvironmentPool | RemotePool | None = None) -> None:
        """Act in `pool`, or in a native one of its own in this process."""
        self._context = context
        self._env_ids = context.envs_of(tile)
        self._noise_ids = np.asarray(self._env_ids, dtype=np.int64)
        self._pool = context.make_pool(len(self._env_ids)) if pool is None else pool
        self.remote = pool if isinstance(pool, RemotePool) else None
        self._carry = context.algorithm.initial_carry(len(self._env_ids))
        self.tile = tile
        self.next_round = 0
        self._last_round = -1
        self._begun_with = None if context.config.waits_for_all else BegunWith(len(self._env_ids))
        self.round_steps = context.config.schedule.round_steps * len(self._env_ids)

    def start(self) -> None:
        """First episodes of the run."""
        self._pool.reset_ids(environment_seeds(self._context.config.seed, Purpose.ENVIRONMENT, env_ids=self._env_ids))

    def restart(self, next_round: int, last_round: int | None = None) -> None:
        """First episodes of a later stage, where environments can't give their state (`RunContext.restarts`)."""
        seed = self._context.config.seed
        self._pool.reset_ids(environment_seeds(seed, Purpose.RESTART, next_round, env_ids=self._env_ids))
        self._go_on(next_round, last_round)

    def restore(self, state: Mapping[str, NDArray[Any]], next_round: int, last_round: int | None = None) -> None:
        """Go on from a state that was stored after `last_round`, by default the one before `next_round`."""
        self._pool.restore({name: value for name, value in state.items() if name not in _BESIDE_THE_POOL})
        if self._carry is not None:
            self._carry = torch.from_numpy(np.array(state["carry"]))
        if self._begun_with is not None:
            self._begun_with.versions = np.array(state[FIRST_VERSION])
        self._go_on(next_round, last_round)

    def _go_on(self, next_round: int, last_round: int | None) -> None:
        self.next_round = next_round
        self._last_round = next_round - 1 if last_round is None else last_round

    def close(self) -> None:
        """Let the environments go."""
        self._pool.close()

    def act_round(self, version: int, params: Params, buffers: RoundBuffers) -> ActedRound:
        """Fill `buffers` with the next round, acted with parameters of `version`."""
        acted: list[ActedRound] = []
        act_together([self], version, params, lambda _: buffers, acted.append)
        return acted[0]

    def acting(self, version: int, params: Params, buffers: RoundBuffers) -> Generator[None, None, ActedRound]:
        """The next round, with a pause wherever the environments are stepped by another process meanwhile."""
        pool, arrays, noise = self._pool, buffers.arrays, self._context.algorithm.noise
        fill_noise(
            noise.kind, self._context.config.seed, Purpose.ACTION, self._noise_ids, self.next_round, buffers.noise
        )
        arrays["policy_version"].fill(version)
        pool.begin_round(
            arrays["observation"], arrays["reward"], arrays["terminated"], arrays["truncated"], arrays["episode_id"]
        )
        yield from self._play(params, buffers)
        end = pool.end_round()
        if self._context.restarts:
            # A seed starts the count of episodes anew. No stage has more of them than steps.
            schedule = self._context.config.schedule
            before = self.next_round // schedule.rounds_per_stage * schedule.rounds_per_stage * schedule.round_steps
            arrays["episode_id"] += np.int32(before)
            end.episodes["episode_id"] += before
        state = pool.save()
        if self._carry is not None:
            state["carry"] = self._carry.numpy()
        acted = ActedRound(self.tile, self.next_round, version, buffers, end, state)
        if self._begun_with is not None:
            first_versions = self._begun_with.end_round(version, end.episodes, len(arrays["reward"]))
            state[FIRST_VERSION] = self._begun_with.versions
            acted = replace(acted, follows_round=self._last_round, first_versions=first_versions)
        self._last_round = self.next_round
        self.next_round += 1
        return acted

    def _play(self, params: Params, buffers: RoundBuffers) -> Generator[None, None, None]:
        """All steps of the round that the pool has begun."""
        pool, algorithm, arrays, carry = self._pool, self._context.algorithm, buffers.arrays, self._carry
        for step, (observation, noise_row, action) in enumerate(
            zip(buffers.observation_rows, buffers.noise_rows, buffers.action_rows, strict=True)
        ):
            rows, carry = algorithm.act(params, carry, observation, noise_row)
            for name, column in buffers.row_columns:
                column[step].copy_(rows[name])
            pool.step_round(step, action)
            if self.remote is not None:
                yield
                self.remote.receive_step()
            if carry is not None:
                carry = self._fresh_where_ended(carry, arrays["terminated"][step] | arrays["truncated"][step])
        self._carry = carry

    def _fresh_where_ended(self, carry: Tensor, ended: NDArray[np.uint8]) -> Tensor:
        mask = torch.from_numpy(ended).bool()
        if not mask.any():
            return carry
        fresh = self._context.algorithm.initial_carry(len(self._env_ids))
        if fresh is None:
            raise TypeError("initial_carry returned None, but act returned a carry; both must agree")
        return torch.where(mask.view(-1, *([1] * (carry.dim() - 1))), fresh, carry)


@torch.inference_mode()
def act_together(
    actors: Sequence[TileActor],
    version: int,
    params: Params,
    buffers_of: Callable[[TileActor], RoundBuffers],
    done: Callable[[ActedRound], None],
) -> None:
    """Act the next round of several tiles: while one's environments are stepped elsewhere, another is inferred.

    Tiles whose environments are in this process are acted one after the other.

    Args:
        actors: of the tiles.
        version: of the parameters.
        params: that all act with.
        buffers_of: gives the buffers of a tile's round when it begins.
        done: gets each round as it ends.
    """
    under_way = [_acting(actor, version, params, buffers_of) for actor in actors]
    while under_way:
        waiting = []
        for rounds in under_way:
            try:
                next(rounds)
            except StopIteration as ended:
                done(ended.value)
            else:
                waiting.append(rounds)
        under_way = waiting


def _acting(
    actor: TileActor, version: int, params: Params, buffers_of: Callable[[TileActor], RoundBuffers]
) -> Generator[None, None, ActedRound]:
    return (yield from actor.acting(version, params, buffers_of(actor)))
