"""PPO with one network for policy and value, against PPO with a network each that computes the same outputs."""

from __future__ import annotations

import pytest
import torch

from penstock.tasks.model.algorithms.ppo import PPO
from penstock.tasks.roles.learning.gradients import minibatch_gradient
from penstock.tasks.setup.config.on_policy import PPOSettings
from penstock.tasks.specs import EnvironmentSpec, ParameterGroup, State

from ....support.algorithms.ppo_cases import ENVIRONMENTS, PLAIN, random, rows_of, trajectory

PAIRS = pytest.mark.parametrize("environment", ENVIRONMENTS)


def both(environment: EnvironmentSpec) -> tuple[tuple[PPO, State], tuple[PPO, State]]:
    """A shared network without hidden layers, and two networks that have its outputs' weights."""
    shared, apart = (
        PPO(PPOSettings(hidden=(), entropy_weight=0.01, shared_network=one, value_weight=0.3), environment)
        for one in (True, False)
    )
    state = shared.init(2)
    with torch.no_grad():
        state.params["network"].flat.copy_(random(len(state.params["network"].flat), seed=9))
    whole = {name: value.detach() for name, value in state.params["network"].items()}
    policy = {name: value if name == "log_std" else value[:-1] for name, value in whole.items()}
    value = {name: value[-1:] for name, value in whole.items() if name != "log_std"}
    params = {"policy": ParameterGroup(policy), "value": ParameterGroup(value)}
    return (shared, state), (apart, State(params=params))


@PAIRS
def test_acting_and_targets_are_those_of_two_networks(environment: EnvironmentSpec):
    """The same actions and log-probabilities, and after a round the same advantages and value targets."""
    found = []
    for ppo, state in both(environment):
        with torch.no_grad():
            params = {group: state.params[group] for group in ppo.actor_groups}
            acted, carry = ppo.act(params, None, random(6, 3), random(6, *ppo.noise.shape))
            assert carry is None
            columns = {name: column.unflatten(0, (3, 2)) for name, column in acted.items()}
            found.append({**acted, **ppo.post(state.params, trajectory(**columns))})
    assert found[0].keys() == found[1].keys()
    for name, value in found[0].items():
        torch.testing.assert_close(value, found[1][name], msg=lambda text, name=name: f"{name}: {text}")


@PAIRS
def test_the_loss_is_the_weighted_sum_of_both(environment: EnvironmentSpec):
    """Gradients are those of the surrogate and of `value_weight` times the value's error; outputs are theirs."""
    (shared, state), (apart, separate) = both(environment)
    rows = rows_of(shared, state, 12)
    gradient, outputs = minibatch_gradient(shared.losses[0], state, rows, PLAIN, 5)
    whole = ParameterGroup({name: value.detach() for name, value in state.params["network"].items()})
    whole.flat.copy_(gradient)
    parts = {}
    for loss in apart.losses:
        gradient, found = minibatch_gradient(loss, separate, rows, PLAIN, 5)
        group = separate.params[loss.group]
        with torch.no_grad():
            group.flat.copy_(gradient)
        parts[loss.group] = {name: value.detach() for name, value in group.items()}
        for name, value in found.items():
            torch.testing.assert_close(outputs.pop(name), value)
    assert not outputs
    for name, value in whole.items():
        expected = parts["policy"][name]
        if name != "log_std":
            expected = torch.cat([expected, shared.settings.value_weight * parts["value"][name]])
        torch.testing.assert_close(value.detach(), expected, rtol=1e-4, atol=1e-6)


@PAIRS
def test_it_starts_as_two_networks_do(environment: EnvironmentSpec):
    """The policy's outputs near zero, the value's of the size of its inputs; actors get one group."""
    ppo = PPO(PPOSettings(shared_network=True), environment)
    params = ppo.init(4).params
    weight = params["network"]["2.weight"].detach()
    norms = weight.norm(dim=1)
    torch.testing.assert_close(norms[:-1], torch.full_like(norms[:-1], 0.01), rtol=1e-4, atol=1e-6)
    assert norms[-1].item() == pytest.approx(1.0, rel=1e-4)
    assert ppo.actor_groups == ("network",)
    assert tuple(params) == ("network",)
