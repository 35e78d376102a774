"""What a torch environment is: pure functions over a batch, without a branch that looks at a value.

Batches are `[values, environments]`, float64: in float32 a pendulum near its upright is somewhere else after a hundred
steps, and a pole falls a step earlier or later than the native one. A row is computed by elementwise operations
alone, so that it does not depend on who else is in the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

Configuration: TypeAlias = Mapping[str, Tensor]
"""The native configuration's fields, each `[B]`, float64 or bool."""


@dataclass(frozen=True, slots=True)
class TorchEnvironment:
    """The functions of one environment; everything else (limits, resets, seeds, spaces) is the pool's."""

    state: tuple[str, ...]
    """Names of the state's S values, those of the native environment."""
    draws: int
    """How many numbers in [0, 1) a reset takes from the environment's generator, in the native order."""
    reset: Callable[[Tensor], Tensor]
    """`[draws, B]` in [0, 1) to the first state `[S, B]`."""
    step: Callable[[Configuration, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
    """Configuration, state `[S, B]` and action (int64 `[B]`, or float32 `[B, *action]`) to the next state `[S, B]`,
    reward float64 `[B]` and terminated bool `[B]`."""
    observe: Callable[[Tensor], Tensor]
    """State `[S, B]` to what is seen, float32 `[B, *observation]`."""
