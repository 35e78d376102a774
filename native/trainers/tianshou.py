"""A pool behind Tianshou's BaseVectorEnv interface, for its collectors and trainers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import AutoresetMode

from penstock import native
from penstock.native.trainers.attributes import get_attribute, set_attribute
from penstock.native.trainers.common import missing, step_rows
from penstock.native.trainers.infos import split_infos

_INSTALL = "pip install --no-deps tianshou, and the modules that it then misses: docs/trainers.md says why"

try:
    from tianshou.env import BaseVectorEnv
except ModuleNotFoundError as error:
    raise missing("Tianshou", error, _INSTALL) from error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from penstock.native.interface import Infos


def make(id: str, num_envs: int, num_threads: int = 1, **options: Any) -> PoolVectorEnv:  # noqa: A002
    """`native.make` in the mode that Tianshou needs, as a `BaseVectorEnv`.

    Args:
        id: As in `native.make`.
        num_envs: As in `native.make`.
        num_threads: As in `native.make`.
        options: Whatever else `native.make` takes, but `autoreset_mode`.
    """
    return PoolVectorEnv(native.make(id, num_envs, num_threads, autoreset_mode="Disabled", **options))


class PoolVectorEnv(BaseVectorEnv):
    """A pool behind Tianshou's interface, equal to its DummyVectorEnv over the same environments.

    `reset` and `step` take the numbers of the environments that they are for; all others stay as they are. A step of
    all environments in order runs on the pool's threads, a step of some of them in the calling thread. Results have a
    row for each of the numbers, in their order; rewards are float64, infos an array of dictionaries with `env_id`.
    """

    # Everything that the base class does goes through its list of workers, one an environment; here there are none.
    def __init__(self, pool: native.EnvironmentPool) -> None:
        """Take over a pool; `close` closes it.

        Raises:
            ValueError: The pool resets by itself, or has several agents in one environment.
        """
        if pool.autoreset_mode != AutoresetMode.DISABLED:
            raise ValueError(
                f"the pool's autoreset_mode is {pool.autoreset_mode}, and Tianshou resets environments itself: make "
                "the pool with autoreset_mode='Disabled'"
            )
        if pool.environment["agents"]:
            raise ValueError(
                f"each environment of the pool has {pool.environment['agents']} agents with a reward each, and "
                "Tianshou's collectors take one reward an environment"
            )
        self.pool: Any = pool
        self.workers: list[Any] = []
        self.env_num = self.wait_num = pool.num_envs
        self.timeout = None
        self.is_async = False
        self.is_closed = False
        self.waiting_conn: list[Any] = []
        self.waiting_id: list[int] = []
        self.ready_id = list(range(pool.num_envs))

    def reset(
        self, env_id: int | Sequence[int] | NDArray[Any] | None = None, **kwargs: Any
    ) -> tuple[NDArray[Any], NDArray[np.object_]]:
        """Start an episode in these environments; `seed` goes to each of them as it is, as DummyVectorEnv does it."""
        self._assert_is_not_closed()
        rows = self._rows(env_id)
        mask = np.zeros(self.env_num, dtype=np.bool_)
        mask[rows] = True
        seed = kwargs.get("seed")
        observation, infos = self.pool.reset(
            seed=None if seed is None else [seed] * self.env_num,
            options={**(kwargs.get("options") or {}), "reset_mask": mask},
        )
        return observation[rows], _objects(split_infos(infos, self.env_num))[rows]

    def step(
        self,
        action: Any,
        id: int | Sequence[int] | NDArray[Any] | None = None,  # noqa: A002
    ) -> tuple[NDArray[Any], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], NDArray[np.object_]]:
        """Step these environments; those whose episode has ended need a reset first."""
        self._assert_is_not_closed()
        if action is None:
            raise ValueError("got no actions; this environment is not asynchronous, so there is nothing to wait for")
        rows = self._rows(id)
        if np.array_equal(rows, np.arange(self.env_num)):
            *arrays, infos = self.pool.step(action)
        else:
            *arrays, infos = step_rows(self.pool, action, rows)
        split = split_infos(infos, len(rows))
        for info, row in zip(split, rows.tolist(), strict=True):
            info["env_id"] = row
        observation, reward, terminated, truncated = arrays
        return observation, reward, terminated, truncated, _objects(split)

    def seed(self, seed: int | Sequence[int] | None = None) -> list[list[int | None]]:
        """Seed all environments, `seed + i` or one each, which starts an episode as it does in DummyVectorEnv."""
        self._assert_is_not_closed()
        seeds: list[int | None]
        if seed is None or isinstance(seed, (int, np.integer)):
            seeds = [None if seed is None else int(seed) + row for row in range(self.env_num)]
        else:
            seeds = list(seed)
        self.pool.reset(seed=seeds)
        return [[one] for one in seeds]

    def get_env_attr(self, key: str, id: int | Sequence[int] | NDArray[Any] | None = None) -> list[Any]:  # noqa: A002
        """Return one value for each of these environments, as `Pool.get_attr` finds it."""
        self._assert_is_not_closed()
        return get_attribute(self.pool, key, self._rows(id).tolist())

    def set_env_attr(
        self,
        key: str,
        value: Any,
        id: int | Sequence[int] | NDArray[Any] | None = None,  # noqa: A002
    ) -> None:
        """Give an attribute this value in these environments, as `Pool.set_attr` does."""
        self._assert_is_not_closed()
        set_attribute(self.pool, key, value, self._rows(id).tolist())

    def render(self, **_: Any) -> list[Any]:
        """Return one image an environment, if the pool draws any."""
        self._assert_is_not_closed()
        return list(self.pool.render() or [None] * self.env_num)

    def close(self) -> None:
        """Close the pool."""
        self._assert_is_not_closed()
        self.pool.close()
        self.is_closed = True

    def _rows(self, numbers: int | Sequence[int] | NDArray[Any] | None) -> NDArray[np.int32]:
        if numbers is None:
            return np.arange(self.env_num, dtype=np.int32)
        return np.atleast_1d(np.asarray(numbers, dtype=np.int32))


def _objects(rows: list[Infos]) -> NDArray[np.object_]:
    array = np.empty(len(rows), dtype=object)
    array[:] = rows
    return array
