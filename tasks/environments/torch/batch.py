"""Steps the environments of a torch pool as tensors on its device, and starts their episodes.

`step` and `begin` work in place on tensors whose addresses and shapes never change, without synchronising with the
host: a CUDA graph may contain them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from penstock.tasks.environments.torch.environment import TorchEnvironment


class Slots:
    """Holds B environments of one kind, with their limits, counters and coming start states."""

    def __init__(
        self, environment: TorchEnvironment, config: Mapping[str, Tensor], limit: int | None, starts: Tensor
    ) -> None:
        """Allocate tensors without starting episodes.

        Args:
            environment: The functions of one environment.
            config: Every field, `[B]`, on the device.
            limit: Steps after which an episode is truncated.
            starts: Numbers of coming episodes, float64 `[capacity, draws, B]`, on the device.
        """
        self.environment = environment
        self.config = config
        self.starts = starts
        device, num_envs = starts.device, starts.shape[-1]
        self.state = torch.zeros(len(environment.state), num_envs, dtype=torch.float64, device=device)
        self.observation = environment.observe(self.state)
        """The current observations, `[B, *observation]`."""
        self.elapsed_steps, self.episode_id, self.taken = (
            torch.zeros(num_envs, dtype=torch.int64, device=device) for _ in range(3)
        )
        """Steps of this episode; its number; starts taken since the pool was made. Each int64 `[B]`."""
        self.episode_return = torch.zeros(num_envs, dtype=torch.float64, device=device)
        self._limit = limit

    @property
    def moving(self) -> tuple[Tensor, ...]:
        """Return every tensor that `step` or `begin` writes to."""
        return (
            self.state,
            self.observation,
            self.elapsed_steps,
            self.episode_id,
            self.taken,
            self.episode_return,
        )

    def step(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Step all environments without resetting those that end. Actions are not checked: that would need the host.

        Returns:
            Reward float64, terminated and truncated bool, each `[B]`; both flags hold if both happened in the last
            allowed step.
        """
        state, reward, terminated = self.environment.step(self.config, self.state, action)
        self.state.copy_(state)
        self.elapsed_steps.add_(1)
        self.episode_return.add_(reward)
        self.observe()
        limit = self._limit
        truncated = torch.zeros_like(terminated) if limit is None else self.elapsed_steps >= limit
        return reward, terminated, truncated

    def begin(self, mask: Tensor) -> None:
        """Start the next episode of the environments in `mask`, bool `[B]`."""
        capacity, draws, _ = self.starts.shape
        place = (self.taken % capacity).expand(1, draws, -1)
        self.state.copy_(torch.where(mask, self.environment.reset(self.starts.gather(0, place)[0]), self.state))
        self.elapsed_steps.masked_fill_(mask, 0)
        self.episode_return.masked_fill_(mask, 0.0)
        self.episode_id.add_(mask)
        self.taken.add_(mask)
        self.observe()

    def observe(self) -> None:
        """Recompute the observations from the state."""
        self.observation.copy_(self.environment.observe(self.state))
