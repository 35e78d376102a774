"""Atari: ale-py's own vector environment, made to keep Gymnasium's conventions for seeds, masks and final observations.

With `pool = native.make("ALE/Breakout-v5", 64, num_threads=4, batch_size=16)` batches come back as they are ready:

    pool.async_reset(seed=0)
    while training:
        observation, reward, terminated, truncated, infos = pool.recv()        # 16 rows: whichever were done first
        pool.send(policy(observation), infos["env_id"])

ale-py is licensed under GPL-2.0. It is an optional extra that is imported here, when an Atari pool is made, and nothing
of it is linked into or shipped with this package.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, NoReturn, cast

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space

from penstock.native.adapters.vector_env import WrappedPool, WrappedSource
from penstock.native.pool.arguments import (
    checked_seed,
    folded_seed,
    one_seed_each,
    refuse_unknown,
    similar_ids,
    where_to_look,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from penstock.native.adapters.vector_env import Stepped
    from penstock.native.interface import Infos

PREFIX = "ALE/"

_SEED_BITS = 31
_MADE_HERE = {"self", "game", "num_envs", "num_threads", "autoreset_mode", "batch_size"}


def atari_source(
    env_id: str,
    num_envs: int,
    num_threads: int,
    max_episode_steps: int | None,
    settings: Mapping[str, Any],
    *,
    batch_size: int | None = None,
) -> WrappedSource:
    """Return an Atari game as `ALE/Pong-v5`, with ale-py's settings by ale-py's names.

    With a `batch_size` it is stepped asynchronously, for `AtariBatches`. Settings not given are those of the id (v5
    repeats actions with probability 0.25) and else AtariVectorEnv's.

    Raises:
        ValueError: ale-py is not installed, or no such game, setting, value or autoreset mode.
    """
    vector_class = _vector_class(env_id)
    if env_id not in gymnasium.registry:
        near = similar_ids(env_id, atari_ids(), cutoff=0.4)
        raise ValueError(f"no Atari game is called {env_id!r}{where_to_look(near, PREFIX)}")
    offered = _offered(vector_class)
    refuse_unknown(env_id, sorted(set(settings) - set(offered)), offered)
    values = offered | gymnasium.spec(env_id).kwargs | {"batch_size": batch_size or num_envs}
    values |= {name: _like(name, value, offered[name]) for name, value in settings.items()}
    if values["frameskip"] < 1:
        raise ValueError(f"frameskip must be at least 1, got {values['frameskip']}")
    if max_episode_steps == -1:
        raise ValueError(f"{env_id}: ale-py can't disable the time limit, expected a number of steps of at least 1")
    if max_episode_steps is not None:
        if "max_num_frames_per_episode" in settings:
            raise ValueError("give max_episode_steps or max_num_frames_per_episode, not both: they set the same limit")
        values["max_num_frames_per_episode"] = max_episode_steps * values["frameskip"]

    def build(mode: AutoresetMode) -> VectorEnv[Any, Any, Any]:
        if mode == AutoresetMode.DISABLED:
            raise ValueError(f"{env_id}: ale-py resets by itself; autoreset_mode is NextStep or SameStep")
        try:
            made = vector_class(num_envs=num_envs, num_threads=num_threads, autoreset_mode=mode, **values)
        except (gymnasium.error.Error, TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"{env_id} cannot be made with {dict(settings)}: {error}") from error
        return AtariVector(made)

    limit = -(-values["max_num_frames_per_episode"] // values["frameskip"])
    return WrappedSource(env_id, build, limit, gymnasium.spec(env_id).reward_threshold)


def atari_ids() -> list[str]:
    """Return the ids of all games; ValueError if ale-py is not installed."""
    _vector_class(PREFIX)
    return [name for name in gymnasium.registry if name.startswith(PREFIX)]


def atari_types(env_id: str) -> dict[str, type | None]:
    """Return the names of ale-py's settings with the types of their values; ValueError if it is not installed."""
    return {name: type(default) for name, default in _offered(_vector_class(env_id)).items()}


class AtariVector(VectorWrapper[Any, Any, Any]):
    """AtariVectorEnv with seeds as `SyncVectorEnv` takes them and a mask for its final observations."""

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        super().__init__(env)
        self._same_step = env.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP

    def reset(  # type: ignore[override]
        self, *, seed: Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], Infos]:
        """Start episodes; `seed` is one, or None, an environment, masked out or not."""
        if seed is None:
            return self.env.reset(options=options)
        seeds = np.array([-1 if value is None else folded_seed(value, _SEED_BITS) for value in seed])
        mask = (options or {}).get("reset_mask")
        return self.env.reset(seed=seeds if mask is None else seeds[mask], options=options)  # type: ignore[arg-type]

    def step(self, actions: Any) -> Stepped:
        """Step; in same-step mode `_final_obs` is the mask of the environments whose episode ended."""
        return self._with_mask(self.env.step(actions))

    def send(self, actions: Any) -> None:
        """Send actions to the environments of the latest batch."""
        self.env.send(actions)  # type: ignore[attr-defined]

    def recv(self) -> Stepped:
        """Wait for the next batch; its infos are those of `step`, and `env_id`."""
        return self._with_mask(self.env.recv())  # type: ignore[attr-defined]

    def _with_mask(self, result: Stepped) -> Stepped:
        infos = result[4]
        if self._same_step and "final_obs" in infos:
            infos["_final_obs"] = np.logical_or(result[2], result[3])
        return result


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


def _vector_class(env_id: str) -> Callable[..., VectorEnv[Any, Any, Any]]:
    try:
        from ale_py.vector_env import AtariVectorEnv  # noqa: PLC0415
    except ImportError as error:
        raise ValueError(
            f"{env_id} needs ale-py (GPL-2.0; it brings the games along), and importing it failed: {error}. Install it "
            f"with: pip install 'penstock-rl[atari]'"
        ) from error
    return cast("Callable[..., VectorEnv[Any, Any, Any]]", AtariVectorEnv)


def _offered(vector_class: Callable[..., VectorEnv[Any, Any, Any]]) -> dict[str, Any]:
    fields = inspect.signature(vector_class).parameters
    return {name: field.default for name, field in fields.items() if name not in _MADE_HERE}


def _like(name: str, value: Any, default: Any) -> Any:
    """Convert `value` to ale-py's type: settings from a configuration file have floats for integers."""
    is_number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if isinstance(default, bool):
        right = isinstance(value, (bool, np.bool_))
    elif isinstance(default, int):
        right = is_number and float(value).is_integer()
    else:
        right = is_number
    if not right:
        raise ValueError(f"{name} must be {type(default).__name__}, got {value!r}")
    return type(default)(value)
