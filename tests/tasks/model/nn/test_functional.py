"""Modules of torch as functions of parameters: the right numbers, gradients, and nothing kept in the module."""

import pytest
import torch
from torch import Tensor, nn

from penstock.tasks.model.nn.functional import module_call, module_parameters, seeded_module
from penstock.tasks.specs import ParameterGroup


def make() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.ELU(), nn.Linear(4, 2))


def inputs() -> Tensor:
    return torch.randn(5, 3, generator=torch.Generator().manual_seed(2))


def test_it_computes_what_the_module_computes():
    """With a module's own parameters, and with others, as the module that has those."""
    one, two = seeded_module(make, 1), seeded_module(make, 2)
    for module in (one, two):
        assert torch.equal(module_call(one, module_parameters(module), inputs()), module(inputs()))


def test_gradients_reach_the_group_and_never_the_module():
    """A loss is differentiated by the parameter group; an update of its vector shows, and the module stays."""
    module = seeded_module(make, 1)
    group = ParameterGroup(module_parameters(module))
    before = module(inputs()).detach()
    reference = torch.autograd.grad(module(inputs()).sum(), list(module.parameters()))
    found = torch.autograd.grad(module_call(module, group, inputs()).sum(), group.leaves)
    for one, two in zip(found, reference, strict=True):
        torch.testing.assert_close(one, two)
    with torch.no_grad():
        group.flat.zero_()
    assert not module_call(module, group, inputs()).any()
    assert torch.equal(module(inputs()), before)


def test_weights_follow_from_the_seed_alone():
    """Whatever was drawn before; and torch's global generator is not moved."""
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = module_parameters(seeded_module(make, 7))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    second, other = module_parameters(seeded_module(make, 7)), module_parameters(seeded_module(make, 8))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["0.weight"], other["0.weight"])


def test_a_module_is_used_in_evaluation_mode():
    """Dropout would be random numbers that no seed governs: modules are put into evaluation mode."""
    module = seeded_module(lambda: nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5)), 1)
    params = module_parameters(module)
    assert torch.equal(module_call(module, params, inputs()), module_call(module, params, inputs()))


def test_a_module_with_buffers_is_refused():
    """Running means would change outside of what is stored."""
    with pytest.raises(ValueError, match=r"Sequential keeps 1\.running_mean, .*LayerNorm or GroupNorm"):
        seeded_module(lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), 1)


def test_other_parameter_names_are_refused():
    """A parameter too few or too many is not passed over."""
    module = seeded_module(make, 1)
    params = module_parameters(module)
    with pytest.raises(RuntimeError, match=r"3\.bias"):
        module_call(module, {name: value for name, value in params.items() if name != "3.bias"}, inputs())
    with pytest.raises(RuntimeError, match="other"):
        module_call(module, {**params, "other": torch.zeros(1)}, inputs())


def test_reduced_weights_are_taken():
    """Weights of a reduced snapshot may be bfloat16; the module computes in its own type."""
    module = seeded_module(make, 1)
    params = module_parameters(module)
    reduced = {name: value.bfloat16() if value.dim() > 1 else value for name, value in params.items()}
    found = module_call(module, reduced, inputs())
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, module(inputs()), rtol=0.05, atol=0.05)
