"""Networks of several agents: their inputs by hand, and memories that are each agent's alone."""

import pytest
import torch

from penstock.native.kernel_level import LEVELS, use_level
from penstock.tasks.model.nn.agent_networks import AgentNetwork, agent_inputs, agent_means, present_agents
from penstock.tasks.model.nn.distributions import choice_probability, choose, with_fixed_choice
from penstock.tasks.model.nn.network import Network
from penstock.tasks.specs import Leaf, Spec, Trajectory

AGENTS, NUMBERS, WIDTH = 3, 4, 5


def random(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("level", LEVELS)
def test_inputs_are_the_agents_own_then_the_others_then_the_id(level: str):
    """By hand, with two agents of three; the same bytes at every level."""
    features = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]])
    with use_level(level):
        central = agent_inputs(features, range(1, 3), central=True, gives_id=True)
        own = agent_inputs(features, range(1, 3), central=False, gives_id=True)
        alone = agent_inputs(features, range(3), central=False, gives_id=False)
        sequence = agent_inputs(features.expand(2, 4, AGENTS, 2), range(3), central=True, gives_id=False)
    assert central.tolist() == [[[3, 4, 5, 6, 1, 2, 0, 1, 0], [5, 6, 1, 2, 3, 4, 0, 0, 1]]]
    assert own.tolist() == [[[3, 4, 0, 1, 0], [5, 6, 0, 0, 1]]]
    assert torch.equal(alone, features)
    assert sequence.shape == (2, 4, AGENTS, 6)
    assert sequence[1, 3, 0].tolist() == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("level", LEVELS)
def test_an_agent_that_has_left_is_zeros_and_gets_its_id_alone(level: str):
    """By hand, in rows and in sequences, whatever its features are; where all are there, nothing changes."""
    features = torch.tensor([[[1.0, 2.0], [torch.nan, torch.inf], [5.0, 6.0]]])
    present = torch.tensor([[1.0, 0.0, 1.0]])
    with use_level(level):
        central = agent_inputs(features, range(3), central=True, gives_id=True, present=present)
        own = agent_inputs(features, range(1, 3), central=False, gives_id=False, present=present)
        sequence = agent_inputs(
            features.repeat(2, 4, 1, 1), range(1, 2), central=True, gives_id=True, present=present.repeat(2, 4, 1)
        )
        whole = random(6, AGENTS, NUMBERS)
        for is_central in (True, False):
            found = agent_inputs(whole, range(1, 3), central=is_central, gives_id=True, present=torch.ones(6, AGENTS))
            assert torch.equal(found, agent_inputs(whole, range(1, 3), central=is_central, gives_id=True))
    assert central.tolist() == [[[1, 2, 0, 0, 5, 6, 1, 0, 0], [0, 0, 0, 0, 0, 0, 0, 1, 0], [5, 6, 1, 2, 0, 0, 0, 0, 1]]]
    assert own.tolist() == [[[0, 0], [5, 6]]]
    assert torch.equal(sequence, torch.tensor([0.0] * 6 + [0, 1, 0]).expand(2, 4, 1, 9))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("central", [True, False])
def test_who_is_present_may_be_told_in_any_layout(level: str, central: bool):
    """Flags of another type, of another shape that fits, or not contiguous give what whole float32 ones give."""
    features, there = random(6, AGENTS, NUMBERS), torch.tensor([1.0, 0.0, 1.0])
    whole = there.repeat(6, 1)
    others = {
        "bool": whole.bool(), "uint8": whole.byte(), "int64": 5 * whole.long(), "float64": whole.double(),
        "one row": there, "a row of rows": there[None], "expanded": there.expand(6, AGENTS),
        "transposed": whole.T.contiguous().T,
    }  # fmt: skip
    with use_level(level):
        expected = agent_inputs(features, range(3), central=central, gives_id=True, present=whole)
        for name, present in others.items():
            found = agent_inputs(features, range(3), central=central, gives_id=True, present=present)
            assert torch.equal(found, expected), name
    assert not expected[:, 1, :-AGENTS].any()
    assert expected[:, 0, :NUMBERS].all()


def test_an_agent_that_is_allowed_nothing_has_left():
    """It may take choice 0 alone, which has probability 1, entropy 0 and no gradient; the others' masks stay."""
    allowed = torch.tensor([[[True, False, True], [False, False, False]], [[False, True, False], [True, True, True]]])
    present, fixed = present_agents(allowed), with_fixed_choice(allowed)
    assert present is not None
    assert present.tolist() == [[1, 0], [1, 1]]
    assert present_agents(None) is None
    assert fixed[0, 1].tolist() == [True, False, False]
    assert torch.equal(fixed[present != 0], allowed[present != 0])
    logits = random(2, 2, 3).requires_grad_()
    action, acted = choose(logits, 5 * random(2, 2, 3, seed=2), fixed)
    log_probability, entropy = choice_probability(logits, action, fixed)
    assert (action[0, 1], acted[0, 1], log_probability[0, 1], entropy[0, 1]) == (0, 0, 0, 0)
    (gradient,) = torch.autograd.grad((2 * log_probability + entropy).sum(), logits)
    assert not gradient[0, 1].any()
    assert gradient[1, 1].all()


@pytest.mark.parametrize("level", LEVELS)
def test_means_are_over_steps_and_agents(level: str):
    """One number a training row, whether rows are steps or sequences."""
    values = random(6, 4, AGENTS)
    with use_level(level):
        torch.testing.assert_close(agent_means(values), values.mean((1, 2)))
        torch.testing.assert_close(agent_means(values[:, 0]), values[:, 0].mean(1))


def test_agents_with_memories_are_as_rows_of_one_network():
    """A round at once, sequences of it, step by step: outputs are those of the network for each agent alone."""
    network = Network("recurrent", Spec("float32", (NUMBERS,)), WIDTH, (8,))
    params, team = network.init(2, 1.0, torch.Generator().manual_seed(3)), AgentNetwork(network)
    steps, envs = 6, 4
    inputs, memory = random(steps, envs, AGENTS, NUMBERS), random(envs, AGENTS, WIDTH, seed=2)
    flags = torch.zeros(2, steps, envs, dtype=torch.uint8)
    flags[0, 2, 2] = flags[1, 3, 1] = 1
    rows = torch.tensor([10, 13, 20, 21, 22, 23])
    final = random(len(rows), AGENTS, NUMBERS, seed=4)
    trajectory = Trajectory({"terminated": flags[0], "truncated": flags[1]}, rows, final)
    found, found_final = team.over_round(params, trajectory, inputs.flatten(0, 1), final, memory)
    assert (found.shape, found_final.shape) == ((steps, envs, AGENTS, 2), (len(rows), AGENTS, 2))
    for env in range(envs):
        for agent in range(AGENTS):
            state = memory[env, agent][None]
            for step in range(steps):
                output, state = network.step(params, state, inputs[step, env, agent][None])
                torch.testing.assert_close(found[step, env, agent], output[0])
                row = step * envs + env
                if row in rows.tolist():
                    place = rows.tolist().index(row)
                    last, _ = network.step(params, state, final[place, agent][None])
                    torch.testing.assert_close(found_final[place, agent], last[0])
                if flags[:, step, env].any():
                    state = torch.zeros_like(state)
    fresh = torch.zeros(envs, steps)
    fresh[2, 3] = fresh[1, 4] = 1
    whole = team.over_rows(params, inputs.transpose(0, 1), memory, fresh)
    torch.testing.assert_close(whole.transpose(0, 1), found)
    stepped, state = team.step(params, memory, inputs[0])
    torch.testing.assert_close(stepped, found[0])
    assert state is not None
    assert state.shape == memory.shape


@pytest.mark.parametrize("central", [True, False])
def test_an_encoder_is_applied_once_to_each_agent(central: bool):
    """Inputs are made of encoded observations as of others, gradients pass, and zeros stand for agents that left."""
    leaves = (Leaf("position", "numbers", "float32", (2,)), Leaf("camera", "image", "uint8", (4, 4)))
    encoder = Network("leaves", Spec("float32", (18,), leaves=leaves), WIDTH, ())
    numbers = encoder.encoded_size * (AGENTS if central else 1) + AGENTS
    head = Network("mlp", Spec("float32", (numbers,)), WIDTH, (8,))
    team = AgentNetwork(head, encoder, central=central, gives_id=True)
    params = team.init(2, 1.0, torch.Generator().manual_seed(3))
    assert {name.partition(".")[0] for name in params} == {"body", "0", "1"}
    seen, present = random(6, AGENTS, 18), torch.tensor([1.0, 1.0, 0.0]).expand(6, AGENTS)
    encoded = torch.stack([encoder.encoded(params, seen[:, agent]) for agent in range(AGENTS)], 1)
    for there in (None, present):
        inputs = team.inputs(params, seen, range(1, 3), there)
        expected = agent_inputs(encoded, range(1, 3), central=central, gives_id=True, present=there)
        assert inputs.shape == (6, 2, numbers)
        torch.testing.assert_close(inputs, expected)
    weights = {name: value.requires_grad_() for name, value in params.items()}
    inputs = team.inputs(weights, seen, range(1, 3), present)
    gradients = torch.autograd.grad(team.step(weights, None, inputs)[0].sum(), weights.values())
    assert all(gradient.abs().max() > 0 for gradient in gradients)
