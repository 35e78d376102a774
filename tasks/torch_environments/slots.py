"""The environments of a torch pool as tensors on its device: stepping them, and beginning episodes.

`step` and `begin` work in place on tensors that stay where they are, with shapes that never change, and ask nothing of
the host: a CUDA graph may hold them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from tasks.torch_environments.environment import TorchEnvironment


class Slots:
    """B environments of one kind, each with what the framework keeps beside it."""

    def __init__(
        self, environment: TorchEnvironment, config: Mapping[str, Tensor], limit: int | None, starts: Tensor
    ) -> None:
        """Nothing is started.

        Args:
            environment: Its functions.
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
        """What every environment shows now, `[B, *observation]`."""
        self.elapsed_steps, self.episode_id, self.taken = (
            torch.zeros(num_envs, dtype=torch.int64, device=device) for _ in range(3)
        )
        """Of this episode; which it is; how many starts were taken since the pool was made. Each int64 `[B]`."""
        self.episode_return = torch.zeros(num_envs, dtype=torch.float64, device=device)
        self._limit = limit

    @property
    def moving(self) -> tuple[Tensor, ...]:
        """Every tensor that a step or a beginning writes to."""
        return (
            self.state,
            self.observation,
            self.elapsed_steps,
            self.episode_id,
            self.taken,
            self.episode_return,
        )

    def step(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Step everybody; episodes that end are not begun anew. Actions are not checked, which would need the host.

        Returns:
            Reward float64, terminated and truncated bool, each `[B]`; both flags hold if both happened in the last
            allowed step.
        """
        state, reward, terminated = self.environment.step(self.config, self.state, action)
        self.state.copy_(state)
        self.elapsed_steps.add_(1)
        self.episode_return.add_(reward)
        self.look()
        limit = self._limit
        truncated = torch.zeros_like(terminated) if limit is None else self.elapsed_steps >= limit
        return reward, terminated, truncated

    def begin(self, mask: Tensor) -> None:
        """Begin the next episode of the environments in `mask`, bool `[B]`."""
        capacity, draws, _ = self.starts.shape
        place = (self.taken % capacity).expand(1, draws, -1)
        self.state.copy_(torch.where(mask, self.environment.reset(self.starts.gather(0, place)[0]), self.state))
        self.elapsed_steps.masked_fill_(mask, 0)
        self.episode_return.masked_fill_(mask, 0.0)
        self.episode_id.add_(mask)
        self.taken.add_(mask)
        self.look()

    def look(self) -> None:
        """Bring the observations up to the state."""
        self.observation.copy_(self.environment.observe(self.state))
