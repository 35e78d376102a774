"""Perceptrons as functions: the right numbers, the right start, and no randomness but the given one."""

import math

import pytest
import torch

from penstock.tasks.model.nn.layers import init_mlp, mlp


def generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("sizes", [(3, 2), (3, 8, 2), (4, 16, 8, 1)])
def test_it_computes_what_torchs_modules_compute(sizes: tuple[int, ...]):
    """Linear layers with tanh between them, and none after the last."""
    params = init_mlp(sizes, 1.0, generator())
    for name, value in params.items():
        if name.endswith(".bias"):
            value.copy_(torch.randn(value.shape, generator=generator(2)))
    modules: list[torch.nn.Module] = []
    for layer in range(len(sizes) - 1):
        linear = torch.nn.Linear(sizes[layer], sizes[layer + 1])
        with torch.no_grad():
            linear.weight.copy_(params[f"{layer}.weight"])
            linear.bias.copy_(params[f"{layer}.bias"])
        modules += [linear, torch.nn.Tanh()]
    reference = torch.nn.Sequential(*modules[:-1])
    inputs = 5 * torch.randn(7, sizes[0], generator=generator(3))
    with torch.no_grad():
        torch.testing.assert_close(mlp(params, inputs), reference(inputs))


def test_more_than_ten_layers_keep_their_order():
    """Layers are found by number: the tenth comes after the ninth."""
    params = init_mlp((2,) * 13, 1.0, generator())
    hidden = inputs = torch.randn(3, 2, generator=generator(2))
    for layer in range(12):
        hidden = hidden @ params[f"{layer}.weight"].T + params[f"{layer}.bias"]
        hidden = torch.tanh(hidden) if layer < 11 else hidden
    torch.testing.assert_close(mlp(params, inputs), hidden)


def test_weights_start_orthogonal_with_the_given_gains():
    """W W^T is the gain squared on the diagonal; biases are zero; everything is float32."""
    params = init_mlp((6, 5, 4, 3), 0.01, generator())
    assert {name: tuple(value.shape) for name, value in params.items()} == {
        "0.weight": (5, 6),
        "0.bias": (5,),
        "1.weight": (4, 5),
        "1.bias": (4,),
        "2.weight": (3, 4),
        "2.bias": (3,),
    }
    for layer, gain in enumerate((math.sqrt(2.0), math.sqrt(2.0), 0.01)):
        weight = params[f"{layer}.weight"]
        torch.testing.assert_close(weight @ weight.T, gain**2 * torch.eye(len(weight)), rtol=1e-4, atol=gain**2 * 1e-5)
        assert not params[f"{layer}.bias"].any()
    assert {value.dtype for value in params.values()} == {torch.float32}


def test_the_generator_is_the_only_source_of_randomness():
    """Equal generators give equal weights whatever torch's global state, which is neither read nor moved."""
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = init_mlp((3, 4, 2), 1.0, generator())
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    second = init_mlp((3, 4, 2), 1.0, generator())
    other = init_mlp((3, 4, 2), 1.0, generator(9))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["0.weight"], other["0.weight"])
