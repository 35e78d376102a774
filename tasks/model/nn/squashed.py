"""Actors of vectors within bounds, squashed by tanh, and the twin critics that judge them. Pure torch.

An algorithm may import this.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from penstock.tasks.model.nn import kernels

if TYPE_CHECKING:
    from collections.abc import Sequence

_LOG_2PI = math.log(2.0 * math.pi)


def squashed_sample(outputs: Tensor, noise: Tensor, log_std_range: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """Displace a mean by normal noise and squash it: appendix C of Haarnoja et al. 2018 (arXiv 1812.05905).

    Args:
        outputs: `[rows, 2 n]`: the mean, and the logarithm of the deviation.
        noise: `[rows, n]`; zero noise gives the squashed mean.
        log_std_range: limits of the logarithm of the deviation; beyond them it has no gradient.

    Returns:
        Vectors from -1 to 1, `[rows, n]`, and their log-densities `[rows]`.
    """
    tape = kernels.tape_for(outputs)
    with torch.set_grad_enabled(tape is None and torch.is_grad_enabled()):
        mean, given = outputs.chunk(2, -1)
        log_std = given.clamp(*log_std_range)
        deviation = log_std.exp()
        free = torch.addcmul(mean, noise, deviation)
        # log(1 - tanh(u) ** 2), in a form that is finite where tanh(u) rounds to 1.
        slope = 2.0 * (math.log(2.0) - free - torch.nn.functional.softplus(-2.0 * free))
        log_density = (-0.5 * noise.square() - log_std - 0.5 * _LOG_2PI - slope).sum(-1)
        action = free.tanh()

    def back(gradients: Sequence[Tensor | None]) -> Sequence[Tensor]:
        to_action, to_density = gradients
        to_free = torch.zeros_like(deviation) if to_action is None else to_action * (1.0 - action.detach().square())
        to_log_std = noise * deviation
        if to_density is None:
            to_log_std = to_log_std * to_free
        else:
            # The density falls by the slope, whose derivative is -2 tanh(u), and by the logarithm of the deviation.
            to_density = to_density.unsqueeze(-1)
            to_free = torch.addcmul(to_free, to_density, action.detach(), value=2.0)
            to_log_std = to_log_std * to_free - to_density
        return (torch.cat((to_free, to_log_std * (given.detach() == log_std)), -1),)

    if tape is not None:
        tape.record((outputs,), (action, log_density), back)
    return action, log_density


def joined(observation: Tensor, action: Tensor) -> Tensor:
    """Join observations `[rows, m]`, without a gradient, and actions `[rows, n]` to a critic's inputs."""
    tape = kernels.tape_for(action)
    if tape is None or observation.requires_grad or action.grad_fn is not None:
        return torch.cat((observation, action), -1)
    with torch.no_grad():
        found = torch.cat((observation, action), -1)
    first = observation.shape[-1]
    tape.record((action,), (found,), lambda gradients: (_part(gradients[0], first),))
    return found


def smaller(first: Tensor, second: Tensor) -> Tensor:
    """Return the smaller value `[rows]` of two critics' outputs `[rows, 1]`; equal ones share the gradient."""
    tape = kernels.tape_for(first)
    if tape is None or first.grad_fn is not None or second.grad_fn is not None:
        return torch.minimum(first, second).squeeze(-1)
    with torch.no_grad():
        found = torch.minimum(first, second).squeeze(-1)
        share = 0.5 * ((first < second).float() - (first > second).float()) + 0.5

    def back(gradients: Sequence[Tensor | None]) -> Sequence[Tensor]:
        (gradient,) = gradients
        assert gradient is not None
        to_first = gradient.unsqueeze(-1) * share
        return to_first, gradient.unsqueeze(-1) - to_first

    tape.record((first, second), (found,), back)
    return found


def _part(gradient: Tensor | None, first: int) -> Tensor | None:
    return None if gradient is None else gradient[..., first:].contiguous()
