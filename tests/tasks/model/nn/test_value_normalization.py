"""Normalised value targets: mean 0 and deviation 1, by moments that NumPy agrees with, and back again."""

import numpy as np
import pytest
import torch

from penstock.tasks.model.nn.value_normalization import ValueNormalizer
from penstock.tasks.specs import State


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
