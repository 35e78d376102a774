"""A round of wrapped environments: the caller's buffers, and the rest of its result."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.native.interface import RoundEnd

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from penstock.native.adapters.round_steps import RoundStep

_DTYPES = {"reward": np.float32, "terminated": np.uint8, "truncated": np.uint8, "episode_id": np.int32}
_EPISODES: dict[str, type[np.generic]] = dict.fromkeys(("row", "env", "episode_id", "length"), np.int64)
_EPISODES |= {"return": np.float64, "terminated": np.uint8, "truncated": np.uint8}


class EpisodeCounts:
    """The current episode of every environment: its id, length and return so far."""

    def __init__(self, num_envs: int) -> None:
        self.episode_id = np.zeros(num_envs, dtype=np.int64)
        self.length = np.zeros(num_envs, dtype=np.int64)
        self.total = np.zeros(num_envs, dtype=np.float64)
        self._started_seconds = np.zeros(num_envs)

    def begin(self, mask: NDArray[np.bool_], seeded: NDArray[np.bool_]) -> None:
        """Start the episodes of a reset; a seed restarts the count of episodes."""
        self.episode_id[mask] = np.where(seeded, 0, self.episode_id + 1)[mask]
        self._start(mask)

    def add(self, reward: NDArray[Any], counted: NDArray[np.bool_] | bool = True) -> None:
        """Count one step of the environments in `counted`."""
        self.length += counted
        np.add(self.total, reward, out=self.total, where=counted)

    def end(self, mask: NDArray[np.bool_]) -> None:
        """Count the ended episodes and start the next ones."""
        self.episode_id[mask] += 1
        self._start(mask)

    def statistics(self, over: NDArray[np.bool_]) -> dict[str, NDArray[Any]]:
        """Report return, length and seconds of the episodes that ended, laid out as by RecordEpisodeStatistics."""
        seconds = np.round(time.perf_counter() - self._started_seconds, 6)
        return {
            "r": np.where(over, self.total, 0.0),
            "l": np.where(over, self.length, 0),
            "t": np.where(over, seconds, 0.0),
        }

    def _start(self, mask: NDArray[np.bool_]) -> None:
        self.length[mask], self.total[mask] = 0, 0.0
        self._started_seconds[mask] = time.perf_counter()


class OpenRound:
    """The buffers of a round, checked, and the index of its episodes."""

    def __init__(
        self, buffers: Mapping[str, NDArray[Any]], current: NDArray[Any], counts: EpisodeCounts, agents: int = 0
    ) -> None:
        check_buffers(buffers, current, agents)
        self._steps, self._num_envs = buffers["reward"].shape[:2]
        self._next = 0
        self._reward, self._episode_id = buffers["reward"], buffers["episode_id"]
        self._flags = buffers["terminated"], buffers["truncated"]
        self._observed: list[NDArray[Any]] = [*buffers["observation"][1:], np.empty_like(current, order="C")]
        self._rows: list[int] = []
        self._final: list[NDArray[Any]] = []
        self._episodes: list[tuple[Any, ...]] = []
        buffers["observation"][0] = current
        self._episode_id[:] = counts.episode_id
        for flags in self._flags:
            flags[:] = 0

    def check_turn(self, t: int) -> None:
        """Refuse a step that is not the next one."""
        if t != self._next or t == self._steps:
            expected = "end_round()" if self._next == self._steps else str(self._next)
            raise ValueError(f"step_round got t={t}, expected {expected}")

    @property
    def next_observation(self) -> NDArray[Any]:
        """Return where the observations after the next step belong: a row of the buffer, or an array after the last."""
        return self._observed[self._next]

    def write(self, step: RoundStep, counts: EpisodeCounts) -> None:
        """Write a step; `counts` includes it and still shows the episodes that ended."""
        t, observed = self._next, self._observed[self._next]
        if step.observation is not observed:
            observed[...] = step.observation
        self._reward[t] = step.reward
        self._next = t + 1
        for env, value in step.final.items():
            row = t * self._num_envs + env
            self._rows.append(row)
            self._final.append(np.asarray(value, dtype=observed.dtype))
            count = (counts.episode_id[env], counts.length[env], counts.total[env])
            flags = step.terminated[env], step.truncated[env]
            self._episodes.append((row, env, *count, *flags))
            self._episode_id[t + 1 :, env] = counts.episode_id[env] + 1
            for column, flag in zip(self._flags, flags, strict=True):
                column[t, env] = flag

    def end(self) -> RoundEnd:
        """Return the rest of the round's result."""
        if self._next != self._steps:
            raise RuntimeError(f"the round has {self._steps} steps, only {self._next} were made")
        last = (self._steps - 1) * self._num_envs
        before = sum(row < last for row in self._rows)
        everyone = self._observed[-1].copy()
        for row, value in zip(self._rows[before:], self._final[before:], strict=True):
            everyone[row - last] = value
        columns = zip(*self._episodes, strict=True) if self._episodes else [()] * len(_EPISODES)
        episodes = {
            name: np.array(column, dtype=dtype)
            for (name, dtype), column in zip(_EPISODES.items(), columns, strict=True)
        }
        return RoundEnd(
            np.array([*self._rows[:before], *range(last, last + self._num_envs)]),
            np.concatenate([*(value[np.newaxis] for value in self._final[:before]), everyone]),
            episodes,
        )


def check_buffers(buffers: Mapping[str, NDArray[Any]], current: NDArray[Any], agents: int = 0) -> None:
    """Refuse buffers that cannot hold rounds of environments that now show `current`, with a reward for each agent.

    Raises:
        ValueError: One has another dtype or shape, is read-only or not C-contiguous, or they are of no step.
    """
    steps = buffers["reward"].shape[0] if buffers["reward"].ndim else 0
    shape = (steps, len(current))
    _check("observation", buffers["observation"], current.dtype, (*shape, *current.shape[1:]))
    for name, dtype in _DTYPES.items():
        _check(name, buffers[name], np.dtype(dtype), (*shape, agents) if agents and name == "reward" else shape)
    if not steps:
        raise ValueError("a round needs at least one step, got buffers of 0")


def _check(name: str, array: NDArray[Any], dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    found = None
    if array.dtype != dtype or array.shape != shape:
        found = f"{array.dtype} {array.shape}"
    elif not array.flags.writeable:
        found = "one that is read-only"
    elif not array.flags.c_contiguous:
        found = "one that is not C-contiguous"
    if found:
        raise ValueError(f"{name}: expected a writable C-contiguous {dtype} array of shape {shape}, got {found}")
