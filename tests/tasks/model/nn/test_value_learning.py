"""Normalised targets by NumPy's moments, and errors of values by torch's own functions, with their gradients."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import huber_loss

from penstock.native.kernel_level import LEVELS, use_level
from penstock.tasks.model.algorithms.contract import Loss
from penstock.tasks.model.nn.value_learning import ValueNormalizer, limited_value_error
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


# Normalised targets


def rounds() -> list[torch.Tensor]:
    """Targets of three rounds of different sizes, whose mean and spread change."""
    generator = torch.Generator().manual_seed(1)
    sizes = [(40, 3), (64, 3), (16, 3)]
    return [torch.randn(*size, generator=generator) * (2.0 + n) - 30.0 * n for n, size in enumerate(sizes)]


def after(normalizer: ValueNormalizer, targets: list[torch.Tensor], parts: int) -> State:
    """The state after some rounds, each added up over as many parts."""
    state = State(params={})
    normalizer.init(state)
    for each in targets:
        sums = [normalizer.sums(part) for part in each.tensor_split(parts)]
        normalizer.update(state, {name: torch.stack([one[name] for one in sums]).sum(0) for name in sums[0]})
    return state


@pytest.mark.parametrize("decay", [1.0, 0.6])
def test_moments_are_weighted_means_of_all_targets(decay: float):
    """A row of k rounds ago has the weight decay ** k, and the weights are divided by their sum: that is debiased."""
    normalizer, targets = ValueNormalizer(decay=decay), rounds()
    state = after(normalizer, targets, parts=1)
    values = np.concatenate([each.double().numpy().ravel() for each in targets])
    ages = np.repeat([2, 1, 0], [each.numel() for each in targets])
    mean = np.average(values, weights=decay**ages)
    deviation = np.sqrt(np.average((values - mean) ** 2, weights=decay**ages))
    expected = (targets[1].double().numpy() - mean) / deviation
    np.testing.assert_allclose(normalizer.normalized(state.params, targets[1]).numpy(), expected, rtol=1e-4, atol=1e-4)


def test_moments_do_not_depend_on_how_rows_are_split():
    """Sums over tiles and learners add up."""
    whole, parts = (after(ValueNormalizer(decay=0.9), rounds(), parts=parts) for parts in (1, 5))
    for name, value in whole.targets.items():
        torch.testing.assert_close(parts.targets[name], value, rtol=1e-12, atol=0)


def test_restored_values_are_those_before():
    """Far from the mean as well: nothing is clipped. Before the first round values are in their own units."""
    normalizer, targets = ValueNormalizer(), rounds()
    state = after(normalizer, targets, parts=1)
    far = torch.tensor([[-4000.0, 0.0, 5000.0]])
    torch.testing.assert_close(normalizer.restored(state.params, normalizer.normalized(state.params, far)), far)
    assert normalizer.normalized(state.params, far).abs().max() > 10
    fresh = after(normalizer, [], parts=1)
    assert torch.equal(normalizer.restored(fresh.params, far), far)
    assert torch.equal(normalizer.normalized(fresh.params, far), far)


def test_without_it_nothing_changes():
    """The state has nothing of it, and values stay as they are."""
    normalizer, targets = ValueNormalizer(enabled=False), rounds()[0]
    state = after(normalizer, [], parts=1)
    assert (state.params, state.targets, normalizer.sums(targets)) == ({}, {}, {})
    assert normalizer.normalized(state.params, targets) is targets
    assert normalizer.restored(state.params, targets) is targets
