"""Asynchronous stepping: environments are sent, and batches come back as they are ready.

    pool = native.make("CartPole-v1", 64, num_threads=4, batch_size=16)
    pool.async_reset(seed=0)
    while training:
        observation, reward, terminated, truncated, infos = pool.recv()        # 16 rows: whichever were done first
        pool.send(policy(observation), infos["env_id"])

With `deterministic=True` batches come in a fixed rotation instead, [0, 16), [16, 32), ..., each in order: a run is then
reproducible bit for bit whatever the number of threads. Each environment's own trajectory always is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.native.pool.arguments import checked_seed, one_seed_each
from penstock.native.pool.attributes import AttributesMixin

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from penstock.native import _core
    from penstock.native.interface import Infos
    from penstock.native.pool.infos import PoolInfos


class _Received:
    """The extras of the latest batch: reports, and statistics of ended episodes."""

    def __init__(self, core: _core.Pool) -> None:
        self._core = core

    @property
    def report(self) -> NDArray[np.float64]:
        return self._core.received_report

    def ended(
        self, rows: NDArray[np.int64], /
    ) -> tuple[NDArray[np.bool_], NDArray[np.float64], NDArray[np.int64], NDArray[Any], NDArray[np.float64]]:
        return self._core.received_ended(rows)


class Asynchronous(AttributesMixin):
    """The asynchronous API of `Pool`. While environments are under way, the other calls are refused."""

    batch_size: int
    """Number of environments per batch of `recv`."""
    _infos: PoolInfos

    def async_reset(
        self, seed: int | Sequence[int | None] | None = None, env_ids: Sequence[int] | NDArray[Any] | None = None
    ) -> None:
        """Start episodes; `recv` gives their first observations, with reward 0.

        Args:
            seed: As in `reset`: the int `seed` gives environment i the seed `seed + i`; a sequence has one for each of
                `env_ids`.
            env_ids: Which; all if it is None, and then all steps under way are given up.

        Raises:
            ValueError: A seed or a number of an environment is invalid, or one of them is under way.
        """
        environments = self._numbers(env_ids)
        rows = environments.tolist()
        each = (
            [int(seed) + index for index in rows]
            if isinstance(seed, (int, np.integer))
            else one_seed_each(seed, len(rows))
        )
        seeds = np.zeros(len(rows), dtype=np.uint64)
        given = np.zeros(len(rows), dtype=np.bool_)
        for row, (index, value) in enumerate(zip(rows, each, strict=True)):
            if value is not None or not self._seeded[index]:
                seeds[row] = self._drawn_seed(index) if value is None else checked_seed(value, index)
                given[row] = True
        self._core.async_reset(seeds, given, None if env_ids is None else environments)
        for row in np.flatnonzero(given).tolist():
            self._seeds[rows[row]] = int(seeds[row])
        self._seeded[environments] = True
        self._infos.starts(environments)

    def send(self, actions: Any, env_ids: Sequence[int] | NDArray[Any] | None = None) -> None:
        """Send actions to environments; returns immediately.

        Args:
            actions: As in `step`, with a row for each of `env_ids`. They are copied.
            env_ids: Which, none of them under way; those of the latest `recv` if it is None.

        Raises:
            ValueError: Actions or numbers are invalid, or an environment is under way. Nothing is sent then.
            RuntimeError: An environment is not ready: it failed, or its episode is over and nothing resets it.
        """
        self._core.send(actions, env_ids)

    def recv(
        self,
    ) -> tuple[NDArray[Any], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], Infos]:
        """Wait for the next `batch_size` environments, and help to step concurrently.

        Returns:
            What `step` returns, with a row for each environment of the batch; `infos["env_id"]` (int32) says which it
            is. Where an episode was just reset, the observation is its first and the reward 0.

        Raises:
            RuntimeError: An environment failed: the message has its number, and it needs `async_reset(env_ids=...)`;
                nothing else is lost. Or fewer environments are under way than a batch needs.
            KeyboardInterrupt: Nothing is lost: `recv` may be called again.
        """
        observation, reward, terminated, truncated, env_id, has_infos = self._core.recv()
        infos: Infos = {}
        if has_infos:
            ended = int(np.count_nonzero(terminated | truncated))
            infos = self._infos.after_step(_Received(self._core), terminated, truncated, ended, env_id)
        infos["env_id"] = env_id
        return observation, reward, terminated, truncated, infos

    def _numbers(self, env_ids: Sequence[int] | NDArray[Any] | None) -> NDArray[np.int32]:
        if env_ids is None:
            return np.arange(self.num_envs, dtype=np.int32)
        numbers = np.asarray(env_ids)
        if numbers.ndim != 1 or numbers.dtype.kind not in "iu" or not len(numbers):
            raise ValueError(f"env_ids: expected integers [rows], got {numbers.dtype} of {numbers.shape}")
        if numbers.min() < 0 or numbers.max() >= self.num_envs:
            raise ValueError(f"env_ids: expected 0 to {self.num_envs - 1}, got {numbers.min()} to {numbers.max()}")
        return numbers.astype(np.int32)
