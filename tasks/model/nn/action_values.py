"""Values of choices: dueling outputs, and errors of the values of what was chosen. Pure torch.

An algorithm may import this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from penstock.tasks.model.nn import kernels

if TYPE_CHECKING:
    from collections.abc import Sequence


def dueling_values(outputs: Tensor) -> Tensor:
    """Return the values `[..., n]` of choices by a dueling network's outputs `[..., 1 + n]`.

    Equation 9 of Wang et al. 2016 (arXiv 1511.06581): the state's value, and advantages without their mean.
    """
    tape = kernels.tape_for(outputs)
    with torch.set_grad_enabled(tape is None and torch.is_grad_enabled()):
        advantage = outputs[..., 1:]
        found = outputs[..., :1] + advantage - advantage.mean(-1, keepdim=True)

    def back(gradients: Sequence[Tensor | None]) -> Sequence[Tensor]:
        (to_values,) = gradients
        assert to_values is not None
        total = to_values.sum(-1, keepdim=True)
        return (torch.cat((total, to_values - total * (1.0 / to_values.shape[-1])), -1),)

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
    chosen, tape = action.unsqueeze(-1), kernels.tape_for(values)
    with torch.set_grad_enabled(tape is None and torch.is_grad_enabled()):
        error = values.gather(-1, chosen).squeeze(-1) - target
        # The gradient of either loss is the slope: detached, it makes their product's.
        slope = (error.clamp(-1.0, 1.0) if huber else error).detach()
        found = slope * (error - 0.5 * slope)

    def back(gradients: Sequence[Tensor | None]) -> Sequence[Tensor]:
        to_chosen = kernels.times(gradients[0], slope).unsqueeze(-1)
        return (torch.zeros(values.shape).scatter_(-1, chosen, to_chosen),)

    if tape is not None:
        tape.record((values,), (found,), back)
    return error.detach(), found
