"""Plays and records a round of a torch pool with a policy on the device, without the host."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from penstock.native.batch.kernels import BatchRow
from penstock.native.interface import RoundEnd
from penstock.tasks.environments.torch.device_work import CapturedWork, Staged

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from penstock.storage.shards.specs import Spec
    from penstock.tasks.environments.torch.batch import Slots
    from penstock.tasks.environments.torch.pool import TorchPool


class Policy(Protocol):
    """A policy is `Algorithm.act` with its parameters bound: `functools.partial(algorithm.act, params)`."""

    def __call__(
        self, carry: Tensor | None, observation: Tensor, noise: Tensor, /
    ) -> tuple[Mapping[str, Tensor], Tensor | None]:
        """Return rows, including `action`, and the next carry."""


class RoundRecord:
    """Records the columns of one round on the device, each `[T, B]`, and the facts for its end.

    It holds addresses of the environments' tensors, and is theirs alone.
    """

    def __init__(self, slots: Slots, steps: int) -> None:
        observation = slots.observation
        device, shape = observation.device, (steps, len(observation))
        self.observation = torch.zeros(steps, *observation.shape, dtype=observation.dtype, device=device)
        """The observations before each step, `[T, B, *observation]`."""
        self.final_observation = torch.zeros_like(self.observation)
        """The observations after a step and before any reset, where an episode ended, and in the last row."""
        rewards = (*shape, slots.agents) if slots.agents else shape
        self.reward = torch.zeros(rewards, dtype=torch.float32, device=device)
        """`[T, B]`, and `[agents]` where there are any."""
        self.terminated, self.truncated = (torch.zeros(shape, dtype=torch.uint8, device=device) for _ in range(2))
        self.episode_id = torch.zeros(shape, dtype=torch.int32, device=device)
        self.length = torch.zeros(shape, dtype=torch.int64, device=device)
        self.episode_return = torch.zeros(shape, dtype=torch.float64, device=device)
        """This and `length`: of the episodes that ended, in the rows of their last steps."""
        self._rows = [self._row(slots, t) for t in range(steps)]

    @property
    def columns(self) -> dict[str, Tensor]:
        """Return the columns that a round's buffers have, by name."""
        names = ("observation", "reward", "terminated", "truncated", "episode_id")
        return {name: getattr(self, name) for name in names}

    def clone(self) -> RoundRecord:
        """Return a copy, which the next round does not overwrite, and which records nothing more."""
        copied = copy(self)
        columns = {name: column.clone() for name, column in vars(self).items() if isinstance(column, Tensor)}
        vars(copied).update(columns, _rows=[])
        return copied

    def leaving_rows(self, *, fixed: bool) -> Tensor:
        """Return the rows `t * B + b` whose successor is not in the round: an episode's last, and the round's.

        Args:
            fixed: True gives a tensor of fixed shape, and reads no value on the host.

        Returns:
            int64 on the device, ascending: `[K]`, or fixed `[T * B]`, in which the last row repeats from K on.
        """
        leaves = (self.terminated | self.truncated) != 0
        leaves[-1].fill_(value=True)
        flat = leaves.flatten()
        if not fixed:
            return flat.nonzero().squeeze(-1)
        first = torch.sort((~flat).to(torch.uint8), stable=True).indices
        places = torch.arange(len(flat), device=flat.device)
        return torch.where(places < flat.sum(), first, len(flat) - 1)

    def begin(self, slots: Slots) -> None:
        """Record the first row's observations."""
        slots.observe()
        self.observation[0].copy_(slots.observation)

    def step(self, slots: Slots, t: int, action: Tensor) -> None:
        """Make step t, and start the next episode where one ended; errors as of `Slots.step`.

        It writes row t, and the observations of row t + 1; after the last row, those of `slots`.
        """
        slots.step_round(action, self._rows[t])

    def end(self) -> RoundEnd:
        """Return the facts that are not in the buffers, on the host."""
        terminated, truncated = self.terminated.cpu().numpy(), self.truncated.cpu().numpy()
        ended = (terminated | truncated).astype(np.bool_)
        leaves = ended.copy()
        leaves[-1] = True
        bootstrap_rows, rows = np.flatnonzero(leaves), np.flatnonzero(ended)
        episodes: dict[str, NDArray[Any]] = {
            "row": rows,
            "env": rows % ended.shape[1],
            "episode_id": _taken(self.episode_id, rows).astype(np.int64),
            "length": _taken(self.length, rows),
            "return": _taken(self.episode_return, rows),
            "terminated": terminated.reshape(-1)[rows],
            "truncated": truncated.reshape(-1)[rows],
        }
        return RoundEnd(bootstrap_rows, _taken(self.final_observation, bootstrap_rows), episodes)

    def _row(self, slots: Slots, t: int) -> BatchRow:
        is_last = t + 1 == len(self.observation)
        columns = (
            *(self.reward, self.terminated, self.truncated, self.episode_id),
            *(self.length, self.episode_return, self.final_observation),
        )
        following = slots.observation.data_ptr() if is_last else _address(self.observation, t + 1)
        return BatchRow(*(_address(column, t) for column in columns), following, is_last)


def _address(column: Tensor, row: int) -> int:
    return column.data_ptr() + row * column.stride(0) * column.element_size()


def _taken(column: Tensor, rows: NDArray[np.int64]) -> NDArray[Any]:
    taken: NDArray[Any] = column.flatten(0, 1)[torch.from_numpy(rows).to(column.device)].cpu().numpy()
    return taken


def play_round(
    slots: Slots,
    record: RoundRecord,
    act: Policy,
    noise: Tensor,
    rows: Mapping[str, Tensor],
    carry: Tensor | None = None,
    fresh_carry: Tensor | None = None,
) -> None:
    """Play a whole round: policy, environments, resets, T times.

    All shapes are fixed, everything persistent is written in place, and nothing synchronises with the host, so a CUDA
    graph can contain all of it (`RoundPlayer`); on a CPU the same code runs eagerly. It never ran on a GPU: the tests
    check that it computes the same as single steps, and that it asks torch for no value.

    Args:
        slots: The environments, none between two episodes.
        record: Receives the round.
        act: The policy. Its actions are int64 in range or finite float32, `[B, *action]`. On a CPU others are refused;
            on a GPU they end the process's use of the device, since only the host could say which they were.
        noise: `[T, B, *noise]`.
        rows: Receive the policy's rows, `[T, B, ...]` by name.
        carry: The policy's carry `[B, ...]`, updated in place; None if it has none.
        fresh_carry: The carry at an episode's start.
    """
    with torch.no_grad():
        record.begin(slots)
        columns = [(name, column.unbind(0)) for name, column in rows.items()]
        for t, (observation, noise_row) in enumerate(zip(record.observation.unbind(0), noise.unbind(0), strict=True)):
            acted, following = act(carry, observation, noise_row)
            for name, column in columns:
                column[t].copy_(acted[name])
            record.step(slots, t, acted["action"])
            if (carry is None) != (following is None):
                raise TypeError("initial_carry and act must agree whether there is a memory; only one of them gave one")
            if carry is not None and fresh_carry is not None and following is not None:
                ended = (record.terminated[t] | record.truncated[t]).bool()
                mask = ended.view(-1, *([1] * (carry.dim() - 1)))
                carry.copy_(torch.where(mask, fresh_carry, following))


class RoundPlayer:
    """Plays rounds of a torch pool with a policy; on a GPU as one CUDA graph, from the second round on.

        player = RoundPlayer(pool, partial(algorithm.act, params), algorithm.rows, noise_shape, round_steps)
        pool.begin_round(...)
        player.stage(noise)
        player.play()
        end = pool.end_round()

    A graph holds addresses: the policy's parameters must be updated in place (`copy_`), never replaced. On a CPU there
    is no graph, and `play` is `play_round`.
    """

    def __init__(
        self,
        pool: TorchPool,
        act: Policy,
        row_specs: Mapping[str, Spec],
        noise_shape: tuple[int, ...],
        round_steps: int,
        initial_carry: Tensor | None = None,
    ) -> None:
        """Allocate the tensors of a round.

        Args:
            pool: The environments.
            act: The policy.
            row_specs: Its rows, as `Algorithm.rows` declares them, including `action`.
            noise_shape: Shape of one environment's noise in one step.
            round_steps: T.
            initial_carry: `[B, ...]`, as `Algorithm.initial_carry` gives it.
        """
        self._pool, self._act = pool, act
        shape, device = (round_steps, pool.num_envs), pool.device
        self.rows = {
            name: torch.zeros(*shape, *spec.shape, dtype=getattr(torch, spec.dtype), device=device)
            for name, spec in row_specs.items()
        }
        """The policy's rows in the latest round, `[T, B, ...]` on the device; the next round overwrites them."""
        self._noise = Staged((*shape, *noise_shape), torch.float32, device)
        self._fresh = None if initial_carry is None else initial_carry.to(device)
        self.carry = None if self._fresh is None else self._fresh.clone()
        """The policy's carry after the latest round; copy a restored state's carry into it."""
        self._work = CapturedWork("acting a round", device)

    def stage(self, noise: Tensor | NDArray[np.float32]) -> None:
        """Start to copy the noise of the next round, float32 `[T, B, *noise]`, to the device.

        Raises:
            ValueError: Another shape.
        """
        given, wanted = torch.as_tensor(noise), self._noise.tensor.shape
        if given.shape != wanted:
            raise ValueError(f"noise: expected shape {tuple(wanted)}, got {tuple(given.shape)}")
        self._noise.send(given)

    def play(self, *, to_host: bool = True) -> None:
        """Play the round that the pool has started, before its first step, with the noise that was staged.

        Args:
            to_host: as `TorchPool.whole_round`.

        Raises:
            ValueError: The pool's round has another length.
            RuntimeError: No round was started, or steps of it were made; or an environment failed: all need a reset.
        """
        with self._pool.whole_round(len(self._noise.tensor), to_host=to_host) as (slots, record):
            self._work.run(lambda: self._play(slots, record), record.reward)

    def _play(self, slots: Slots, record: RoundRecord) -> None:
        play_round(slots, record, self._act, self._noise.tensor, self.rows, self.carry, self._fresh)
