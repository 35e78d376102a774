"""A pool as a batched TorchRL environment: TensorDicts in and out, with one row per environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode

from penstock import native
from penstock.native.pool.arguments import checked_seed
from penstock.native.trainers.common import missing, step_rows

try:
    import torch
    from tensordict import TensorDict
    from torchrl.data import Bounded, Categorical, Composite, Unbounded
    from torchrl.envs import EnvBase
except ModuleNotFoundError as error:
    raise missing("TorchRL", error) from error

if TYPE_CHECKING:
    from gymnasium.spaces import Space
    from tensordict import TensorDictBase
    from torchrl.data import TensorSpec


def make(id: str, num_envs: int, num_threads: int = 1, **options: Any) -> PoolEnv:  # noqa: A002
    """`native.make` in the mode that TorchRL needs, as an `EnvBase`.

    Args:
        id: As in `native.make`.
        num_envs: As in `native.make`.
        num_threads: As in `native.make`.
        options: Whatever else `native.make` takes, but `autoreset_mode`.
    """
    return PoolEnv(native.make(id, num_envs, num_threads, autoreset_mode="Disabled", **options))


class PoolEnv(EnvBase):
    """A pool behind TorchRL's interface, with batch size [num_envs], on the CPU.

    Entries are `observation` and `action` of the pool's types, and with a last dimension of 1 `reward` float32, and
    `done`, `terminated` and `truncated` bool. Observations and flags are the pool's own memory, and never overwritten.
    Collectors and `rollout(break_when_any_done=False)` reset those environments alone whose episode ended, and find the
    last observation under `next`.

    `set_seed(s)` gives environment i the seed s + i at the next reset, as Gymnasium does.
    """

    def __init__(self, pool: native.EnvironmentPool) -> None:
        """Take over a pool; `close` closes it.

        Raises:
            ValueError: The pool resets by itself, or its spaces have no counterpart here.
        """
        if pool.autoreset_mode != AutoresetMode.DISABLED:
            raise ValueError(
                f"the pool's autoreset_mode is {pool.autoreset_mode}, and TorchRL resets environments itself: make "
                "the pool with autoreset_mode='Disabled'"
            )
        if pool.environment["agents"]:
            raise ValueError(
                f"each environment of the pool has {pool.environment['agents']} agents with a reward each, and this "
                "adapter gives one reward an environment"
            )
        count = pool.num_envs
        super().__init__(device="cpu", batch_size=[count])
        self._pool = pool
        self._next_seed: int | None = None
        self.observation_spec = Composite(observation=_spec(pool.single_observation_space, count), shape=[count])
        self.action_spec = _spec(pool.single_action_space, count)
        self.reward_spec = Unbounded((count, 1), dtype=torch.float32)
        flag = Categorical(2, shape=(count, 1), dtype=torch.bool)
        self.done_spec = Composite(done=flag, terminated=flag.clone(), truncated=flag.clone(), shape=[count])

    @property
    def pool(self) -> native.EnvironmentPool:
        """Return the pool itself."""
        return self._pool

    def _reset(self, tensordict: TensorDictBase | None, **_: Any) -> TensorDict:
        chosen = None if tensordict is None else tensordict.get("_reset", None)
        if chosen is None or bool(chosen.all()):
            observation, _infos = self._pool.reset(seed=self._next_seed)
            self._next_seed = None
        else:
            observation, _infos = self._pool.reset(options={"reset_mask": chosen.reshape(self.batch_size).numpy()})
        going = torch.zeros((*self.batch_size, 1), dtype=torch.bool)
        return self._filled(observation, done=going, terminated=going.clone(), truncated=going.clone())

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        action, chosen = tensordict.get("action").numpy(), tensordict.get("_step", None)
        if chosen is None or bool(chosen.all()):
            return self._stepped(*self._pool.step(action)[:4])
        mask = chosen.reshape(self.batch_size)
        rows = np.flatnonzero(mask.numpy())
        # Where nothing is stepped everything stays as it is, and the reward, which is unused, is 0.
        kept = {name: tensordict.get(name).clone() for name in ("observation", "done", "terminated", "truncated")}
        result = TensorDict({**kept, "reward": torch.zeros((*self.batch_size, 1))}, batch_size=self.batch_size)
        result[mask] = self._stepped(*step_rows(self._pool, action[rows], rows)[:4])
        return result

    def _stepped(self, observation: Any, reward: Any, terminated: Any, truncated: Any) -> TensorDict:
        return self._filled(
            observation,
            reward=torch.from_numpy(reward.astype(np.float32)).unsqueeze(-1),
            done=torch.from_numpy(terminated | truncated).unsqueeze(-1),
            terminated=torch.from_numpy(terminated).unsqueeze(-1),
            truncated=torch.from_numpy(truncated).unsqueeze(-1),
        )

    def _filled(self, observation: Any, **rest: torch.Tensor) -> TensorDict:
        return TensorDict({"observation": torch.from_numpy(observation), **rest}, batch_size=[len(observation)])

    def _set_seed(self, seed: int | None) -> None:
        self._next_seed = None if seed is None else checked_seed(seed, 0)

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Close the pool."""
        super().close(raise_if_closed=raise_if_closed)
        self._pool.close()


def _spec(space: Space[Any], count: int) -> TensorSpec:
    """Return the spec of `count` environments with this space."""
    if isinstance(space, Discrete) and space.start == 0:
        return Categorical(int(space.n), shape=(count,), dtype=torch.int64)
    if isinstance(space, Box):
        shape = (count, *space.shape)
        low, high = (torch.from_numpy(bound.copy()) for bound in (space.low, space.high))
        if bool(np.isfinite(space.low).all() and np.isfinite(space.high).all()):
            return Bounded(low.expand(shape), high.expand(shape), shape, dtype=low.dtype)
        return Unbounded(shape, dtype=low.dtype)
    raise ValueError(f"TorchRL's counterpart of {space} is not known here; expected Box, or Discrete from 0")
