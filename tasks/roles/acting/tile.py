"""A tile: a fixed group of environments that is acted as one batch, in any process."""

from __future__ import annotations

import select
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import torch

from penstock.native import fill_noise
from penstock.storage.errors import DivergedError
from penstock.storage.shards.codec import ShardColumns, allocate
from penstock.tasks.data.snapshots.opponents import make_acting_pool
from penstock.tasks.roles.stepping.remote_pool import RemotePool
from penstock.tasks.seeds import Purpose, environment_seeds
from penstock.tasks.specs import Trajectory

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from penstock.native import EnvironmentPool, RoundEnd
    from penstock.tasks.environments.self_play import SelfPlayPool
    from penstock.tasks.environments.torch.device_work import Departure
    from penstock.tasks.runtime.run_context import RunContext
    from penstock.tasks.specs import Params


T = TypeVar("T")

FIRST_VERSION = "first_policy_version"
"""Name of the column of versions in a tile's state."""
_NEXT = -1


class EpisodeStartVersions:
    """Tracks the policy version at the start of each environment's current episode, for tiles that may skip rounds.

    Attributes:
        versions: int64 `[B]`; -1 for an episode that begins with the next round. Never written in place.
    """

    def __init__(self, envs: int) -> None:
        self.versions: NDArray[np.int64] = np.full(envs, _NEXT, dtype=np.int64)

    def end_round(self, version: int, ended: Mapping[str, NDArray[Any]], steps: int) -> NDArray[np.int64]:
        """Update for a round.

        Args:
            version: that acted.
            ended: `row` and `env` of the episodes that ended in it, in order of rows (`native.RoundEnd.episodes`).
            steps: of an environment in the round.

        Returns:
            int64, one per ended episode: the version at its start.
        """
        envs = len(self.versions)
        versions = np.where(self.versions == _NEXT, version, self.versions)
        first = np.empty(len(ended["row"]), dtype=np.int64)
        for index, (row, env) in enumerate(zip(ended["row"].tolist(), ended["env"].tolist(), strict=True)):
            first[index] = versions[env]
            versions[env] = version if row // envs + 1 < steps else _NEXT
        self.versions = versions
        return first


_NOT_OF_THE_POOL = ("carry", FIRST_VERSION)
"""Entries of a tile's state that the pool did not save."""


class RoundBuffers:
    """The columns of one round, and the views into them that every step needs; allocated once and reused."""

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


class Later(Generic[T]):
    """A value that is computed when it is first asked for, by that thread; others wait for it."""

    def __init__(self, compute: Callable[[], T]) -> None:
        self._compute: Callable[[], T] | None = compute
        self._lock = threading.Lock()
        self._values: list[T] = []

    def __call__(self) -> T:
        """Return the value."""
        with self._lock:
            if self._compute is not None:
                self._values.append(self._compute())
                self._compute = None  # what it refers to may be large
            return self._values[0]


@dataclass(frozen=True, slots=True)
class ActedRound:
    """A round of one tile, for the writer. The buffers are borrowed."""

    tile: int
    round: int
    version: int
    buffers: RoundBuffers
    facts: Callable[[], tuple[RoundEnd, dict[str, NDArray[Any]]]]
    """Returns `end` and `state`, always the same objects. Any thread may call it; on a device it waits for that."""
    follows_round: int | None = None
    """As `penstock.storage.shards.codec.ShardInfo`."""
    first_versions: NDArray[np.int64] | None = None
    """Policy versions at the start of the ended episodes; None if no round is skipped, so that lengths show it."""
    on_device: Trajectory | None = None
    """The rows on the environments' device, which `to_host` copies; None for native ones, which fill the buffers."""
    departure: Departure | None = None
    """Lets another thread copy them; None for native ones."""

    @property
    def end(self) -> RoundEnd:
        """Return the facts that are not in the buffers."""
        return self.facts()[0]

    @property
    def state(self) -> dict[str, NDArray[Any]]:
        """Return the state of the environments, and of what acts in them, after the round."""
        return self.facts()[1]

    def to_host(self) -> None:
        """Fill the buffers, if the environments have not. Waits for the device."""
        if self.on_device is not None and self.departure is not None:
            with self.departure.copying():
                for name, column in self.on_device.columns.items():
                    torch.from_numpy(self.buffers.arrays[name]).copy_(column)

    @property
    def played(self) -> Trajectory:
        """Return the rows where they were made. On a device, columns that no learner uses are missing."""
        if self.on_device is not None:
            return self.on_device
        columns = {name: torch.from_numpy(array) for name, array in self.buffers.arrays.items()}
        end = self.end
        rows, after = torch.from_numpy(end.bootstrap_rows), torch.from_numpy(end.bootstrap_observation)
        return Trajectory(columns, rows, after, self.tile * self.buffers.columns.shape[1])


class TileActor:
    """Owns a tile's environments. Not thread-safe."""

    def __init__(
        self, context: RunContext, tile: int, pool: EnvironmentPool | RemotePool | SelfPlayPool | None = None
    ) -> None:
        """Act in `pool`, or in a new native one in this process."""
        self._context = context
        self._env_ids = context.envs_of(tile)
        self._noise_ids = np.asarray(self._env_ids, dtype=np.int64)
        self._pool = make_acting_pool(context, tile, None) if pool is None else pool
        self.remote = pool if isinstance(pool, RemotePool) else None
        self._carry = context.algorithm.initial_carry(len(self._env_ids))
        self.tile = tile
        self.next_round = 0
        self._last_round = -1
        self._start_versions = None if context.config.requires_full_round else EpisodeStartVersions(len(self._env_ids))
        self.round_steps = context.config.schedule.round_steps * len(self._env_ids)

    def start(self) -> None:
        """Start the first episodes of the run."""
        self._pool.reset_ids(environment_seeds(self._context.config.seed, Purpose.ENVIRONMENT, env_ids=self._env_ids))

    def restart(self, next_round: int, last_round: int | None = None) -> None:
        """Start new episodes in a later stage, if environments can't save their state; see `resets_each_stage`."""
        seed = self._context.config.seed
        self._pool.reset_ids(environment_seeds(seed, Purpose.RESTART, next_round, env_ids=self._env_ids))
        self._resume_at(next_round, last_round)

    def restore(self, state: Mapping[str, NDArray[Any]], next_round: int, last_round: int | None = None) -> None:
        """Resume from a state that was stored after `last_round`, by default the one before `next_round`."""
        self._pool.restore({name: value for name, value in state.items() if name not in _NOT_OF_THE_POOL})
        if self._carry is not None:
            self._carry = torch.from_numpy(np.array(state["carry"]))
        if self._start_versions is not None:
            self._start_versions.versions = np.array(state[FIRST_VERSION])
        self._resume_at(next_round, last_round)

    def _resume_at(self, next_round: int, last_round: int | None) -> None:
        self.next_round = next_round
        self._last_round = next_round - 1 if last_round is None else last_round

    def close(self) -> None:
        """Close the environments."""
        self._pool.close()

    def act_round(self, version: int, params: Params, buffers: RoundBuffers) -> ActedRound:
        """Fill `buffers` with the next round, acted with parameters of `version`."""
        acted: list[ActedRound] = []
        act_together([self], version, params, lambda _: buffers, acted.append)
        acted[0].to_host()
        return acted[0]

    def acting(self, version: int, params: Params, buffers: RoundBuffers) -> Generator[None, None, ActedRound]:
        """Act the next round; yields while another process steps the environments."""
        pool, arrays, noise = self._pool, buffers.arrays, self._context.algorithm.noise
        fill_noise(
            noise.kind, self._context.config.seed, Purpose.ACTION, self._noise_ids, self.next_round, buffers.noise
        )
        arrays["policy_version"].fill(version)
        pool.begin_round(
            arrays["observation"], arrays["reward"], arrays["terminated"], arrays["truncated"], arrays["episode_id"]
        )
        yield from self._play(params, buffers)
        acted = self._acted(version, buffers)
        if self._start_versions is not None:
            first_versions = self._start_versions.end_round(version, acted.end.episodes, len(arrays["reward"]))
            acted.state[FIRST_VERSION] = self._start_versions.versions
            acted = replace(acted, follows_round=self._last_round, first_versions=first_versions)
        self._last_round = self.next_round
        self.next_round += 1
        return acted

    def _play(self, params: Params, buffers: RoundBuffers) -> Generator[None, None, None]:
        """Make all steps of the round that the pool has begun."""
        pool, algorithm, arrays, carry = self._pool, self._context.algorithm, buffers.arrays, self._carry
        for step, (observation, noise_row, action) in enumerate(
            zip(buffers.observation_rows, buffers.noise_rows, buffers.action_rows, strict=True)
        ):
            rows, carry = algorithm.act(params, carry, observation, noise_row)
            for name, column in buffers.row_columns:
                column[step].copy_(rows[name])
            try:
                pool.step_round(step, action)
            except ValueError as error:
                self._refuse_diverged(action, error)
                raise
            if self.remote is not None:
                yield
                self.remote.receive_step()
            if carry is not None:
                carry = self._fresh_where_ended(carry, arrays["terminated"][step] | arrays["truncated"][step])
        self._carry = carry

    def _refuse_diverged(self, action: object, error: Exception) -> None:
        """Raise a DivergedError if the policy's own numbers are what the environments refuse."""
        if not np.isfinite(np.asarray(action)).all():
            stage = self.next_round // self._context.config.schedule.rounds_per_stage
            raise DivergedError.of(f"stage {stage} diverged in round {self.next_round}: {error}") from error

    def _acted(self, version: int, buffers: RoundBuffers) -> ActedRound:
        """End the round that was played."""
        end = self._pool.end_round()
        if self._context.resets_each_stage:
            # A seed restarts the count of episodes. No stage has more episodes than steps.
            schedule = self._context.config.schedule
            before = self.next_round // schedule.rounds_per_stage * schedule.rounds_per_stage * schedule.round_steps
            buffers.arrays["episode_id"] += np.int32(before)
            end.episodes["episode_id"] += before
        state = self._pool.save()
        if self._carry is not None:
            state["carry"] = self._carry.numpy()
        return ActedRound(self.tile, self.next_round, version, buffers, lambda: (end, state))

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
    """Act the next round of several tiles: inference of one overlaps with stepping another one in another process.

    Tiles whose native environments are in this process are acted one after another. Those on a device are all prepared
    first, and then acted one after another. Those that another process steps go on as their frames come: it may be
    sending a large one, and serve no other tile until that is read.

    Args:
        actors: of the tiles.
        version: of the parameters.
        params: that all act with.
        buffers_of: gives the buffers of a tile's round when it begins.
        done: gets each round as it ends, on the environments' device: `ActedRound.to_host` fills its buffers.
    """
    under_way = {actor.tile: (actor, _acting(actor, version, params, buffers_of)) for actor in actors}
    ready = list(under_way)
    while under_way:
        for tile in ready:
            try:
                next(under_way[tile][1])
            except StopIteration as ended:
                del under_way[tile]
                done(ended.value)
        ready = _readable([actor for actor, _ in under_way.values()])


def _readable(actors: Sequence[TileActor]) -> list[int]:
    """Return the tiles whose frame has begun to come, once there is one; all tiles if any is stepped here."""
    remote = [(actor.tile, actor.remote) for actor in actors if actor.remote is not None]
    if len(actors) < 2 or len(remote) < len(actors):
        return [actor.tile for actor in actors]
    links, poll = {pool.fileno(): tile for tile, pool in remote}, select.poll()
    for link in links:
        poll.register(link, select.POLLIN)
    found = poll.poll(int(1000 * remote[0][1].timeout_seconds))
    # Where nothing came in time, the first one's receiving says so.
    return sorted(links[link] for link, _ in found) or [actors[0].tile]


def _acting(
    actor: TileActor, version: int, params: Params, buffers_of: Callable[[TileActor], RoundBuffers]
) -> Generator[None, None, ActedRound]:
    return (yield from actor.acting(version, params, buffers_of(actor)))
