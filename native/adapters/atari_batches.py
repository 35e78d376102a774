"""Atari games that are stepped asynchronously: batches come back as they are ready.

With `pool = native.make("ALE/Breakout-v5", 64, num_threads=4, batch_size=16)`:

    pool.async_reset(seed=0)
    while training:
        observation, reward, terminated, truncated, infos = pool.recv()        # 16 rows: whichever were done first
        pool.send(policy(observation), infos["env_id"])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from penstock.native.adapters.vector_env import WrappedPool
from penstock.native.pool.arguments import checked_seed, one_seed_each

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from penstock.native.adapters.vector_env import Stepped, WrappedSource
    from penstock.native.interface import Infos


class AtariBatches(WrappedPool):
    """Games that ale-py steps asynchronously. Made by `native.make` where it gets a `batch_size`.

    An environment's trajectory is the one that `step` gives with the same actions. `send` and `recv` take turns, since
    ale-py sends actions to the batch that it gave last.
    """

    def __init__(
        self,
        source: WrappedSource,
        batch_size: int,
        autoreset_mode: AutoresetMode,
        *,
        record_episode_statistics: bool = False,
    ) -> None:
        super().__init__(source, autoreset_mode, record_episode_statistics=record_episode_statistics)
        self.batch_size = batch_size
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._first: Stepped | None = None
        self._latest: NDArray[np.int32] | None = None
        self._is_new = True
        self._starts = np.zeros(self.num_envs, dtype=np.bool_)

    def async_reset(
        self, seed: int | Sequence[int | None] | None = None, env_ids: Sequence[int] | NDArray[Any] | None = None
    ) -> None:
        """Start episodes; `recv` gives their first observations, with reward 0.

        Steps that are under way are given up, and the games are then made again, which takes time.

        Args:
            seed: As in `reset`: the int `seed` gives environment i the seed `seed + i`; one that is None is drawn.
            env_ids: All environments, which is the same as None: ale-py can't start some of them.

        Raises:
            ValueError: A seed is not in [0, 2**64), their number is wrong, or `env_ids` are not all environments.
        """
        if env_ids is not None and not np.array_equal(np.asarray(env_ids), np.arange(self.num_envs)):
            raise ValueError(f"env_ids: ale-py starts all {self.num_envs} environments at once, so leave it out")
        given = one_seed_each(seed, self.num_envs)
        drawn = self.np_random.integers(0, 1 << 31, self.num_envs).tolist()
        seeds = [drawn[row] if value is None else checked_seed(value, row) for row, value in enumerate(given)]
        with self._alone():
            if not self._is_new:
                self._rebuild(self._mode)
            self._is_new, self._latest = False, None
            observation, infos = self.vector_env.reset(seed=seeds)  # type: ignore[arg-type]
            rows, no = len(observation), np.zeros(len(observation), dtype=np.bool_)
            self._first = observation, np.zeros(rows, dtype=np.int32), no, no.copy(), infos
            self._counts.begin(np.ones(self.num_envs, dtype=np.bool_), np.array([value is not None for value in given]))
            self._starts[:] = True

    def send(self, actions: Any, env_ids: Sequence[int] | NDArray[Any] | None = None) -> None:
        """Send actions to the environments of the latest `recv`; returns immediately.

        Args:
            actions: As in `step`, with a row for each of them.
            env_ids: The environment of each row; as `recv` gave them if it is None.

        Raises:
            ValueError: Actions are invalid, or `env_ids` are others than those of the latest `recv`. Nothing is sent.
            RuntimeError: Nothing was received since the latest `send`.
        """
        with self._alone():
            latest = self._latest
            if latest is None:
                raise RuntimeError("no environment waits for an action: recv() first")
            order = latest if env_ids is None else np.asarray(env_ids)
            if not np.array_equal(np.sort(order, axis=None), np.sort(latest)):
                raise ValueError(
                    f"env_ids: ale-py takes actions for all of the batch that it gave last, expected "
                    f"{np.sort(latest).tolist()}, got {order.tolist()}"
                )
            rows = np.asarray(actions)
            if rows.shape[:1] != latest.shape:
                raise ValueError(f"expected {self.batch_size} actions, got {rows.dtype} of {rows.shape}")
            every = np.zeros((self.num_envs, *rows.shape[1:]), dtype=rows.dtype)
            every[order] = rows
            self.vector_env.send(self._actions.for_step(every)[latest])  # type: ignore[attr-defined]
            self._latest = None

    def recv(self) -> tuple[NDArray[Any], NDArray[np.int32], NDArray[np.bool_], NDArray[np.bool_], Infos]:
        """Wait for the next `batch_size` environments.

        Returns:
            What `step` returns, with a row for each environment of the batch; `infos["env_id"]` (int32) says which it
            is. Where an episode was just reset, the observation is its first and the reward 0.

        Raises:
            RuntimeError: Nothing was reset yet, or the latest batch has no actions.
        """
        with self._alone():
            if self._is_new:
                raise RuntimeError("no environment is under way: async_reset() first")
            if self._latest is not None:
                raise RuntimeError("the latest batch has no actions yet: send() before the next recv()")
            result, self._first = self._first or self.vector_env.recv(), None  # type: ignore[attr-defined]
            self._latest = np.array(result[4]["env_id"])
            self._count(result)
            return result

    def _reset(self, seeds: Sequence[int | None], options: Mapping[str, Any] | None) -> NoReturn:  # noqa: ARG002
        self._be_ready()

    def _be_ready(self) -> NoReturn:
        raise RuntimeError(
            f"this pool was made with batch_size = {self.batch_size}, and ale-py then steps asynchronously alone: use "
            f"async_reset(), send() and recv(), or make the pool without batch_size"
        )

    def _count(self, result: Stepped) -> None:
        """Count a step of the environments of a batch, and report the episodes that ended."""
        _, reward, terminated, truncated, infos = result
        rows = self._latest
        received, over = np.zeros((2, self.num_envs), dtype=np.bool_)
        received[rows], over[rows] = True, np.logical_or(terminated, truncated)
        rewards = np.zeros(self.num_envs)
        rewards[rows] = reward
        if self._mode == AutoresetMode.NEXT_STEP:
            self._counts.end(self._over & received)
            self._starts |= self._over & received
        self._counts.add(rewards, received & ~self._starts)
        self._starts &= ~received
        if self.records_episode_statistics and over.any():
            statistics = self._counts.statistics(over)
            infos |= {"episode": {name: value[rows] for name, value in statistics.items()}, "_episode": over[rows]}
        if self._mode == AutoresetMode.SAME_STEP:
            self._counts.end(over)
        self._over = np.where(received, over, self._over)
