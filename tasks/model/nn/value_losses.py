"""Errors of a critic's outputs: squared or Huber's, and clipped near the value before. Pure torch.

An algorithm may import this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from penstock.tasks.model.nn import kernels
from penstock.tasks.tape.operations import call

if TYPE_CHECKING:
    from collections.abc import Sequence


def limited_value_error(
    outputs: Tensor, target: Tensor, before: Tensor | None, *, huber_delta: float, clip_range: float
) -> Tensor:
    """Return the error of values that change within limits: half the square, or Huber's.

    With a clip range it is the larger one of two errors, of the value and of the value held within that range of
    `before` (Yu et al. 2022, arXiv 2103.01955, appendix A). As with PPO's surrogate, a value that has left the range
    towards its target has no gradient.

    Args:
        outputs: `[..., n]`, of which the last is the value.
        target: `[...]`, without a gradient.
        before: `[...]`, values before the round's first minibatch; None without a clip range.
        huber_delta: the error beyond which the loss is linear (Huber 1964, doi 10.1214/aoms/1177703732); 0: nowhere.
        clip_range: the largest change of a value that lowers its error; 0: any.

    Returns:
        The error `[...]`.
    """
    if not clip_range:
        before = None
    elif before is None:
        raise ValueError(f"clip_range = {clip_range:g} without values before: give the values that it limits")
    tape, number = kernels.tape_for(outputs), kernels.level_number(outputs)
    is_plain = kernels.plain(outputs) and kernels.plain(target) and target.shape == outputs.shape[:-1]
    is_plain = is_plain and (before is None or (kernels.plain(before) and before.shape == target.shape))
    if tape is None or number is None or not is_plain:
        value = outputs[..., -1]
        error = _error(value - target, huber_delta)
        if before is None:
            return error
        held = before + (value - before).clamp(-clip_range, clip_range)
        return torch.maximum(error, _error(held - target, huber_delta))
    slope, found, sizes = torch.empty(target.shape), torch.empty(target.shape), (target.numel(), outputs.shape[-1])
    call(number, "limited_error", (outputs, target, before, slope, found), sizes, (huber_delta, clip_range))

    def back(gradients: Sequence[Tensor | None]) -> Sequence[Tensor]:
        to_outputs = torch.empty(outputs.shape)
        call(number, "half_square_back", (kernels.contiguous_or_none(gradients[0]), slope, to_outputs), sizes)
        return (to_outputs,)

    tape.record((outputs,), (found,), back)
    return found


def _error(difference: Tensor, delta: float) -> Tensor:
    """Return half the square of a difference, and beyond `delta`, unless that is 0, its tangent."""
    if not delta:
        return 0.5 * difference.square()
    slope = difference.detach().clamp(-delta, delta)
    return slope * (difference - 0.5 * slope)
