"""A pool over a vector environment of somebody else's: Gymnasium's vectorisers, ale-py's Atari, an id's own.

The Gymnasium face hands on what the vector environment takes and gives. Rounds need it to reset in the same step; where
it was made for another mode it is made again in that mode, which only a reset by ids allows, as that loses nothing.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from gymnasium.vector import AutoresetMode

from native.faces import EnvironmentPool, EnvironmentSpec, RoundEnd, StateNotSupportedError
from native.repeated import ActionRecord, repeat
from native.resets import checked_seed, one_seed_each
from native.wrapped_actions import WrappedActions
from native.wrapped_round import EpisodeCounts, OpenRound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from gymnasium.vector import VectorEnv
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class WrappedSource:
    """How the vector environment is made, and what it does not say of itself."""

    id: str
    build: Callable[[AutoresetMode], VectorEnv[Any, Any, Any]]
    """Makes it; raises ValueError where the mode is one that it does not have."""
    max_episode_steps: int | None
    reward_threshold: float | None


class WrappedPool(EnvironmentPool):
    """Environments that another library steps. Made by `native.make`.

    `vector_env` is the library's object, for what only it has (`call`, `get_attr`). The array of observations that
    `step` and `reset` return is not copied: a round that begins next starts from it, so do not write into it before.
    """

    repeats_state = True

    def __init__(
        self,
        source: WrappedSource,
        autoreset_mode: AutoresetMode,
        *,
        record_episode_statistics: bool = False,
    ) -> None:
        self._source = source
        self.autoreset_mode = autoreset_mode
        self.records_episode_statistics = record_episode_statistics
        self.vector_env = source.build(autoreset_mode)
        self._mode = autoreset_mode
        inner = self.vector_env
        self.num_envs = inner.num_envs
        self.metadata = dict(inner.metadata) | {"autoreset_mode": autoreset_mode}
        self.render_mode = inner.render_mode
        self.spec = inner.spec
        self.single_observation_space = inner.single_observation_space
        self.single_action_space = inner.single_action_space
        self.observation_space = inner.observation_space
        self.action_space = inner.action_space
        self._actions = WrappedActions(inner.single_action_space, self.num_envs)
        self._counts = EpisodeCounts(self.num_envs)
        self._over = np.zeros(self.num_envs, dtype=np.bool_)
        self._current: Any = None
        self._seeds: list[int] | None = None
        self._record: ActionRecord | None = None
        self._round: OpenRound | None = None
        self._busy = threading.Lock()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._source.id}, num_envs={self.num_envs})"

    @property
    def environment(self) -> EnvironmentSpec:
        """What one environment takes and gives, as plain data.

        Raises:
            ValueError: Its spaces are none that a round's buffers can hold; `reset` and `step` take any.
        """
        space = self.single_observation_space
        if not isinstance(space, (Box, Discrete, MultiBinary, MultiDiscrete)):
            raise ValueError(self._unfit("observation", space, "one array of numbers, such as Box"))  # noqa: TRY004
        if self._actions.spec is None:
            raise ValueError(self._unfit("action", self.single_action_space, "Discrete or a Box of floats"))
        return EnvironmentSpec(
            id=self._source.id,
            observation={"dtype": str(space.dtype), "shape": tuple(space.shape or ())},
            action=self._actions.spec,
            agents=0,
            max_episode_steps=self._source.max_episode_steps,
            reward_threshold=self._source.reward_threshold,
        )

    # The Gymnasium face

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start episodes, as the vector environment does.

        Args:
            seed: An int gives environment i the seed `seed + i`; a sequence gives one seed, or None, an environment.
            options: As Gymnasium's: `reset_mask` resets those alone, the rest goes to the environments.

        Raises:
            ValueError: A seed is not in [0, 2**64), or their number is wrong.
        """
        given = one_seed_each(seed, self.num_envs)
        seeds = [None if value is None else checked_seed(value, index) for index, value in enumerate(given)]
        with self._alone():
            if "reset_mask" in (options or {}):
                self._be_in(self.autoreset_mode)
            elif self._mode != self.autoreset_mode:
                self._rebuild(self.autoreset_mode)
            return self._reset(seeds, options)

    def step(self, actions: Any) -> tuple[Any, NDArray[Any], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Step every environment; what comes back is what the vector environment gives, uncopied.

        Raises:
            ValueError: Type, shape or value of an action; nothing was stepped.
            RuntimeError: An environment failed, or nothing was reset yet.
        """
        converted = self._actions.of_step(actions)
        with self._alone():
            self._be_ready()
            if self._round is not None:
                raise RuntimeError("a round is open: end_round() or reset before step()")
            self._be_in(self.autoreset_mode)
            self._record = None
            observation, reward, terminated, truncated, infos = self._advance(converted)
            over = np.logical_or(terminated, truncated)
            if self._mode == AutoresetMode.NEXT_STEP:
                self._counts.end(self._over)
                self._counts.add(reward, ~self._over)
            else:
                self._counts.add(reward)
            if self.records_episode_statistics and over.any():
                infos |= {"episode": self._counts.statistics(over), "_episode": over.copy()}
            if self._mode == AutoresetMode.SAME_STEP:
                self._counts.end(over)
            self._over = over
            return observation, reward, terminated, truncated, infos

    def render(self) -> Any:
        """As the vector environment renders."""
        return self.vector_env.render()

    def close_extras(self, **kwargs: Any) -> None:
        """Close the vector environment; every later call says that the pool is closed."""
        self._current = None
        self.vector_env.close(**kwargs)

    # The rollout face

    def reset_ids(self, seeds: NDArray[np.uint64]) -> None:
        """Seed environment b with `seeds[b]`, as `reset(seed=seeds)` does; its first episode has the id 0.

        Raises:
            ValueError: Not uint64 [num_envs].
        """
        if seeds.dtype != np.uint64 or seeds.shape != (self.num_envs,):
            raise ValueError(f"seeds: expected uint64 of shape ({self.num_envs},), got {seeds.dtype} {seeds.shape}")
        with self._alone():
            self._seeds = None
            self._reset(seeds.tolist(), None)
            self._seeds, self._record = seeds.tolist(), ActionRecord(seeds)

    @property
    def observation(self) -> NDArray[Any]:
        """What every environment shows now, [num_envs, *observation]; a copy."""
        self._be_ready()
        return np.array(self._current)

    def begin_round(
        self,
        observation: NDArray[Any],
        reward: NDArray[np.float32],
        terminated: NDArray[np.uint8],
        truncated: NDArray[np.uint8],
        episode_id: NDArray[np.int32],
    ) -> None:
        """Take the buffers of a round, all [T, num_envs] and `observation` [T, num_envs, *observation].

        They are written in place until `end_round`, and the current observations now, into row 0. A reset gives the
        round up.

        Raises:
            ValueError: A buffer has another dtype or shape, is read-only or not C-contiguous; or the environment's
                spaces are none that buffers can hold.
            RuntimeError: The environments were stepped or reset in another autoreset mode.
        """
        spec = self.environment
        with self._alone():
            self._be_ready()
            self._be_in(AutoresetMode.SAME_STEP)
            buffers = {"observation": observation, "reward": reward, "terminated": terminated, "truncated": truncated}
            current = np.asarray(self._current, dtype=spec["observation"]["dtype"])
            self._round = OpenRound(buffers | {"episode_id": episode_id}, current)

    def step_round(self, t: int, action: NDArray[Any]) -> None:
        """Make step t of the round: int64 [num_envs] that counts from 0, or float32 [num_envs, *action].

        Writes row t of reward, terminated, truncated and episode_id, and row t + 1 of the observations. Nothing is
        stepped unless t is next and all actions are valid.

        Raises:
            ValueError: Another t is next, or type, shape or value of an action.
            RuntimeError: An environment failed, which gives the round up.
        """
        with self._alone():
            rows = self._open_round()
            rows.check_turn(t)
            observation, reward, terminated, truncated, infos = self._advance(self._actions.of_round(action))
            if self._record is not None:
                self._record.add(action)
            self._counts.add(reward)
            rows.write(observation, reward, terminated, truncated, infos, self._counts)
            self._over = np.logical_or(terminated, truncated)
            self._counts.end(self._over)

    def end_round(self) -> RoundEnd:
        """Let the buffers go and say what lies beside them. All T steps must have been made."""
        with self._alone():
            end = self._open_round().end()
            self._round = None
            return end

    def save(self) -> dict[str, NDArray[Any]]:
        """The seeds of `reset_ids` and every action since: these libraries have no state that could be asked for.

        Raises:
            StateNotSupportedError: The environments were stepped or reset by the Gymnasium face since, or not at all
                by this one.
            RuntimeError: A round is open.
        """
        with self._alone():
            self._be_ready()
            if self._round is not None:
                raise RuntimeError("a round is open: end_round() before save()")
            if self._record is None:
                raise StateNotSupportedError(
                    f"the state of {self._source.id} cannot be saved: the library that steps it offers no way to read "
                    f"it, so what is saved is the seeds of reset_ids() and the actions of the rounds since, and here "
                    f"reset() or step() came last; start from reset_ids() and act in rounds"
                )
            return self._record.state(np.asarray(self._current))

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from a saved state: all of its steps are made again.

        Raises:
            StateNotSupportedError: It is none of such a pool, or the environments are not deterministic.
        """
        repeat(self, self._source.id, state)

    def _unfit(self, kind: str, space: Any, wanted: str) -> str:
        return (
            f"{self._source.id} has the {kind} space {space}, and a round holds {wanted}; use reset() and step(), or "
            f"wrap the environment: make(..., wrappers=[gymnasium.wrappers.FlattenObservation])"
        )

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._busy.acquire(blocking=False):
            raise RuntimeError("this pool is being used by another thread: a pool is for one thread at a time")
        try:
            if self.closed:
                raise RuntimeError("this pool is closed: make a new one")
            yield
        finally:
            self._busy.release()

    def _be_ready(self) -> None:
        if self.closed:
            raise RuntimeError("this pool is closed: make a new one")
        if self._current is None:
            raise RuntimeError("not every environment is ready: reset() or reset_ids() first")

    def _open_round(self) -> OpenRound:
        if self._round is None:
            raise RuntimeError("no round is open: call begin_round() first")
        return self._round

    def _be_in(self, mode: AutoresetMode) -> None:
        """Have the environments reset as `mode` says. After reset_ids nothing is lost by making them again."""
        if self._mode == mode:
            return
        if self._seeds is None:
            raise RuntimeError(
                f"these environments are on their way in autoreset mode {self._mode.value}, and this call needs "
                f"{mode.value}: reset_ids() first, or make the pool with autoreset_mode={mode.value!r}"
            )
        seeds, record = self._seeds, self._record
        self._rebuild(mode)
        self._reset(seeds, None)
        self._record = record

    def _rebuild(self, mode: AutoresetMode) -> None:
        self._current, self._seeds = None, None
        self.vector_env.close()
        self.vector_env = self._source.build(mode)
        self._mode = mode

    def _reset(self, seeds: Sequence[int | None], options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        """Reset; `options` stay the caller's, as Gymnasium's vectorisers take the mask out of theirs."""
        self._round, self._seeds, self._record = None, None, None
        mask = (options or {}).get("reset_mask")
        chosen = np.ones(self.num_envs, dtype=np.bool_) if mask is None else mask
        self._current, infos = self.vector_env.reset(
            seed=list(seeds),  # type: ignore[arg-type]
            options=None if options is None else dict(options),
        )
        self._counts.begin(chosen, np.array([seed is not None for seed in seeds]))
        self._over = self._over & ~chosen
        return self._current, infos

    def _advance(self, actions: Any) -> tuple[Any, NDArray[Any], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        self._seeds = None
        try:
            result = self.vector_env.step(actions)
        except Exception as error:
            self._current, self._round, self._record = None, None, None
            raise RuntimeError(
                f"{self._source.id}: an environment failed in step(): {type(error).__name__}: {error}; reset first, or "
                f"make a new pool"
            ) from error
        self._current = result[0]
        return result
