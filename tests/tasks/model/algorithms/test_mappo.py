"""MAPPO and IPPO: each agent's inputs and rewards; rows, minibatch parts and seeds are as with one agent."""

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, Normal

from penstock import native
from penstock.tasks.model.algorithms.mappo import MAPPO
from penstock.tasks.roles.learning.window import RoundWindow
from penstock.tasks.setup.config.on_policy import IPPOSettings, MAPPOSettings
from penstock.tasks.specs import Batch, EnvironmentSpec, LossInputs, State, Trajectory

from ....support.algorithms.ppo_cases import random

ENVS, STEPS, AGENTS = 4, 6, 3
STATS = {"count": 1.0, "advantage": 0.0, "advantage_square": 1.0}


def made(name: str = "simple_spread_v3", *, central: bool = True, **settings: object) -> MAPPO:
    pool = native.make(name, 1)
    environment = EnvironmentSpec.from_pool(name, dict(pool.environment))
    kind = MAPPOSettings if central else IPPOSettings
    return MAPPO(kind(hidden=(16,), **settings), environment)  # type: ignore[arg-type]


KINDS = [
    pytest.param(made(), id="mappo"),
    pytest.param(made(central=False), id="ippo"),
    pytest.param(made("simple_spread_continuous_v3"), id="continuous"),
]
APART = [
    pytest.param(made(shared_parameters=False), id="mappo-apart"),
    pytest.param(made(shared_parameters=False, central=False), id="ippo-apart"),
    pytest.param(made("simple_spread_continuous_v3", shared_parameters=False), id="continuous-apart"),
]
"""Agents with networks of their own."""


def round_of(mappo: MAPPO, state: State, seed: int = 0) -> Trajectory:
    """A round as actors store it: the second environment's episode is truncated at step 2, the third's terminated."""
    observation = random(STEPS, ENVS, AGENTS, 18, seed=seed)
    with torch.no_grad():
        noise = random(STEPS, ENVS, *mappo.noise.shape, seed=seed + 1)
        acted = [mappo.act(state.params, None, observation[step], noise[step])[0] for step in range(STEPS)]
    columns = {name: torch.stack([rows[name] for rows in acted]) for name in mappo.rows}
    flags = torch.zeros(2, STEPS, ENVS, dtype=torch.uint8)
    flags[0, 2, 2] = flags[1, 2, 1] = 1
    columns |= {"observation": observation, "reward": random(STEPS, ENVS, AGENTS, seed=seed + 2)}
    columns |= {"terminated": flags[0], "truncated": flags[1]}
    rows = torch.tensor([9, 10, 20, 21, 22, 23])
    return Trajectory(columns, rows, random(len(rows), AGENTS, 18, seed=seed + 3))


def logits_of(mappo: MAPPO, policy: Mapping[str, Tensor], features: Tensor) -> Tensor:
    """Outputs of a shared policy `[..., agents, outputs]` for what all agents observe."""
    policies = mappo._policies
    return policies.network.step(policy, None, policies.inputs(policy, features, range(AGENTS)))[0]


def values_of(mappo: MAPPO, critic: Mapping[str, Tensor], features: Tensor) -> Tensor:
    """Outputs of a shared critic `[..., agents]`."""
    critics = mappo._critics
    return critics.network.step(critic, None, critics.inputs(critic, features, range(AGENTS)))[0].squeeze(-1)


def batch_of(mappo: MAPPO, state: State) -> Batch:
    with torch.no_grad():
        return mappo.post(state.params, round_of(mappo, state))


@pytest.mark.parametrize("mappo", KINDS + APART)
def test_rows_and_noise_are_as_declared(mappo: MAPPO):
    """The rows that `act` returns fit the columns of a shard, an action and a log-probability for each agent."""
    acted, carry = mappo.act(mappo.init(1).params, None, random(5, AGENTS, 18), random(5, *mappo.noise.shape))
    assert carry is None
    assert acted.keys() == mappo.rows.keys()
    for name, spec in mappo.rows.items():
        assert (str(acted[name].dtype), tuple(acted[name].shape)) == (f"torch.{spec.dtype}", (5, *spec.shape))
    assert mappo.rows["log_probability"].shape == (AGENTS,)


@pytest.mark.parametrize("mappo", KINDS + APART)
def test_an_agent_acts_by_its_own_observation_alone(mappo: MAPPO):
    """Acting is decentralised, whatever the critic sees, and row-wise; zero noise gives the likeliest action."""
    params, observation = mappo.init(1).params, random(5, AGENTS, 18)
    zero = torch.zeros(5, *mappo.noise.shape)
    whole, _ = mappo.act(params, None, observation, zero)
    changed = observation.clone()
    changed[:, 1:] += 1.0
    changed[0] += 1.0
    other, _ = mappo.act(params, None, changed, zero)
    for name, column in whole.items():
        assert torch.equal(other[name][1:, 0], column[1:, 0]), name
    assert any(not torch.equal(other[name][1:, 1:], column[1:, 1:]) for name, column in whole.items())
    noisy, _ = mappo.act(params, None, observation, 3 * random(5, *mappo.noise.shape))
    assert (noisy["log_probability"] <= whole["log_probability"]).all()


@pytest.mark.parametrize("mappo", KINDS)
def test_log_probabilities_are_those_of_torchs_distributions(mappo: MAPPO):
    """When acting, and when learning: in the first minibatch no ratio differs from 1, and entropies are torch's."""
    state = mappo.init(1)
    batch = batch_of(mappo, state)
    output = logits_of(mappo, state.params["policy"], batch["observation"])
    if mappo.environment.action.kind == "discrete":
        expected: Categorical | Normal = Categorical(logits=output)
        log_probability, entropy = expected.log_prob(batch["action"]), expected.entropy()
    else:
        expected = Normal(output, state.params["policy"]["log_std"].exp())
        log_probability, entropy = expected.log_prob(batch["action"]).sum(-1), expected.entropy().sum(-1)
    torch.testing.assert_close(batch["log_probability"], log_probability.detach())
    _, outputs = mappo.losses[0].function(state.params, LossInputs(batch, STEPS * ENVS, STATS))
    assert outputs["kl"].max() < 1e-6
    torch.testing.assert_close(outputs["entropy"], entropy.detach().mean(-1))


def test_a_central_critic_sees_all_agents_and_an_independent_one_does_not():
    """With what another agent observes, MAPPO's value of an agent changes and IPPO's does not."""
    for central in (True, False):
        mappo = made(central=central)
        params, features = mappo.init(1).params["value"], random(5, AGENTS, 18)
        changed = features.clone()
        changed[:, 2] += 1.0
        same = torch.isclose(values_of(mappo, params, features), values_of(mappo, params, changed), rtol=0, atol=1e-6)
        assert same.all(0).tolist() == [not central, not central, False]


def test_the_central_critic_gets_the_agents_observation_first():
    """Without ids, agents that swap places swap values: what a critic learns of one holds for all."""
    mappo = made(agent_id=False)
    params, features = mappo.init(1).params["value"], random(5, AGENTS, 18)
    value = values_of(mappo, params, features)
    torch.testing.assert_close(values_of(mappo, params, features.roll(-1, 1)), value.roll(-1, 1))
    with_ids = made()
    params = with_ids.init(1).params["value"]
    same = features[:, :1].expand(5, AGENTS, 18)
    assert not torch.allclose(values_of(with_ids, params, same)[:, 0], values_of(with_ids, params, same)[:, 1])


@pytest.mark.parametrize("team", [True, False])
def test_advantages_are_those_of_each_agent_alone(team: bool):
    """By the plain recursion, over each agent's own values, with its own reward or the mean of all."""
    mappo = made(team_reward=team, reward_scale=0.5, discount=0.9, trace_decay=0.8)
    state = mappo.init(1)
    round_ = round_of(mappo, state)
    columns = {name: value.numpy() for name, value in round_.columns.items()}
    with torch.no_grad():
        batch = mappo.post(state.params, round_)
        value = values_of(mappo, state.params["value"], round_.columns["observation"].flatten(0, 1))
        final = values_of(mappo, state.params["value"], round_.bootstrap_observation).numpy()
    values = value.view(STEPS, ENVS, AGENTS).numpy()
    for env in range(ENVS):
        for agent in range(AGENTS):
            following = 0.0
            for step in reversed(range(STEPS)):
                row = step * ENVS + env
                at = np.flatnonzero(round_.bootstrap_rows.numpy() == row)
                successor = final[at[0], agent] if len(at) else values[step + 1, env, agent]
                terminated, truncated = columns["terminated"][step, env], columns["truncated"][step, env]
                rewards = columns["reward"][step, env]
                reward = 0.5 * (rewards.mean() if team else rewards[agent])
                delta = reward + 0.9 * successor * (1 - terminated) - values[step, env, agent]
                following = delta + 0.9 * 0.8 * following * (not (terminated or truncated))
                assert batch["advantage"][row, agent].item() == pytest.approx(following, rel=1e-4, abs=1e-5)
                target = following + values[step, env, agent]
                assert batch["value_target"][row, agent].item() == pytest.approx(target, rel=1e-4, abs=1e-5)


def test_stats_count_every_agent():
    """Sums of parts of the rows add up to those of the whole, whose mean and variance make advantages alike."""
    mappo = made()
    batch = batch_of(mappo, mappo.init(1))
    parts = [mappo.stats({"advantage": part}) for part in batch["advantage"].split([5, STEPS * ENVS - 5])]
    sums = {name: (parts[0][name] + parts[1][name]).item() for name in parts[0]}
    assert sums["count"] == STEPS * ENVS * AGENTS
    assert sums["advantage"] / sums["count"] == pytest.approx(batch["advantage"].double().mean().item())
    scalar, _ = mappo.losses[0].function(mappo.init(1).params, LossInputs(batch, STEPS * ENVS, sums))
    entropy = mappo.losses[0].function(mappo.init(1).params, LossInputs(batch, STEPS * ENVS, sums))[1]["entropy"].mean()
    # At ratio 1 the surrogate is the mean of normalised advantages, which is 0.
    assert scalar.item() == pytest.approx(-mappo.settings.entropy_weight * entropy.item(), abs=1e-6)


@pytest.mark.parametrize("mappo", KINDS + APART)
def test_parts_of_a_minibatch_add_up(mappo: MAPPO):
    """However learners split the rows: scalars, gradients of the own group alone, and row outputs."""
    state = mappo.init(1)
    batch = batch_of(mappo, state)
    batch["log_probability"] = batch["log_probability"] + 0.3 * random(*batch["log_probability"].shape)
    for loss in mappo.losses:
        leaves = state.params[loss.group].leaves

        def gradients(rows: Batch) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
            scalar, outputs = loss.function(state.params, LossInputs(rows, STEPS * ENVS, STATS))  # noqa: B023
            parts = torch.autograd.grad(scalar, leaves)  # noqa: B023
            return scalar.detach(), torch.cat([part.reshape(-1) for part in parts]), outputs

        whole = gradients(batch)
        parts = [gradients({name: column[cut] for name, column in batch.items()}) for cut in (slice(7), slice(7, None))]
        torch.testing.assert_close(parts[0][0] + parts[1][0], whole[0])
        torch.testing.assert_close(parts[0][1] + parts[1][1], whole[1])
        for name, values in whole[2].items():
            assert (values.shape, values.requires_grad) == ((STEPS * ENVS,), False), name
            torch.testing.assert_close(torch.cat([part[2][name] for part in parts]), values)


def test_a_seed_gives_the_same_state_always():
    """Whatever torch's own generator has drawn; another seed gives another."""
    mappo = made()
    first = {name: group.flat.clone() for name, group in mappo.init(7).params.items()}
    torch.manual_seed(2)
    assert all(torch.equal(mappo.init(7).params[name].flat, flat) for name, flat in first.items())
    assert not torch.equal(mappo.init(8).params["policy"].flat, first["policy"])


@pytest.mark.parametrize("central", [True, False])
def test_rewarded_actions_become_likelier(central: bool):
    """Agents that are paid for moving left, each by its own reward, come to do so; at first one in five does."""
    mappo = made(central=central, team_reward=False, learning_rate=3e-3, discount=0.0, epochs=8)
    state = mappo.init(1)
    for number in range(12):
        round_ = round_of(mappo, state, seed=10 * number)
        round_.columns["reward"] = (round_.columns["action"] == 1).float()
        with torch.no_grad():
            batch = mappo.post(state.params, round_)
            stats = {name: value.item() for name, value in mappo.stats(batch).items()}
        for rows in mappo.plan(torch.Generator().manual_seed(number), RoundWindow.of_round(STEPS * ENVS)):
            minibatch = {name: column[rows] for name, column in batch.items()}
            for loss in mappo.losses:
                scalar, _ = loss.function(state.params, LossInputs(minibatch, len(rows), stats, targets=state.targets))
                parts = torch.autograd.grad(scalar, state.params[loss.group].leaves)
                with torch.no_grad():
                    state = mappo.update(state, loss, torch.cat([part.reshape(-1) for part in parts]))
    chosen = logits_of(mappo, state.params["policy"], random(64, AGENTS, 18, seed=999)).softmax(-1)[..., 1]
    assert chosen.mean() > 0.6


# Agents with networks of their own


@pytest.mark.parametrize("name", ["simple_spread_v3", "simple_spread_continuous_v3"])
@pytest.mark.parametrize("central", [True, False])
def test_networks_of_their_own_that_are_alike_are_as_shared_ones(name: str, central: bool):
    """With the same numbers for every agent: the same actions, advantages and losses, and gradients that add up."""
    own, shared = (made(name, central=central, agent_id=False, shared_parameters=value) for value in (False, True))
    state, one = own.init(1), shared.init(1)
    for group, params in state.params.items():
        params.flat.copy_(one.params[group.rpartition("_")[0]].flat)
    batch, expected = batch_of(own, state), batch_of(shared, one)
    for column, values in expected.items():
        torch.testing.assert_close(batch[column], values)
    batch["log_probability"] = batch["log_probability"] + 0.3 * random(*batch["log_probability"].shape)
    found: dict[str, tuple[Tensor, Tensor]] = {}
    for loss in own.losses:
        scalar, _ = loss.function(state.params, LossInputs(batch, STEPS * ENVS, STATS))
        parts = torch.autograd.grad(scalar, state.params[loss.group].leaves)
        kind, flat = loss.name.rpartition("_")[0], torch.cat([part.reshape(-1) for part in parts])
        before = found.get(kind, (torch.zeros(()), torch.zeros_like(flat)))
        found[kind] = before[0] + scalar.detach() / AGENTS, before[1] + flat / AGENTS
    for loss in shared.losses:
        scalar, _ = loss.function(one.params, LossInputs(batch, STEPS * ENVS, STATS))
        parts = torch.autograd.grad(scalar, one.params[loss.group].leaves)
        torch.testing.assert_close(found[loss.name][0], scalar.detach())
        torch.testing.assert_close(found[loss.name][1], torch.cat([part.reshape(-1) for part in parts]))


@pytest.mark.parametrize("mappo", APART)
def test_no_loss_depends_on_another_agents_networks(mappo: MAPPO):
    """Every agent has two groups and two losses, whose gradients keep their bytes when all other groups change."""
    state, changed = mappo.init(1), mappo.init(2)
    batch = batch_of(mappo, state)
    assert [(loss.group, loss.agents) for loss in mappo.losses] == [
        (f"{kind}_{agent}", (agent,)) for agent in range(AGENTS) for kind in ("policy", "value")
    ]
    assert mappo.actor_groups == ("policy_0", "policy_1", "policy_2")
    networks = [group.flat.numpy().tobytes() for group in state.params.values()]
    assert len(set(networks)) == len(networks), "agents begin differently"
    for loss in mappo.losses:
        params = {**changed.params, loss.group: state.params[loss.group]}
        gradients = [
            torch.autograd.grad(
                loss.function(each, LossInputs(batch, STEPS * ENVS, STATS))[0], state.params[loss.group].leaves
            )
            for each in (state.params, params)
        ]
        assert all(map(torch.equal, *gradients)), loss.name


def test_shared_parameters_are_no_part_of_older_runs():
    """At the default the setting is left out of the identity, so that runs from before it can be resumed."""
    assert "shared_parameters" not in MAPPOSettings().identity()
    assert IPPOSettings(shared_parameters=False).identity()["shared_parameters"] is False
