"""The pool: a Gymnasium vector environment, and the rollout API that fills a round's buffers in place.

Both APIs step the same environments. The rollout API resets them in the step in which their episode ends, the
Gymnasium API as its autoreset mode says. A pool is for one thread at a time and for the process that made it (its
threads do not survive a fork; with `num_threads=1` there are none).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from penstock.native import _core
from penstock.native.interface import EnvironmentSpec, ObservationFormat, RoundEnd
from penstock.native.pool import task_libraries
from penstock.native.pool.arguments import checked_seed, core_values, one_seed_each, reset_mask
from penstock.native.pool.asynchronous import Asynchronous
from penstock.native.pool.generators import start_bounds, start_options, starts_within
from penstock.native.pool.infos import PoolInfos
from penstock.native.pool.rendering import metadata_of
from penstock.native.pool.resources import shared_from
from penstock.native.pool.spaces import action_space_of, observation_space_of

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping, Sequence

    from numpy.typing import NDArray

    from penstock.native.interface import Infos
    from penstock.native.pool.resources import Resources


class Pool(Asynchronous):
    """Many environments of one kind. Made by `native.make`, which checks what it is given.

    Results do not depend on the number of threads. Every array that a method returns is the caller's own.
    """

    def __init__(
        self,
        environment_id: str,
        num_envs: int,
        num_threads: int,
        max_episode_steps: int | None,
        autoreset_mode: AutoresetMode,
        config: Mapping[str, NDArray[Any]],
        *,
        record_episode_statistics: bool = False,
        thread_affinity: bool = False,
        batch_size: int | None = None,
        deterministic: bool = False,
        resources: Resources | None = None,
    ) -> None:
        self.resources = resources or {}
        self._shared_from = shared_from(environment_id, self.resources)
        first = {name: float(values[0]) for name, values in config.items()}
        described = _core.describe(environment_id, first, self._shared_from)
        self.time_limit = (
            described["max_episode_steps"] if max_episode_steps is None else max(max_episode_steps, 0) or None
        )
        self._step_limit = described.get("step_limit")
        self.num_envs = num_envs
        self.num_threads = num_threads
        self.autoreset_mode = autoreset_mode
        self.metadata = {**metadata_of(described), "autoreset_mode": autoreset_mode}
        self.config: dict[str, NDArray[Any]] = dict(config)
        """Every field of the configuration, one value an environment."""
        self.single_observation_space = observation_space_of(described)
        self.single_action_space, action = action_space_of(described)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        observation = ObservationFormat(
            dtype=str(described["observation_dtype"]), shape=described["observation_low"].shape
        )
        if "behind_mask" in described:
            observation["behind_mask"] = described["behind_mask"]
        self._environment = EnvironmentSpec(
            id=environment_id,
            observation=observation,
            action=action,
            agents=described["agents"],
            max_episode_steps=None,
            reward_threshold=described["reward_threshold"],
        )
        if "facts" in described:
            self._environment["facts"] = described["facts"]
        self._infos = PoolInfos(
            num_envs, described["reports"], described["reset_reports"], autoreset_mode, record_episode_statistics
        )
        self.records_episode_statistics = record_episode_statistics
        self.batch_size = num_envs if batch_size is None else batch_size
        self._deterministic = deterministic
        self._thread_affinity = thread_affinity
        self._seeded = np.zeros(num_envs, dtype=np.bool_)
        self._seeds: list[int | None] = [None] * num_envs
        self.spec = self._make_spec()
        self._core = self._new_core()

    @property
    def environment(self) -> EnvironmentSpec:
        """Return the action and observation format of one environment, as plain data.

        `max_episode_steps` is the pool's limit or the environment's own, the smaller; of several, the longest.
        """
        own = None if self._step_limit is None else int(self.config[self._step_limit].max())
        limits = [limit for limit in (self.time_limit, own) if limit is not None]
        return {**self._environment, "max_episode_steps": min(limits, default=None)}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.environment['id']}, num_envs={self.num_envs})"

    # The Gymnasium API

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: MutableMapping[str, Any] | None = None
    ) -> tuple[NDArray[Any], Infos]:
        """Start episodes; equal to Gymnasium's SyncVectorEnv for the same seeds.

        Args:
            seed: An int gives environment i the seed `seed + i`; a sequence gives one seed an environment. Where it is
                None the environment's generator is kept, or is seeded by the operating system if it has none yet.
            options: `{"reset_mask": bool[num_envs]}` resets those alone, and is taken out of the dictionary, as
                Gymnasium does. Classic control takes Gymnasium's bounds of the first state too: `low` and `high`,
                Pendulum `x_init` and `y_init`. There are no other options.

        Raises:
            ValueError: A seed is not in [0, 2**64), their number is wrong, an option is not known, or the mask has
                another shape or is all False.
            TypeError: The mask is not a NumPy array of bool.
        """
        each = one_seed_each(seed, self.num_envs)
        bounds = start_bounds(self.environment["id"], options)
        mask = reset_mask(options, self.num_envs, start_options(self.environment["id"]))
        seeds = np.zeros(self.num_envs, dtype=np.uint64)
        given = np.zeros(self.num_envs, dtype=np.bool_)
        for index, value in enumerate(each):
            if value is not None or not self._seeded[index]:
                seeds[index] = self._drawn_seed(index) if value is None else checked_seed(value, index)
                given[index] = True
        # An environment that fails to reset has its generator seeded before: the next reset continues it.
        for index in np.flatnonzero(given & mask).tolist():
            self._seeds[index] = int(seeds[index])
        self._seeded |= mask
        self._core.reset(seeds, given, mask)
        if bounds is not None:
            saved = self._core.save()
            starts = starts_within(self.environment["id"], bounds, saved["generator"][mask])
            for name, values in starts.items():
                saved[f"state.{name}"][mask] = values
            self._core.restore(saved)
        return self._core.observation, self._infos.after_reset(self._core, mask)

    def picture(self, environment: int) -> NDArray[np.uint8]:
        """Return what one environment draws of itself, [height, width, 3].

        Raises:
            ValueError: It has no `draw`.
            IndexError: There is no such environment.
            RuntimeError: Not every environment was reset.
        """
        return self._core.draw(environment)

    def step(
        self, actions: Any
    ) -> tuple[NDArray[Any], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], Infos]:
        """Step every environment.

        Args:
            actions: Integers [num_envs], or floats [num_envs, *action] that are finite (values beyond the bounds are
                the environment's to clip, as in Gymnasium). Nothing is stepped unless all are valid.

        Returns:
            Observations, rewards, terminated, truncated (both hold if both happened in the last allowed step), and
            infos as Gymnasium gives them. `autoreset_mode` defines what follows the end of an episode, as in
            `gymnasium.vector.AutoresetMode`. The arrays are the caller's for as long as they are kept.

        Raises:
            ValueError: Type, shape or value of an action.
            RuntimeError: An environment failed (the others were stepped), or nothing was reset yet.
        """
        observation, reward, terminated, truncated, infos = self._core.step(actions)
        if infos is None:
            ended = int(np.count_nonzero(terminated | truncated))
            infos = self._infos.after_step(self._core, terminated, truncated, ended)
        return observation, reward, terminated, truncated, infos

    def step_rows(
        self, actions: Any, environments: Any
    ) -> tuple[NDArray[Any], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], Infos]:
        """Step these environments alone, in the calling thread; the others stay as they are.

        Args:
            actions: As in `step`, with a row for each of `environments`.
            environments: Their numbers, each once, in any order.

        Returns:
            What `step` returns, with a row for each of `environments`, in their order.

        Raises:
            ValueError: As `step`; a number is out of range or given twice; or the pool resets by itself, which does
                not fit a caller that chooses the environments.
            RuntimeError: As `step`, or the episode of one of them has ended.
        """
        if self.autoreset_mode != AutoresetMode.DISABLED:
            raise ValueError(
                f"step_rows needs a pool with autoreset_mode='Disabled', this one has {self.autoreset_mode.value!r}"
            )
        rows = np.asarray(environments)
        if rows.dtype.kind not in "iu":
            raise ValueError(f"environments: expected their numbers, integers, got {rows.dtype}")
        unknown = rows[(rows < 0) | (rows >= self.num_envs)]  # before int32, in which large numbers are others
        if unknown.size:
            raise ValueError(f"environments are different numbers from 0 to num_envs - 1, got {unknown[0]}")
        rows = rows.astype(np.int32)
        observation, reward, terminated, truncated, report, returns, lengths = self._core.step_rows(actions, rows)
        infos = self._infos.after_rows(rows, terminated | truncated, report, returns, lengths)
        return observation, reward, terminated, truncated, infos

    def close_extras(self, **_: Any) -> None:
        """Stop the threads and release the environments; every later call raises that the pool is closed."""
        self._core.close()

    # The rollout API

    def reset_ids(self, seeds: NDArray[np.uint64]) -> None:
        """Seed environment b with `SeedSequence(seeds[b])`, start its first episode and give that the id 0."""
        everyone = np.ones(self.num_envs, dtype=np.bool_)
        self._core.reset(seeds, everyone, everyone)
        self._seeded[:] = True
        self._seeds = seeds.tolist()

    @property
    def observation(self) -> NDArray[Any]:
        """Return a copy of the current observations, [num_envs, *observation]."""
        return self._core.observation

    def begin_round(
        self,
        observation: NDArray[Any],
        reward: NDArray[np.float32],
        terminated: NDArray[np.uint8],
        truncated: NDArray[np.uint8],
        episode_id: NDArray[np.int32],
    ) -> None:
        """Take the buffers of a round, all [T, num_envs] and `observation` [T, num_envs, *observation].

        They are written in place until `end_round`, and the current observations now, into row 0. A reset or a restore
        gives the round up.

        Raises:
            ValueError: A buffer has another dtype or shape, is read-only or not C-contiguous.
        """
        self._core.begin_round(observation, reward, terminated, truncated, episode_id)

    def step_round(self, t: int, action: NDArray[Any]) -> None:
        """Make step t of the round: int64 [num_envs], or float32 [num_envs, *action]; nothing is converted.

        Writes row t of reward, terminated, truncated and episode_id, and row t + 1 of the observations. Nothing is
        stepped unless t is next and all actions are valid.

        Raises:
            ValueError: Another t is next, or type, shape or value of an action.
            RuntimeError: An environment failed, which gives the round up.
        """
        self._core.step_round(t, action)

    def end_round(self) -> RoundEnd:
        """Release the buffers and return the rest of the round's result. All T steps must have been made."""
        return RoundEnd(*self._core.end_round())

    # Copies: pickle and copy.deepcopy make the pool again and resume from the same state

    def __getstate__(self) -> dict[str, object]:
        """Return everything but the open round, which belongs to the caller's buffers."""
        state = self.__dict__.copy()
        del state["_core"]
        return {**state, "_saved": self.save() if self._seeded.any() else None}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        saved = state["_saved"]
        self.__dict__.update({name: value for name, value in state.items() if name != "_saved"})
        self._core = self._new_core()
        if saved is not None:
            self._core.restore(saved)

    def _new_core(self) -> _core.Pool:
        limit = self.time_limit or 0
        mode, values = self.autoreset_mode.value, core_values(self.config)
        task_libraries.load_for(self.environment["id"])  # a copy in a process that has not made one yet
        core = _core.Pool(
            self.environment["id"],
            self.num_envs,
            self.num_threads,
            limit,
            mode,
            values,
            statistics=self.records_episode_statistics,
            thread_affinity=self._thread_affinity,
            resources=self._shared_from,
        )
        core.set_batch(self.batch_size, self._deterministic)
        return core
