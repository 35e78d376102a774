"""Optimizer steps on parameter vectors. Pure torch; an algorithm may import this."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.optim.adam import adam

from penstock.tasks.model.nn import kernels

if TYPE_CHECKING:
    from collections.abc import Mapping


_DECAYS = (0.9, 0.999)
"""Decays of the two moments, as in the paper."""


def init_adam(params: Tensor) -> dict[str, Tensor]:
    """Return Adam's state for a parameter vector `[P]`: zero moments `[P]` and a float32 step counter."""
    return {
        "mean": torch.zeros_like(params),
        "square": torch.zeros_like(params),
        "step": torch.zeros((), dtype=torch.float32),
    }


def clip_norm(gradient: Tensor, limit: float) -> Tensor:
    """Scale the gradient `[P]` down if its Euclidean norm exceeds `limit`; otherwise return it, maybe itself."""
    norm = kernels.norm(gradient)
    if norm is not None:
        return gradient if norm + 1e-6 <= limit else gradient * (limit / (norm + 1e-6))
    return gradient * torch.clamp(limit / (torch.linalg.vector_norm(gradient) + 1e-6), max=1.0)


def annealed(first: float, last: float, state: Mapping[str, Tensor], over_steps: int) -> float | Tensor:
    """Return Adam's next learning rate: linear from `first` to `last` over some steps, then `last`; over 0 `first`.

    On a device it is a float32 tensor `[]` there, so that nothing waits for the counter of steps.
    """
    if not over_steps:
        return first
    if not state["step"].is_cpu:
        return first + (state["step"] / over_steps).clamp(max=1.0) * (last - first)
    return first + min(1.0, float(state["step"]) / over_steps) * (last - first)


def step_adam(
    params: Tensor, gradient: Tensor, state: Mapping[str, Tensor], learning_rate: float | Tensor, epsilon: float = 1e-5
) -> None:
    """Take one step of Adam (Kingma and Ba 2015, arXiv 1412.6980, algorithm 1), in place on `params` and `state`.

    A rate that is a tensor is on their device. A CUDA graph can contain the step: its counter is on the device too.
    """
    if not isinstance(learning_rate, Tensor) and kernels.adam(params, gradient, state, learning_rate, _DECAYS, epsilon):
        return
    adam(
        [params],
        [gradient],
        [state["mean"]],
        [state["square"]],
        [],
        [state["step"]],
        foreach=False,
        capturable=False,
        differentiable=False,
        fused=True,
        amsgrad=False,
        beta1=_DECAYS[0],
        beta2=_DECAYS[1],
        lr=learning_rate,
        weight_decay=0.0,
        eps=epsilon,
        maximize=False,
    )
