"""Errors of values: torch's own Huber loss, the pessimistic bound of clipped values, and their gradients."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import huber_loss

from penstock.native.kernel_level import LEVELS, use_level
from penstock.tasks.model.algorithms.contract import Loss
from penstock.tasks.model.nn.value_losses import limited_value_error
from penstock.tasks.roles.learning.gradients import minibatch_gradient
from penstock.tasks.specs import ParameterGroup, State

ROWS = 400
SETTINGS = [(0.0, 0.0), (0.5, 0.0), (0.0, 0.3), (0.5, 0.3), (10.0, 0.2)]


def expected_error(value: Tensor, target: Tensor, before: Tensor, delta: float, clip: float) -> Tensor:
    """The loss as its papers state it, by torch's own functions."""

    def error(estimate: Tensor) -> Tensor:
        if delta:
            return huber_loss(estimate, target, reduction="none", delta=delta)
        return 0.5 * (estimate - target) ** 2

    if not clip:
        return error(value)
    return torch.max(error(value), error(torch.max(torch.min(value, before + clip), before - clip)))


def numbers() -> tuple[Tensor, Tensor, Tensor]:
    """Values before the first minibatch, how far they have moved, and targets."""
    generator = torch.Generator().manual_seed(1)
    before, moved, target = (torch.randn(ROWS // 2, 2, generator=generator) for _ in range(3))
    return before, 0.5 * moved, target


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("delta", "clip"), SETTINGS)
def test_errors_and_gradients_are_those_of_the_formula(delta: float, clip: float, level: str):
    """At every level of the kernels: by torch's autograd of the formula, on either side of each limit."""
    before, moved, target = numbers()
    group = ParameterGroup({"moved": moved})
    rows = {"before": before, "target": target}
    found: list[Tensor] = []

    def loss(params, batch):
        values = (batch["before"] + params["net"]["moved"]).unsqueeze(-1)
        error = limited_value_error(values, batch["target"], batch["before"], huber_delta=delta, clip_range=clip)
        found.append(error.detach().clone())
        return batch.mean(error), {}

    with use_level(level):
        gradient, _ = minibatch_gradient(Loss("value", "net", loss), State(params={"net": group}), rows, {}, ROWS)
    leaf = moved.clone().requires_grad_()
    error = expected_error(before + leaf, target, before, delta, clip)
    torch.testing.assert_close(found[0], error.detach())
    torch.testing.assert_close(gradient, torch.autograd.grad(error.mean(), leaf)[0].reshape(-1))
    if clip:
        free = expected_error(before + moved, target, before, delta, 0.0)
        assert (error.detach() > free).any()
        assert (gradient == 0).any()
    if delta == 0.5:
        assert ((before + moved - target).abs() > delta).any()


def test_a_clip_range_needs_the_values_before():
    """Otherwise it would be ignored."""
    with pytest.raises(ValueError, match=r"clip_range = 0.2 without values before"):
        limited_value_error(torch.zeros(3, 1), torch.zeros(3), None, huber_delta=0.0, clip_range=0.2)
