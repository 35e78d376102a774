"""Networks of several agents: their inputs by hand, and memories that are each agent's alone."""

import pytest
import torch

from penstock.native.kernel_level import LEVELS, use_level
from penstock.tasks.model.nn.agent_networks import AgentNetwork, agent_inputs, agent_means
from penstock.tasks.model.nn.network import Network
from penstock.tasks.specs import Spec, Trajectory

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
