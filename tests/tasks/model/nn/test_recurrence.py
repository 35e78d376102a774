"""The recurrent core against torch's own cell, and against itself, step by step, where episodes end."""

import torch
from torch import Tensor

from penstock.tasks.model.nn.layers import gru, gru_sequence, init_gru


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def core(inputs: int = 3, width: int = 5) -> dict[str, Tensor]:
    params = init_gru(inputs, width, torch.Generator().manual_seed(1))
    params["input.bias"].copy_(random(3 * width, seed=2))
    params["memory.bias"].copy_(random(3 * width, seed=3))
    return params


def test_a_step_is_that_of_torchs_cell():
    """The same weights and biases, in the same order of gates."""
    params = core()
    cell = torch.nn.GRUCell(3, 5)
    names = {
        "weight_ih": "input.weight",
        "bias_ih": "input.bias",
        "weight_hh": "memory.weight",
        "bias_hh": "memory.bias",
    }
    cell.load_state_dict({theirs: params[ours] for theirs, ours in names.items()})
    carry, inputs = random(4, 5, seed=4), random(4, 3, seed=5)
    with torch.no_grad():
        torch.testing.assert_close(gru(params, carry, inputs), cell(inputs, carry))


def test_a_sequence_is_its_steps_with_the_memory_emptied_at_an_episodes_start():
    """Acting step by step, with the carry started anew where an episode begins, gives the same; so learning can."""
    params = core()
    carry, inputs = random(2, 5, seed=4), random(6, 2, 3, seed=5)
    fresh = torch.tensor([[0, 1], [0, 0], [1, 0], [0, 0], [0, 1], [1, 0]], dtype=torch.uint8)
    outputs, last = gru_sequence(params, carry, inputs, fresh)
    memory = carry
    for step in range(6):
        memory = torch.where(fresh[step].bool().unsqueeze(-1), torch.zeros_like(memory), memory)
        memory = gru(params, memory, inputs[step])
        torch.testing.assert_close(outputs[step], memory)
    assert torch.equal(last, outputs[-1])


def test_nothing_leaks_into_the_next_episode():
    """Neither numbers nor gradients cross an episode's start."""
    params = core()
    carry = random(1, 5, seed=4).requires_grad_()
    inputs = random(4, 1, 3, seed=5).requires_grad_()
    fresh = torch.tensor([[0], [0], [1], [0]])
    outputs, _ = gru_sequence(params, carry, inputs, fresh)
    by_carry, by_inputs = torch.autograd.grad(outputs[2:].sum(), [carry, inputs])
    assert not by_carry.any()
    assert not by_inputs[:2].any()
    assert by_inputs[2:].any()


def test_any_row_can_be_the_start_with_its_stored_memory():
    """The second half, from the memory before it, is what the whole gives there."""
    params = core()
    carry, inputs, fresh = random(2, 5, seed=4), random(6, 2, 3, seed=5), torch.zeros(6, 2)
    fresh[4, 1] = 1
    whole, _ = gru_sequence(params, carry, inputs, fresh)
    half, _ = gru_sequence(params, whole[2], inputs[3:], fresh[3:])
    torch.testing.assert_close(half, whole[3:])


def test_gates_start_orthogonal_by_the_generator_alone():
    """Each gate's square matrix keeps lengths; biases are zero."""
    params = init_gru(3, 5, torch.Generator().manual_seed(1))
    for gate in params["memory.weight"].split(5):
        torch.testing.assert_close(gate @ gate.T, torch.eye(5))
    assert not params["input.bias"].any()
    again = init_gru(3, 5, torch.Generator().manual_seed(1))
    assert all(torch.equal(params[name], again[name]) for name in params)
