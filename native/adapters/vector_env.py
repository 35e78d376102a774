"""A pool over another library's vector environment: Gymnasium's vectorisers, ale-py's Atari, an id's own.

The Gymnasium API passes everything through. Rounds need a vector environment that resets in the same step; one of
another mode is created again in that mode, which only a reset by ids allows, as no state is lost then.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import batch_space

from penstock.native.adapters.action_replay import ActionRecord, repeat
from penstock.native.adapters.one_array import observation_format, unfit_leaf
from penstock.native.adapters.plain_actions import WrappedActions
from penstock.native.adapters.rollout import EpisodeCounts, OpenRound
from penstock.native.adapters.round_steps import DirectSteps, RoundStep, steps_of
from penstock.native.adapters.structured_actions import StructuredActions, UnsupportedActionError, is_structured
from penstock.native.interface import (
    EnvironmentPool,
    EnvironmentSpec,
    ResetRefusedError,
    RoundEnd,
    SeedsRefusedError,
    StateNotSupportedError,
)
from penstock.native.pool.arguments import checked_mask, checked_seed, one_seed_each

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gymnasium.spaces import Space
    from gymnasium.vector import VectorEnv
    from numpy.typing import NDArray

    from penstock.native.interface import Infos

    Stepped = tuple[Any, NDArray[Any], NDArray[np.bool_], NDArray[np.bool_], Infos]
    """A step's results by the Gymnasium API."""
    Step = TypeVar("Step", Stepped, RoundStep)

_REFUSALS = (gymnasium.error.Error, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class WrappedSource:
    """The constructor of a vector environment, and the facts that it does not report itself."""

    id: str
    build: Callable[[AutoresetMode], VectorEnv[Any, Any, Any]]
    """Makes it; raises ValueError where the mode is one that it does not have."""
    max_episode_steps: int | None
    reward_threshold: float | None
    several_agents: bool = False
    """True if the vector environment is a `native.teams.team_vector.TeamVector`."""
    outlives_seeds: bool = False
    """True if the environments may keep something that a seed does not reset: `reset_ids` then makes new ones."""


class _Turn:
    """A block in which a pool is used, by one thread; a generator for it would cost a step half as much again."""

    def __init__(self, pool: VectorEnv[Any, Any, Any]) -> None:
        self._pool, self._busy = pool, threading.Lock()

    def __enter__(self) -> None:
        if not self._busy.acquire(blocking=False):
            raise RuntimeError("this pool is being used by another thread: a pool is for one thread at a time")
        if self._pool.closed:
            self._busy.release()
            raise RuntimeError("this pool is closed: make a new one")

    def __exit__(self, *_: object) -> None:
        self._busy.release()


class WrappedPool(EnvironmentPool):
    """Environments that another library steps. Made by `native.make`.

    `vector_env` is the library's object, for what only it has (`call`, `get_attr`). The array of observations that
    `step` and `reset` return is not copied: a round that begins next starts from it, so do not write into it before.
    """

    restores_by_replay = True

    def __init__(
        self,
        source: WrappedSource,
        autoreset_mode: AutoresetMode,
        *,
        record_episode_statistics: bool = False,
        one_action: bool = False,
    ) -> None:
        self._source = source
        self.autoreset_mode = autoreset_mode
        self.records_episode_statistics = record_episode_statistics
        self.vector_env = source.build(autoreset_mode)
        self._steps = steps_of(self.vector_env)
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
        self._own_action_space = inner.own_action_space if source.several_agents else inner.single_action_space  # type: ignore[attr-defined]
        self._one_action = one_action
        self._agents = len(inner.agents) if source.several_agents else 0  # type: ignore[attr-defined]
        self._actions = (
            inner.actions if self._agents else self._take_actions(inner.single_action_space)  # type: ignore[attr-defined]
        )
        self._counts = EpisodeCounts(self.num_envs)
        self._over = np.zeros(self.num_envs, dtype=np.bool_)
        self._is_broken = False
        self._current: Any = None
        self._seeds: list[int] | None = None
        self._record: ActionRecord | None = None
        self._round: OpenRound | None = None
        self._turn = _Turn(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._source.id}, num_envs={self.num_envs})"

    @property
    def environment(self) -> EnvironmentSpec:
        """Return the action and observation format of one environment, as plain data.

        Raises:
            ValueError: Its spaces are none that a round's buffers can hold; `reset` and `step` take any.
        """
        space = self.single_observation_space
        if not isinstance(space, (Box, Discrete, MultiBinary, MultiDiscrete)):
            remedy = (
                "make(..., one_array=True) encodes it, unless Gymnasium brings its own vector environment"
                if space.is_np_flattenable
                else f"{unfit_leaf(space)}; a run needs an id whose entry point encodes it as a Box, with "
                f"gymnasium.wrappers.TransformObservation"
            )
            raise ValueError(self._unfit("observation", space, "one array of numbers, such as Box", remedy))  # noqa: TRY004
        if self._actions.spec is None:
            raise ValueError(
                self._unfit(
                    "action", self._own_action_space, "a choice, or one vector of numbers", self._action_remedy()
                )
            )
        return EnvironmentSpec(
            id=self._source.id,
            observation=observation_format(space),
            action=self._actions.spec,
            agents=self._agents,
            max_episode_steps=self._source.max_episode_steps,
            reward_threshold=self._source.reward_threshold,
        )

    @property
    def own_action_space(self) -> Space[Any]:
        """Return the action space that one environment itself has; with `one_action` the pool may take another."""
        return self._own_action_space

    # The Gymnasium API

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Any, Infos]:
        """Start episodes, as the vector environment does.

        Args:
            seed: An int gives environment i the seed `seed + i`; a sequence gives one seed, or None, an environment.
            options: As Gymnasium's: `reset_mask` resets those alone, the rest goes to the environments.

        Raises:
            ValueError: A seed is not in [0, 2**64), or their number is wrong.
        """
        given = one_seed_each(seed, self.num_envs)
        seeds = [None if value is None else checked_seed(value, index) for index, value in enumerate(given)]
        known = getattr(self.vector_env, "reset_options", None)
        if known is not None and (unknown := sorted(set(options or {}) - known)):
            raise ResetRefusedError(
                f"reset options {unknown}: these environments take none{' but ' if known else ''}{', '.join(known)}"
            )
        with self._alone():
            if "reset_mask" in (options or {}):
                self._be_in(self.autoreset_mode)
            elif self._mode != self.autoreset_mode:
                self._rebuild(self.autoreset_mode)
            return self._reset(seeds, options)

    def step(self, actions: Any) -> tuple[Any, NDArray[Any], NDArray[np.bool_], NDArray[np.bool_], Infos]:
        """Step every environment; returns the results of the vector environment, uncopied.

        Raises:
            ValueError: Type, shape or value of an action; nothing was stepped.
            RuntimeError: An environment failed, or nothing was reset yet.
        """
        converted = self._actions.for_step(actions)
        with self._alone():
            self._be_ready()
            if self._round is not None:
                raise RuntimeError("a round is open: end_round() or reset before step()")
            self._be_in(self.autoreset_mode)
            self._record = None
            observation, reward, terminated, truncated, infos = self._advance(lambda: self.vector_env.step(converted))
            over = np.logical_or(terminated, truncated)
            if self._mode == AutoresetMode.NEXT_STEP:
                self._counts.end(self._over)
                self._counts.add(self._of_team(reward), ~self._over)
            else:
                self._counts.add(self._of_team(reward))
            if self.records_episode_statistics and over.any():
                infos |= {"episode": self._counts.statistics(over), "_episode": over.copy()}
            if self._mode == AutoresetMode.SAME_STEP:
                self._counts.end(over)
            self._over = over
            return observation, reward, terminated, truncated, infos

    def render(self) -> Any:
        """Render as the vector environment does."""
        return self.vector_env.render()

    def close_extras(self, **kwargs: Any) -> None:
        """Close the vector environment; every later call raises that the pool is closed."""
        self._current = None
        self._close_vector_env(**kwargs)

    # The rollout API

    def reset_ids(self, seeds: NDArray[np.uint64]) -> None:
        """Seed environment b with `seeds[b]`, as `reset(seed=seeds)` does; its first episode has the id 0.

        A vector environment of an id's own may take one seed for all: then it is the first.

        Raises:
            ValueError: Not uint64 [num_envs].
        """
        if seeds.dtype != np.uint64 or seeds.shape != (self.num_envs,):
            raise ValueError(f"seeds: expected uint64 of shape ({self.num_envs},), got {seeds.dtype} {seeds.shape}")
        with self._alone():
            self._seeds = None
            if self._source.outlives_seeds and self._current is not None:
                self._rebuild(self._mode)
            try:
                self._reset(seeds.tolist(), None)
            except SeedsRefusedError:
                self._reset(range(int(seeds[0]), int(seeds[0]) + self.num_envs), None)
            self._seeds, self._record = seeds.tolist(), ActionRecord(seeds)

    @property
    def observation(self) -> NDArray[Any]:
        """Return a copy of the current observations, [num_envs, *observation]."""
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
            self._round = OpenRound(buffers | {"episode_id": episode_id}, current, self._counts, self._agents)

    def step_round(self, t: int, action: NDArray[Any]) -> None:
        """Make step t of the round: int64 [num_envs] that counts from 0, or float32 [num_envs, *action].

        With `one_action` a structured action is a float32 vector, as `adapters.structured_actions` describes it.

        Writes row t of reward, terminated, truncated and episode_id, and row t + 1 of the observations. Nothing is
        stepped unless t is next and all actions are valid.

        Raises:
            ValueError: Another t is next, or type, shape or value of an action.
            RuntimeError: An environment failed, which gives the round up.
        """
        with self._alone():
            rows = self._open_round()
            rows.check_turn(t)
            actions = self._actions.for_round(action)
            step = self._advance(lambda: self._steps(actions, rows.next_observation))
            if self._record is not None:
                self._record.add(action)
            self._counts.add(self._of_team(step.reward))
            rows.write(step, self._counts)
            self._over[:] = False
            if step.final:
                self._over[list(step.final)] = True
                self._counts.end(self._over)

    def end_round(self) -> RoundEnd:
        """Release the buffers and return the rest of the round's result. All T steps must have been made."""
        with self._alone():
            end = self._open_round().end()
            self._round = None
            return end

    def save(self) -> dict[str, NDArray[Any]]:
        """Return the seeds of `reset_ids` and every action since: these libraries have no state that could be read.

        Raises:
            StateNotSupportedError: The environments were stepped or reset by the Gymnasium API since, or not at all
                by this one.
            RuntimeError: A round is open.
        """
        with self._alone():
            self._be_ready()
            if self._round is not None:
                raise RuntimeError("a round is open: end_round() before save()")
            if self._record is None:
                raise StateNotSupportedError(
                    f"the state of {self._source.id} cannot be saved: the library that steps it gives no access to it, "
                    f"so only the seeds of reset_ids() and the actions of later rounds can be saved, but reset() or "
                    f"step() was called since; start from reset_ids() and act in rounds"
                )
            return self._record.state(np.asarray(self._current))

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Resume from a saved state by making all of its steps again.

        Raises:
            StateNotSupportedError: It is not a state of such a pool, or the environments are not deterministic.
        """
        repeat(self, self._source.id, state)

    @property
    def num_agents(self) -> int:
        """Return the number of agents with a reward each in an environment; 0 if it has one reward."""
        return self._agents

    def _take_actions(self, space: Space[Any]) -> WrappedActions | StructuredActions:
        """Return the actions of a space, and give the pool the spaces of those that stand for them."""
        if not self._one_action:
            return WrappedActions(space, self.num_envs)
        if isinstance(space, Discrete) and space.start:
            self.single_action_space = Discrete(int(space.n))
            self.action_space = batch_space(self.single_action_space, self.num_envs)
        if not is_structured(space):
            return WrappedActions(space, self.num_envs, from_zero=True)
        try:
            actions = StructuredActions(space, self.num_envs)
        except UnsupportedActionError:
            return WrappedActions(space, self.num_envs)
        self.single_action_space, self.action_space = actions.single_space, actions.space
        return actions

    def _of_team(self, reward: NDArray[Any]) -> NDArray[Any]:
        """Return the reward that an episode's return adds up: of several agents, their mean."""
        return reward.sum(1) / self._agents if self._agents else reward

    def _action_remedy(self) -> str:
        try:
            StructuredActions(self._own_action_space, 1)
        except UnsupportedActionError as error:
            return (
                f"{error}; a run needs an id whose entry point converts such actions, with "
                f"gymnasium.wrappers.TransformAction"
            )
        return "make(..., one_action=True) takes it as one vector"

    def _unfit(self, kind: str, space: Any, wanted: str, remedy: str) -> str:
        return f"{self._source.id} has the {kind} space {space}, and a round holds {wanted}: {remedy}"

    def _alone(self) -> _Turn:
        return self._turn

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
        """Switch the environments to this autoreset mode. After reset_ids nothing is lost by making them again."""
        if self._mode == mode:
            return
        if self._seeds is None:
            raise RuntimeError(
                f"these environments are running in autoreset mode {self._mode.value}, and this call needs "
                f"{mode.value}: reset_ids() first, or make the pool with autoreset_mode={mode.value!r}"
            )
        seeds, record = self._seeds, self._record
        self._rebuild(mode)
        self._reset(seeds, None)
        self._record = record

    def _rebuild(self, mode: AutoresetMode) -> None:
        self._end_environments()
        self._use(self._source.build(mode), mode)

    def _use(self, vector_env: VectorEnv[Any, Any, Any], mode: AutoresetMode) -> None:
        self.vector_env = vector_env
        self._steps = steps_of(vector_env)
        self._mode = mode
        self._is_broken = False

    def _end_environments(self) -> None:
        self._current, self._seeds = None, None
        self._close_vector_env()

    def _close_vector_env(self, **kwargs: Any) -> None:
        if not self._is_broken:
            self.vector_env.close(**kwargs)
            return
        with suppress(Exception):  # one that was interrupted would wait for answers that were taken
            self.vector_env.close(terminate=True)

    def _reset(self, seeds: Sequence[int | None], options: Mapping[str, Any] | None) -> tuple[Any, Infos]:
        """Reset; `options` stay the caller's, as Gymnasium's vectorisers take the mask out of theirs."""
        given = (options or {}).get("reset_mask")
        mask = None if given is None else checked_mask(given, self.num_envs)
        chosen = np.ones(self.num_envs, dtype=np.bool_) if mask is None else mask
        before = self._current
        if mask is not None and before is None and not np.all(mask):
            raise ResetRefusedError("reset_mask: expected a reset of all environments first")
        if self._is_broken:
            self._rebuild(self._mode)
        self._round, self._seeds, self._record = None, None, None
        self._current = None  # if one fails, those before it are in other episodes
        argument, kept = self._seed_argument(seeds), None if options is None else dict(options)
        try:
            self._current, infos = self.vector_env.reset(seed=argument, options=kept)  # type: ignore[arg-type]
        except BaseException as error:
            self._is_broken = isinstance(self.vector_env, AsyncVectorEnv)
            if isinstance(argument, list) and not self._takes_seeds and isinstance(error, _REFUSALS):
                raise SeedsRefusedError(
                    f"{self._source.id}: its own vector environment does not take a seed for each environment "
                    f"({error}); give one number, or choose vectorization_mode='sync' or 'async'"
                ) from error
            raise
        if mask is not None and before is not None and isinstance(self._steps, DirectSteps):
            self._current[~mask] = before[~mask]
        self._counts.begin(chosen, np.array([seed is not None for seed in seeds]))
        self._over = self._over & ~chosen
        return self._current, infos

    def _seed_argument(self, seeds: Sequence[int | None]) -> list[int | None] | int | None:
        """Return seeds as the vector environment takes them: one of an id's own may take the first one alone."""
        if self._takes_seeds:
            return list(seeds)
        if all(seed is None for seed in seeds):
            return None
        first = seeds[0]
        in_order = first is not None and list(seeds) == list(range(first, first + len(seeds)))
        return first if in_order else list(seeds)

    @property
    def _takes_seeds(self) -> bool:
        """Return whether the vector environment is known to take a seed for each environment."""
        kind = type(self.vector_env)
        return issubclass(kind, (SyncVectorEnv, AsyncVectorEnv)) or kind.__module__.startswith("penstock.")

    def _advance(self, step: Callable[[], Step]) -> Step:
        """Return what a step gives, which begins with the observations."""
        self._seeds = None
        try:
            result = step()
        except BaseException as error:
            self._current, self._round, self._record = None, None, None
            # A vectoriser's worker that failed has ended, and one that Ctrl-C interrupted owes an answer.
            self._is_broken = isinstance(self.vector_env, AsyncVectorEnv)
            if not isinstance(error, Exception):
                raise
            raise RuntimeError(
                f"{self._source.id}: an environment failed in step(): {type(error).__name__}: {error}; reset first, or "
                f"make a new pool"
            ) from error
        self._current = result[0]
        return result
