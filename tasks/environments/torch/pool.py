"""Implements `native.EnvironmentPool` over environments that lie in tensors on a device.

Its kernels are compiled from the headers of the native pool of the same id. On a CPU both compute the same bits, so
rounds, states and seeds mean the same to both.
"""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode

from penstock import native
from penstock.native.adapters.rollout import check_buffers
from penstock.native.batch.kernels import BatchError
from penstock.native.batch.layout import read_member, write_members
from penstock.native.interface import EnvironmentPool, EnvironmentSpec, RoundEnd
from penstock.native.pool.arguments import checked_seed, one_seed_each, reset_mask
from penstock.native.pool.generators import seeded_words
from penstock.native.pool.infos import PoolInfos
from penstock.storage.errors import ConfigError
from penstock.tasks.environments.torch.actions import HostActions
from penstock.tasks.environments.torch.batch import Slots
from penstock.tasks.environments.torch.device_work import Departure
from penstock.tasks.environments.torch.kernels import kernels_for
from penstock.tasks.environments.torch.registry import check_torch_environment
from penstock.tasks.environments.torch.rollout import RoundRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from penstock.native.batch.kernels import BatchKernels
    from penstock.native.batch.layout import Layout


def make_torch_pool(
    id: str,  # noqa: A002
    num_envs: int,
    device: torch.device | str = "cpu",
    max_episode_steps: int | None = None,
    autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    *,
    record_episode_statistics: bool = False,
    **config: Any,
) -> TorchPool:
    """Make a pool whose environments are stepped on `device`; the arguments are those of `native.make`.

    Args:
        id: One of `penstock.tasks.environments.torch.registry.torch_environment_ids()`.
        num_envs: How many; row b of every array is environment b.
        device: The environments' device: a CPU, or a CUDA device, for which the kernels are compiled on the first use.
        max_episode_steps: Truncates episodes; None takes the environment's default, -1 means no limit.
        autoreset_mode: The reset behaviour of `step` at an episode's end.
        record_episode_statistics: Whether infos carry `episode` where an episode ended.
        config: Fields of the environment's configuration, as one value or one for each environment.

    Raises:
        ConfigError: The environment can't be stepped in tensors, a setting is unknown, invalid or for native pools
            only, torch has no such device here, or there is no compiler for it.
    """
    check_torch_environment(id, config)
    try:
        place = torch.zeros(1, device=device).device
    except (RuntimeError, TypeError, AssertionError) as error:
        raise ConfigError(f"environment: torch has no device {device!r} here: {error}") from error
    kernels = kernels_for(id, place)
    try:
        twin = native.make(
            id,
            num_envs,
            1,
            max_episode_steps,
            autoreset_mode,
            record_episode_statistics=record_episode_statistics,
            **config,
        )
    except ValueError as error:
        raise ConfigError(f"environment: {error}") from error
    if not isinstance(twin, native.Pool):
        raise ConfigError(f"environment: {id} is wrapped, {type(twin).__name__}, and cannot be stepped in tensors")
    return TorchPool(kernels, twin, place)


@dataclass(frozen=True, slots=True)
class DeviceEnd:
    """A round that has ended on the device, in memory that the next one does not overwrite."""

    record: RoundRecord
    departure: Departure
    """Lets another thread copy it to the host."""
    facts: Callable[[], tuple[RoundEnd, dict[str, NDArray[Any]]]]
    """Copies to the host what `end_round` and `save` return. Waits for the device; any thread may call it."""


class TorchPool(EnvironmentPool):
    """Steps many environments of one kind as tensors. Make one with `make_torch_pool`.

    `step` and `step_round` copy every step to the host; `tasks.environments.torch.rollout.RoundPlayer` plays a round
    without that. If an environment fails, all need a reset or a restore.
    """

    def __init__(self, kernels: BatchKernels, twin: native.Pool, device: torch.device) -> None:
        self._twin = twin
        self.device = device
        self.num_envs = twin.num_envs
        self.autoreset_mode = twin.autoreset_mode
        self.metadata = dict(twin.metadata)
        self.single_observation_space, self.observation_space = twin.single_observation_space, twin.observation_space
        self.single_action_space, self.action_space = twin.single_action_space, twin.action_space
        self._actions = HostActions(twin.environment["action"], self.num_envs)
        self._infos = PoolInfos(self.num_envs, (), 0, self.autoreset_mode, twin.records_episode_statistics)
        with torch.inference_mode(mode=False):
            self._slots = Slots(kernels, twin.environment, twin.config, self.num_envs, device)
        self._seeded = np.zeros(self.num_envs, dtype=np.bool_)
        self._started = np.zeros(self.num_envs, dtype=np.bool_)
        self._ended = np.zeros(self.num_envs, dtype=np.bool_)
        self._record: RoundRecord | None = None
        self._buffers: dict[str, Tensor] = {}
        self._next = 0

    @property
    def environment(self) -> EnvironmentSpec:
        """Return the description of one environment as plain data."""
        return self._twin.environment

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.environment['id']}, num_envs={self.num_envs}, device={self.device})"

    # The Gymnasium API

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """Start episodes, as `native.Pool.reset` with the same arguments and errors."""
        self._be_open()
        each = one_seed_each(seed, self.num_envs)
        mask = reset_mask(options, self.num_envs)
        seeds: dict[int, int] = {}
        for index, value in enumerate(each):
            if value is not None:
                seeds[index] = checked_seed(value, index)
            elif not self._seeded[index]:
                seeds[index] = secrets.randbits(64)
        self._reset({index: value for index, value in seeds.items() if mask[index]}, mask)
        self._infos.starts(np.flatnonzero(mask).astype(np.int32))
        self._slots.observe()
        return _host(self._slots.observation), {}

    def step(
        self, actions: Any
    ) -> tuple[NDArray[Any], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Step every environment, as `native.Pool.step` with the same arguments, results and errors."""
        self._be_ready()
        if self._buffers:
            raise RuntimeError("a round is open: end_round() or reset before step()")
        action = self._actions.for_step(actions)
        before, slots = self._ended, self._slots
        if self.autoreset_mode == AutoresetMode.DISABLED and before.any():
            raise RuntimeError(
                f"the episode of environment {int(np.flatnonzero(before)[0])} has ended and nothing resets it: reset "
                f"it with options={{'reset_mask': ...}}, or make the pool with another autoreset_mode"
            )
        with self._working():
            skipped = torch.from_numpy(before).to(self.device) if before.any() else None
            results = slots.step(torch.from_numpy(action).to(self.device), skipped)
        reward, terminated, truncated = (_host(result) for result in results)
        over = terminated | truncated
        ended = _Ended(slots) if over.any() else None
        fresh = before | over if self.autoreset_mode == AutoresetMode.SAME_STEP else before
        if fresh.any():
            self._begin(fresh)
        self._ended = over & ~fresh
        infos = {} if ended is None else self._infos.after_step(ended, terminated, truncated, int(over.sum()))
        return _host(slots.observation), reward, terminated, truncated, infos

    def close_extras(self, **_: Any) -> None:
        """Release the tensors; every later call raises that the pool is closed."""
        self._give_round_up()
        self._record = None
        self._twin.close()
        del self._slots

    # The rollout API

    def reset_ids(self, seeds: NDArray[np.uint64]) -> None:
        """Seed environment b with `SeedSequence(seeds[b])` and start its first episode, with the id 0."""
        self._be_open()
        if seeds.dtype != np.uint64 or seeds.shape != (self.num_envs,):
            raise ValueError(f"seeds: expected uint64 of shape ({self.num_envs},), got {seeds.dtype} {seeds.shape}")
        self._reset(dict(enumerate(seeds.tolist())), np.ones(self.num_envs, dtype=np.bool_))

    @property
    def observation(self) -> NDArray[Any]:
        """Return a copy of the current observations, [num_envs, *observation]."""
        self._be_ready()
        self._slots.observe()
        return _host(self._slots.observation)

    def begin_round(
        self,
        observation: NDArray[Any],
        reward: NDArray[np.float32],
        terminated: NDArray[np.uint8],
        truncated: NDArray[np.uint8],
        episode_id: NDArray[np.int32],
    ) -> None:
        """Take the buffers of a round, as `native.Pool.begin_round`.

        A longer round than before reallocates its tensors.
        """
        self._be_ready()
        buffers: dict[str, NDArray[Any]] = {
            "observation": observation,
            "reward": reward,
            "terminated": terminated,
            "truncated": truncated,
            "episode_id": episode_id,
        }
        # Its shape alone: the content is on the device.
        seen = np.empty(self._slots.observation.shape, self.single_observation_space.dtype)
        check_buffers(buffers, seen, self._slots.agents)
        steps = len(reward)
        if self._ended.any():
            self._begin(self._ended)
            self._ended = np.zeros_like(self._ended)
        if self._record is None or len(self._record.reward) != steps:
            with torch.inference_mode(mode=False):
                self._record = RoundRecord(self._slots, steps)
        self._record.begin(self._slots)
        self._buffers = {name: torch.from_numpy(array) for name, array in buffers.items()}
        self._buffers["observation"][0].copy_(self._record.observation[0])
        self._next = 0

    def step_round(self, t: int, action: NDArray[Any]) -> None:
        """Make step t of the round, as `native.Pool.step_round`."""
        record = self._open_record()
        steps = len(record.reward)
        if t != self._next or t >= steps:
            expected = str(self._next) if self._next < steps else "end_round()"
            raise ValueError(f"step_round got t={t}, expected {expected}")
        checked = self._actions.for_round(action)
        with self._working():
            record.step(self._slots, t, torch.from_numpy(checked).to(self.device))
        self._next += 1
        for name, column in record.columns.items():
            row = t + (name == "observation")
            if row < steps:
                self._buffers[name][row].copy_(column[row])

    def end_round(self) -> RoundEnd:
        """Release the buffers and return the facts that are not in them. All T steps must have been made."""
        end = self._ended_record().end()
        self._give_round_up()
        return end

    def end_on_device(self, also: Mapping[str, Tensor] | None = None) -> DeviceEnd:
        """End the round as `end_round`, without waiting for the device.

        Args:
            also: tensors that belong to the state; nothing may write to them any more.
        """
        record, slots = self._ended_record().clone(), self._slots
        words, flags, layout = slots.words.clone(), slots.flags.clone(), slots.layout
        departure, config, ended = Departure(self.device), self._config(), self._ended.copy()
        self._give_round_up()

        def facts() -> tuple[RoundEnd, dict[str, NDArray[Any]]]:
            # Of the pool itself nothing: it may be closed by now.
            with departure.copying():
                state = config | _saved(layout, _host(words), _host(flags), ended)
                return record.end(), {**state, **{name: _host(value) for name, value in (also or {}).items()}}

        return DeviceEnd(record, departure, facts)

    @contextmanager
    def whole_round(self, steps: int, *, to_host: bool = True) -> Iterator[tuple[Slots, RoundRecord]]:
        """Give `RoundPlayer` the tensors of the open round; on exit, fill the buffers from them.

        Args:
            steps: of the round.
            to_host: False leaves the buffers as they are: the caller copies what `end_on_device` returns.

        Raises:
            ValueError: The round has not `steps` steps.
            RuntimeError: No round is open, or steps of it were made.
        """
        record = self._open_record()
        if len(record.reward) != steps:
            raise ValueError(f"the player plays rounds of {steps} steps, this one has {len(record.reward)}")
        if self._next:
            raise RuntimeError(f"{self._next} steps of the round were made: a player plays whole rounds")
        try:
            with self._working():
                yield self._slots, record
        except BaseException:
            self._give_round_up()
            raise
        self._next = steps
        if to_host:
            for name, column in record.columns.items():
                self._buffers[name].copy_(column)

    @property
    def record(self) -> RoundRecord | None:
        """Return the latest round on the device; the next one overwrites it. None before the first."""
        return self._record

    def save(self) -> dict[str, NDArray[Any]]:
        """Save everything that the next step depends on, as the native pool does; equal states give equal bytes."""
        self._be_ready()
        slots = self._slots
        return self._config() | _saved(slots.layout, _host(slots.words), _host(slots.flags), self._ended.copy())

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore a saved state; one that this pool saved is restored bit for bit.

        Raises:
            ValueError: As `native.Pool.restore`; the pool is then unchanged.
        """
        self._be_open()
        self._twin.restore(state)
        state = self._twin.save()
        self._give_round_up()
        slots, layout = self._slots, self._slots.layout
        words, flags = np.zeros(slots.words.shape, np.int64), np.zeros(slots.flags.shape, np.bool_)
        write_members(layout.state, state, words, flags)
        for name, column in layout.counter_words.items():
            words[column] = state[name].view(np.int64)
        words[layout.generator] = state["generator"].view(np.int64).T
        slots.words.copy_(torch.from_numpy(words))
        slots.flags.copy_(torch.from_numpy(flags))
        self._ended = state["episode_ended"].copy()
        self._seeded[:] = self._started[:] = True

    def _config(self) -> dict[str, NDArray[Any]]:
        return {f"config.{name}": values.copy() for name, values in self._twin.config.items()}

    def _reset(self, seeds: Mapping[int, int], mask: NDArray[np.bool_]) -> None:
        self._give_round_up()
        if seeds:
            slots, rows = self._slots, sorted(seeds)
            index = torch.tensor(rows).to(self.device)
            words = np.ascontiguousarray(seeded_words(seeds[row] for row in rows).T).view(np.int64)
            slots.generator[:, index] = torch.from_numpy(words).to(self.device)
            slots.episode_id[index] = -1
            self._seeded[rows] = True
        self._begin(mask)
        self._ended = self._ended & ~mask
        self._started |= mask

    def _begin(self, mask: NDArray[np.bool_]) -> None:
        with self._working():
            self._slots.begin(torch.from_numpy(mask).to(self.device))

    @contextmanager
    def _working(self) -> Iterator[None]:
        """Forget that environments are ready if one of them fails: which ones moved is not known on every device."""
        try:
            yield
        except BatchError:
            self._started[:] = False
            self._give_round_up()
            raise

    def _give_round_up(self) -> None:
        self._buffers = {}

    def _ended_record(self) -> RoundRecord:
        record = self._open_record()
        if self._next != len(record.reward):
            raise RuntimeError(f"the round has {len(record.reward)} steps, only {self._next} were made")
        return record

    def _open_record(self) -> RoundRecord:
        self._be_ready()
        if self._record is None or not self._buffers:
            raise RuntimeError("no round is open: call begin_round() first")
        return self._record

    def _be_open(self) -> None:
        if self.closed:
            raise RuntimeError("this pool is closed: make a new one")

    def _be_ready(self) -> None:
        self._be_open()
        if not self._started.all():
            raise RuntimeError("not every environment is ready: reset(), reset_ids() or restore() first")


class _Ended:
    """Holds the latest step's results outside its arrays, before any reset: the source of infos."""

    def __init__(self, slots: Slots) -> None:
        self.report = np.empty((len(slots.observation), 0))
        self._columns = [_host(column) for column in (slots.episode_return, slots.elapsed_steps, slots.observation)]

    def ended(
        self, rows: NDArray[np.int64], /
    ) -> tuple[NDArray[np.bool_], NDArray[np.float64], NDArray[np.int64], NDArray[Any], NDArray[np.float64]]:
        returns, lengths, observation = (column[rows] for column in self._columns)
        return np.zeros(len(self.report), dtype=np.bool_), returns, lengths, observation, self.report[rows]


def _saved(
    layout: Layout, words: NDArray[np.int64], flags: NDArray[np.bool_], ended: NDArray[np.bool_]
) -> dict[str, NDArray[Any]]:
    """Return the saved state, without the configuration, that the columns of `Slots.words` and `Slots.flags` hold."""
    counters = layout.counter_words
    return {
        **{member.name: read_member(member, words, flags) for member in layout.state},
        **{name: words[counters[name]] for name in ("elapsed_steps", "episode_id")},
        "episode_return": words[counters["episode_return"]].view(np.float64),
        "episode_ended": ended,
        "generator": np.ascontiguousarray(words[layout.generator].T).view(np.uint64),
    }


def _host(tensor: Tensor) -> NDArray[Any]:
    """Copy a tensor to the host."""
    array: NDArray[Any] = tensor.detach().cpu().numpy().copy()
    return array
