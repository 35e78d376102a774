"""Actors of vectors within bounds, squashed by tanh, and the twin critics that judge them. Pure torch.

An algorithm may import this.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from penstock.native import _learner
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
    found = _by_kernels(outputs, noise, log_std_range)
    if found is not None:
        return found
    mean, log_std = outputs.chunk(2, -1)
    log_std = log_std.clamp(*log_std_range)
    free = torch.addcmul(mean, noise, log_std.exp())
    # log(1 - tanh(u) ** 2), in a form that is finite where tanh(u) rounds to 1.
    slope = 2.0 * (math.log(2.0) - free - torch.nn.functional.softplus(-2.0 * free))
    log_density = (-0.5 * noise.square() - log_std - 0.5 * _LOG_2PI - slope).sum(-1)
    return free.tanh(), log_density


def _by_kernels(outputs: Tensor, noise: Tensor, log_std_range: tuple[float, float]) -> tuple[Tensor, Tensor] | None:
    number, tape = kernels.level_number(outputs), kernels.tape_for(outputs)
    if number is None or not (kernels.plain(outputs) and kernels.plain(noise)):
        return None
    if tape is None and outputs.requires_grad and torch.is_grad_enabled():
        return None
    (rows, n), shape = noise.shape, outputs.shape
    action, log_density = torch.empty(noise.shape), torch.empty(rows)
    _learner.squash(
        number,
        outputs.data_ptr(),
        noise.data_ptr(),
        rows,
        n,
        *log_std_range,
        action.data_ptr(),
        log_density.data_ptr(),
    )

    def back(gradients: Sequence[Tensor | None]) -> Sequence[Tensor]:
        to_action, to_density = map(kernels.contiguous_or_none, gradients)
        to_outputs = torch.empty(shape)
        _learner.squash_back(
            number,
            outputs.data_ptr(),
            noise.data_ptr(),
            action.data_ptr(),
            kernels.address(to_action),
            kernels.address(to_density),
            rows,
            n,
            *log_std_range,
            to_outputs.data_ptr(),
        )
        return (to_outputs,)

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
