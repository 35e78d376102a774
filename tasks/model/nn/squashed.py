"""Actors of vectors within bounds, squashed by tanh, and the twin critics that judge them. Pure torch.

An algorithm may import this.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from penstock.tasks.model.nn import kernels
from penstock.tasks.model.nn.distributions import constants, widths
from penstock.tasks.tape.operations import call

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.tasks.specs import ActionSpec

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
    if number is None or not (kernels.plain(outputs) and kernels.constant(noise)):
        return None
    if tape is None and outputs.requires_grad and torch.is_grad_enabled():
        return None
    (rows, n), shape = noise.shape, outputs.shape
    if shape != (rows, 2 * n):
        return None
    action, log_density = torch.empty(noise.shape), torch.empty(rows)
    call(number, "squash", (outputs, noise, action, log_density), (rows, n), log_std_range)

    def back(gradients: Sequence[Tensor | None]) -> Sequence[Tensor]:
        to_action, to_density = map(kernels.contiguous_or_none, gradients)
        to_outputs = torch.empty(shape)
        tensors = (outputs, noise, action, to_action, to_density, to_outputs)
        call(number, "squash_back", tensors, (rows, n), log_std_range)
        return (to_outputs,)

    if tape is not None:
        tape.record((outputs,), (action, log_density), back)
    return action, log_density


def bounded(outputs: Tensor) -> Tensor:
    """Squash a deterministic policy's outputs `[rows, n]` to vectors from -1 to 1."""
    number, tape = kernels.level_number(outputs), kernels.tape_for(outputs)
    if number is None or not kernels.plain(outputs) or (tape is None and _is_torchs(outputs)):
        return outputs.tanh()
    found, count = torch.empty(outputs.shape), (outputs.numel(),)
    call(number, "bound", (outputs, found), count)

    def back(gradients: Sequence[Tensor | None]) -> Sequence[Tensor]:
        to_outputs = torch.empty(outputs.shape)
        call(number, "bound_back", (kernels.contiguous_or_none(gradients[0]), found, to_outputs), count)
        return (to_outputs,)

    if tape is not None:
        tape.record((outputs,), (found,), back)
    return found


def within_bounds(spec: ActionSpec, action: Tensor) -> Tensor:
    """Map vectors from -1 to 1, `[rows, n]`, to those that the environment takes, `[rows, *shape]`."""
    low = constants(spec.low, action.device)
    width = constants(widths(tuple(spec.low), tuple(spec.high)), action.device)
    return (low + 0.5 * (action + 1.0) * width).view(-1, *spec.shape)


def from_bounds(spec: ActionSpec, action: Tensor) -> Tensor:
    """Map the environment's vectors `[rows, *shape]` to those from -1 to 1, `[rows, n]`: undoes `within_bounds`."""
    low, high = constants(spec.low, action.device), constants(spec.high, action.device)
    return 2.0 * (action.flatten(1) - low) / (high - low) - 1.0


def jittered(action: Tensor, noise: Tensor, deviation: float, limit: float = math.inf) -> Tensor:
    """Displace vectors from -1 to 1, `[rows, n]`, by normal noise of a deviation; without a gradient.

    The displacement is at most `limit` in each number, and the result is from -1 to 1: target policy smoothing
    (Fujimoto et al. 2018, arXiv 1802.09477, equation 14), and the exploration of deterministic policies.
    """
    with torch.no_grad():
        number = kernels.level_number(action)
        if number is None or not (kernels.plain(action) and kernels.plain(noise) and action.shape == noise.shape):
            return (action + (noise * deviation).clamp(-limit, limit)).clamp(-1.0, 1.0)
        found = torch.empty(action.shape)
        call(number, "jitter", (action, noise, found), (action.numel(),), (deviation, limit))
        return found


def joined(observation: Tensor, action: Tensor) -> Tensor:
    """Join observations `[rows, m]`, without a gradient, and actions `[rows, n]` to a critic's inputs."""
    number, tape = kernels.level_number(action), kernels.tape_for(action)
    is_plain = kernels.constant(observation) and kernels.plain(action)
    fits = observation.dim() == action.dim() == 2 and len(observation) == len(action)
    if number is None or not (is_plain and fits) or (tape is None and _is_torchs(action)):
        return torch.cat((observation, action), -1)
    sizes = (action.shape[0], observation.shape[1], action.shape[1])
    found = torch.empty(sizes[0], sizes[1] + sizes[2])
    call(number, "join", (observation, action, found), sizes)

    def back(gradients: Sequence[Tensor | None]) -> Sequence[Tensor]:
        to_action = torch.empty(sizes[0], sizes[2])
        call(number, "join_back", (kernels.contiguous_or_none(gradients[0]), to_action), sizes)
        return (to_action,)

    if tape is not None:
        tape.record((action,), (found,), back)
    return found


def smaller(first: Tensor, second: Tensor) -> Tensor:
    """Return the smaller value `[rows]` of two critics' outputs `[rows, 1]`; equal ones share the gradient."""
    number, tape = kernels.level_number(first), kernels.tape_for(first)
    is_plain = kernels.plain(first) and kernels.plain(second) and first.shape == second.shape == (len(first), 1)
    if number is None or not is_plain or (tape is None and _is_torchs(first, second)):
        return torch.minimum(first, second).squeeze(-1)
    rows, shape = len(first), first.shape
    found, share = torch.empty(rows), torch.empty(rows)
    call(number, "smaller", (first, second, found, share), (rows,))

    def back(gradients: Sequence[Tensor | None]) -> Sequence[Tensor]:
        to_first, to_second = torch.empty(shape), torch.empty(shape)
        tensors = (kernels.contiguous_or_none(gradients[0]), share, to_first, to_second)
        call(number, "smaller_back", tensors, (rows,))
        return to_first, to_second

    if tape is not None:
        tape.record((first, second), (found,), back)
    return found


def repeated_exp(logarithm: Tensor, rows: int) -> Tensor:
    """Return the exponential of a number `[1]` for each of some rows, `[rows]`, without a gradient."""
    with torch.no_grad():
        level = kernels.level_number(logarithm)
        if level is None or not kernels.plain(logarithm) or logarithm.numel() != 1:
            return logarithm.exp().expand(rows)
        found = torch.empty(rows)
        call(level, "spread_exp", (logarithm, found), (rows,))
        return found


def multiplied(number: Tensor, values: Tensor) -> Tensor:
    """Multiply values `[rows]`, without a gradient, by a parameter `[1]`."""
    level, tape = kernels.level_number(values), kernels.tape_for(values)
    is_plain = kernels.plain(number) and number.numel() == 1 and kernels.constant(values) and values.dim() == 1
    if level is None or tape is None or not is_plain:
        return number * values
    rows, found = len(values), torch.empty(len(values))
    call(level, "multiply_all", (number, values, found), (rows,))

    def back(gradients: Sequence[Tensor | None]) -> Sequence[Tensor]:
        to_number = torch.empty(1)
        call(level, "multiply_all_back", (kernels.contiguous_or_none(gradients[0]), values, to_number), (rows,))
        return (to_number,)

    tape.record((number,), (found,), back)
    return found


def _is_torchs(*tensors: Tensor) -> bool:
    """Return whether autograd follows one of these tensors."""
    return torch.is_grad_enabled() and any(each.requires_grad for each in tensors)
