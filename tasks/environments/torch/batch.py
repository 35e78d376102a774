"""Steps the environments of a torch pool on its device, and starts their episodes.

The work is that of `penstock.native.batch`: one call each, in place, on tensors whose addresses never change, without
synchronising with the host. So a CUDA graph may contain it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from penstock.native.batch.kernels import BatchArrays, BatchRow, BatchStep

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray
    from torch import Tensor

    from penstock.native.batch.kernels import BatchKernels
    from penstock.native.interface import EnvironmentSpec


class Slots:
    """Holds B environments of one kind, with their counters and generators.

    Make it outside of torch's inference mode: its tensors are written in place for as long as it lives.
    """

    def __init__(
        self,
        kernels: BatchKernels,
        described: EnvironmentSpec,
        config: Mapping[str, NDArray[Any]],
        num_envs: int,
        device: torch.device,
    ) -> None:
        """Allocate tensors without starting episodes.

        Args:
            kernels: Those of the environment, for the device.
            described: The environment, with the limit at which episodes are truncated.
            config: Every field, `[B]`.
            num_envs: B.
            device: Holds all tensors.
        """
        self.layout = layout = kernels.layout
        self.device = device
        self.agents = described["agents"]
        self._kernels = kernels
        words, flags = layout.state_columns()
        self.words = torch.zeros(words, num_envs, dtype=torch.int64, device=device)
        """The state's numbers of 8 bytes, the counters and the generators, `[columns, B]`."""
        self.flags = torch.zeros(flags, num_envs, dtype=torch.bool, device=device)
        """The state's bools, `[columns, B]`."""
        self._config = tuple(torch.from_numpy(part).to(device) for part in layout.config_arrays(config))
        seen, action = described["observation"], described["action"]
        self.observation = torch.zeros(num_envs, *seen["shape"], dtype=getattr(torch, seen["dtype"]), device=device)
        """The observations that `step`, `begin` and `observe` wrote, `[B, *observation]`."""
        counters = layout.counter_words
        self.elapsed_steps, self.episode_id = (self.words[counters[name]] for name in ("elapsed_steps", "episode_id"))
        """Steps of this episode, and its number; each int64 `[B]`."""
        self.episode_return = self.words.view(torch.float64)[counters["episode_return"]]
        self.generator = self.words[layout.generator]
        """The words of the generators, int64 `[5, B]`."""
        self._action_dtype = getattr(torch, action["dtype"])
        self._action_shape = (num_envs, *action["shape"])
        reward_shape = (num_envs, self.agents) if self.agents else (num_envs,)
        self._reward = torch.zeros(reward_shape, dtype=torch.float64, device=device)
        self._ends = torch.zeros(2, num_envs, dtype=torch.bool, device=device)
        self._arrays = BatchArrays(
            num_envs,
            described["max_episode_steps"] or 0,
            *(part.data_ptr() for part in self._config),
            self.words.data_ptr(),
            self.flags.data_ptr(),
            device.index or 0,
        )

    def step(self, action: Tensor, skipped: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Step environments without resetting those that end.

        Args:
            action: int64 or float32, `[B, *action]`.
            skipped: bool `[B]`, environments that stay as they are; those between two episodes must be among them.

        Returns:
            Reward float64 `[B]`, and `[agents]` where there are any, terminated and truncated bool `[B]`; both flags
            hold if both happened in the last allowed step. The next step overwrites them.

        Raises:
            BatchError: as `penstock.native.batch.kernels.BatchKernels.step`.
            ValueError: The action is no such tensor.
        """
        taken = self._taken(action)
        out = BatchStep(
            0 if skipped is None else skipped.data_ptr(),
            self._reward.data_ptr(),
            self._ends[0].data_ptr(),
            self._ends[1].data_ptr(),
            self.observation.data_ptr(),
        )
        self._kernels.step(self._arrays, taken.data_ptr(), out, self._stream())
        return self._reward, self._ends[0], self._ends[1]

    def step_round(self, action: Tensor, row: BatchRow) -> None:
        """Make a step of a round into a row of its columns; start the next episode where one ended. Errors: `step`."""
        taken = self._taken(action)
        self._kernels.step_round(self._arrays, taken.data_ptr(), row, self._stream())

    def begin(self, mask: Tensor) -> None:
        """Start the next episode of the environments in `mask`, bool `[B]`."""
        self._kernels.begin(self._arrays, mask.data_ptr(), self.observation.data_ptr(), self._stream())

    def observe(self) -> None:
        """Recompute the observations from the state."""
        self._kernels.observe(self._arrays, self.observation.data_ptr(), self._stream())

    def _taken(self, action: Tensor) -> Tensor:
        # Kernels read addresses: another type, shape or device would be other memory.
        if action.dtype != self._action_dtype or action.shape != self._action_shape or action.device != self.device:
            raise ValueError(
                f"actions: expected a {self._action_dtype} tensor of shape {self._action_shape} on {self.device}, got "
                f"{action.dtype} {tuple(action.shape)} on {action.device}"
            )
        return action.contiguous()

    def _stream(self) -> int:
        return int(torch.cuda.current_stream(self.device).cuda_stream) if self.device.type == "cuda" else 0
