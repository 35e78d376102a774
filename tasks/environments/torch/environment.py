"""Defines the functions that make an environment of tensors; each handles many environments at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

Configuration: TypeAlias = Mapping[str, Tensor]
"""These are the native configuration's fields, each `[B]`, float64 or bool."""


@dataclass(frozen=True, slots=True)
class TorchEnvironment:
    """These functions define one environment; the pool adds limits, resets, seeds and spaces."""

    state: tuple[str, ...]
    """Names of the state's S values, those of the native environment."""
    draws: int
    """The number of draws in [0, 1) that a reset takes from the environment's generator, in the native order."""
    reset: Callable[[Tensor], Tensor]
    """Maps draws `[draws, B]` in [0, 1) to the first state `[S, B]`."""
    step: Callable[[Configuration, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
    """Maps configuration, state `[S, B]` and action (int64 `[B]` or float32 `[B, *action]`) to the next state `[S, B]`,
    reward float64 `[B]` and terminated bool `[B]`."""
    observe: Callable[[Tensor], Tensor]
    """Maps a state `[S, B]` to observations, float32 `[B, *observation]`."""
