"""Values of choices: dueling outputs, and errors of the values of what was chosen. Pure torch.

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


def dueling_values(outputs: Tensor) -> Tensor:
    """Return the values `[..., n]` of choices by a dueling network's outputs `[..., 1 + n]`.

    Equation 9 of Wang et al. 2016 (arXiv 1511.06581): the state's value, and advantages without their mean.
    """
    level, tape = kernels.level_number(outputs), kernels.tape_for(outputs)
    followed = tape is None and torch.is_grad_enabled() and outputs.requires_grad
    if level is None or followed or not kernels.plain(outputs) or outputs.dim() != 2 or outputs.shape[1] < 2:
        advantage = outputs[..., 1:]
        return outputs[..., :1] + advantage - advantage.mean(-1, keepdim=True)
    rows, n = outputs.shape[0], outputs.shape[1] - 1
    found = torch.empty(rows, n)
    call(level, "dueling", (outputs, found), (rows, n))

    def back(gradients: Sequence[Tensor | None]) -> Sequence[Tensor]:
        to_outputs = torch.empty(rows, n + 1)
        call(level, "dueling_back", (kernels.contiguous_or_none(gradients[0]), to_outputs), (rows, n))
        return (to_outputs,)

    if tape is not None:
        tape.record((outputs,), (found,), back)
    return found


def choice_error(values: Tensor, action: Tensor, target: Tensor, *, huber: bool) -> tuple[Tensor, Tensor]:
    """Return by how much the value of each choice is above its target, and half the square of that.

    Args:
        values: `[rows, n]`.
        action: the choices, int64 `[rows]`.
        target: `[rows]`, without a gradient.
        huber: beyond 1 the loss is linear (Huber 1964, doi 10.1214/aoms/1177703732).

    Returns:
        The error `[rows]`, detached, and the loss `[rows]`.
    """
    tape, level = kernels.tape_for(values), kernels.level_number(values)
    is_plain = kernels.plain(values) and kernels.plain(target) and action.is_contiguous()
    if tape is None or level is None or not (is_plain and target.shape == action.shape == values.shape[:1]):
        error = values.gather(-1, action.unsqueeze(-1)).squeeze(-1) - target
        # The gradient of either loss is the slope: detached, it makes their product's.
        slope = (error.clamp(-1.0, 1.0) if huber else error).detach()
        return error.detach(), slope * (error - 0.5 * slope)
    rows, n = values.shape
    error, slope, found = (torch.empty(rows) for _ in range(3))
    call(level, "choice_error", (values, action, target, error, slope, found), (rows, n), (huber,))

    def back(gradients: Sequence[Tensor | None]) -> Sequence[Tensor]:
        to_values = torch.empty(rows, n)
        tensors = (kernels.contiguous_or_none(gradients[0]), slope, action, to_values)
        call(level, "choice_error_back", tensors, (rows, n))
        return (to_values,)

    tape.record((values,), (found,), back)
    return error, found
