"""IQL with a memory: against stepping one environment at a time, and that it improves by what was seen before."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from penstock.storage.errors import ConfigError
from penstock.tasks.model.algorithms.iql import IQL
from penstock.tasks.model.nn.layers import gru, mlp, part
from penstock.tasks.roles.learning.gradients import minibatch_gradient
from penstock.tasks.roles.learning.minibatches import rows_of
from penstock.tasks.roles.learning.window import RoundWindow
from penstock.tasks.setup.config.offline import IQLSettings
from penstock.tasks.setup.config.replay import build_replay_config
from penstock.tasks.setup.config.without_effect import settings_without_effect
from penstock.tasks.specs import EnvironmentSpec, LossInputs, State, Trajectory

from ....support.algorithms.ppo_cases import CHOICES
from ....support.algorithms.stored_sequences import (
    BURN_IN,
    ENVS,
    MEMORY,
    SEQUENCE,
    STEPS,
    STRUCTURED,
    VECTORS,
    WIDTH,
    by_sequence,
    cued,
    log_likelihood,
    shown,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

ENVIRONMENTS = [pytest.param(CHOICES, id="choices"), pytest.param(VECTORS, id="vectors")]
ENVIRONMENTS.append(pytest.param(STRUCTURED, id="structured"))
WEIGHTS: dict[str, Any] = {"expectile": 0.8, "inverse_temperature": 4.0, "weight_limit": 1.5, "discount": 0.9}
ROW_OUTPUT = {"value": "value_loss", "policy": "negative_log_likelihood", "critic": "critic_loss"}


def made(environment: EnvironmentSpec = CHOICES, **settings: Any) -> IQL:
    return IQL(IQLSettings(**{**MEMORY, **WEIGHTS, "reward_scale": 0.5, **settings}), environment)


def apart(algorithm: IQL) -> State:
    """A state whose target critics are others than its critics, with numbers that differ much."""
    state, other = algorithm.init(1), algorithm.init(2)
    with torch.no_grad():
        for group in state.params.values():
            group.flat.mul_(2.0)
    return replace(state, targets=other.targets)


def stepped(params: Mapping[str, Tensor], round_: Trajectory, joined: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return outputs `[T, B, n]`, and those of what followed, by one step of one environment at a time.

    Burn-in is from an empty memory, and its result a constant. With `joined`, nothing follows.
    """
    columns, body = round_.columns, part(params, "body.")
    after = {int(row): at for row, at in zip(round_.bootstrap_rows, round_.bootstrap_observation, strict=True)}
    ended = (columns["terminated"] | columns["truncated"]) != 0
    outputs = [[torch.zeros(())] * ENVS for _ in range(STEPS)]
    following = [[torch.zeros(())] * ENVS for _ in range(STEPS)]
    for env in range(ENVS):
        for start in range(0, STEPS, SEQUENCE):
            memory = torch.zeros(1, WIDTH)
            for step in range(max(0, start - BURN_IN), start + SEQUENCE):
                if step and ended[step - 1, env]:
                    memory = torch.zeros(1, WIDTH)
                memory = memory.detach() if step <= start else memory
                memory = gru(body, memory, columns["observation"][step, env : env + 1])
                if step < start:
                    continue
                inputs = memory if joined is None else torch.cat([memory, joined[step, env : env + 1]], -1)
                outputs[step][env] = mlp(params, inputs, torch.tanh, 2)[0]
                if joined is None:
                    seen = after.get(step * ENVS + env)
                    seen = columns["observation"][step + 1, env] if seen is None else seen
                    following[step][env] = mlp(params, gru(body, memory, seen.unsqueeze(0)), torch.tanh, 2)[0]
    return torch.stack([torch.stack(row) for row in outputs]), torch.stack([torch.stack(row) for row in following])


def worth(environment: EnvironmentSpec, critic: Mapping[str, Tensor], round_: Trajectory) -> Tensor:
    """Return both critics' values of the stored actions, `[T, B, 2]`."""
    action = round_.columns["action"]
    twins = [part(critic, twin) for twin in ("first.", "second.")]
    if environment is CHOICES:
        return torch.cat([stepped(twin, round_)[0].gather(-1, action.unsqueeze(-1)) for twin in twins], -1)
    if environment is STRUCTURED:
        action = torch.cat([torch.nn.functional.one_hot(action[..., 0].long(), 3), action[..., 1:]], -1)
    return torch.cat([stepped(twin, round_, action)[0] for twin in twins], -1)


def by_hand(algorithm: IQL, state: State, round_: Trajectory) -> dict[str, Tensor]:
    """Return the losses of the paper's equations 5 to 7 by step, `[T, B]`."""
    environment, columns, policy = algorithm.environment, round_.columns, state.params["policy"]
    value, following = (found.squeeze(-1) for found in stepped(state.params["value"], round_))
    advantage = worth(environment, state.targets, round_).amin(-1).detach() - value
    output, _ = stepped(policy, round_)
    likelihood = [
        [log_likelihood(environment, output[t, b], policy.get("log_std"), columns["action"][t, b]) for b in range(ENVS)]
        for t in range(STEPS)
    ]
    weight = (4.0 * advantage.detach()).exp().clamp(max=1.5)
    assert (weight < 1.5).any()
    assert (weight == 1.5).any()
    target = 0.5 * columns["reward"] + 0.9 * (columns["terminated"] == 0) * following.detach()
    errors = worth(environment, state.params["critic"], round_) - target.unsqueeze(-1)
    return {
        "value": torch.where(advantage > 0, 0.8, 0.2) * advantage.square(),
        "policy": -weight * torch.stack([torch.stack(row) for row in likelihood]),
        "critic": errors.square().sum(-1),
    }


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_losses_and_gradients_are_those_of_stepping_one_environment_at_a_time(environment: EnvironmentSpec):
    """Each network has its own memory, emptied where episodes begin; what followed a step has the one after it."""
    algorithm, round_ = made(environment), shown(environment)
    state = apart(algorithm)
    batch = algorithm.post(state.params, round_)
    assert {len(column) for column in batch.values()} == {ENVS * STEPS // SEQUENCE}
    expected = by_hand(algorithm, state, round_)
    for loss in algorithm.losses:
        gradient, outputs = minibatch_gradient(loss, state, batch, {}, 4)
        group = state.params[loss.group]
        wanted = torch.autograd.grad(expected[loss.name].mean(), list(group.values()))
        given = gradient.split([value.numel() for value in group.values()])
        for name, value, by_step in zip(group, given, wanted, strict=True):
            torch.testing.assert_close(value, by_step.flatten(), rtol=1e-3, atol=1e-5, msg=f"{loss.name}: {name}")
        assert all(value.shape == (9,) and not value.requires_grad for value in outputs.values())
        if loss.name != "policy":  # whose output is not weighted
            rows = by_sequence(expected[loss.name].detach()).mean(1)
            torch.testing.assert_close(outputs[ROW_OUTPUT[loss.name]], rows, rtol=1e-4, atol=1e-5)


def test_a_memory_reaches_back_over_the_burn_in_and_no_further():
    """Neither to the steps before it, nor over an episode's begin, nor to memories that a shard holds.

    A critic's sequence also learns from the observation after its last step, unless the episode terminated there.
    """
    algorithm, round_ = made(), shown()
    state = apart(algorithm)

    def losses(changed: Trajectory) -> dict[str, Tensor]:
        inputs = LossInputs(algorithm.post(state.params, changed), 9, targets=state.targets)
        return {
            loss.name: loss.function(state.params, inputs)[1][ROW_OUTPUT[loss.name]].detach()
            for loss in algorithm.losses
        }

    before = losses(round_)

    def moved(changed: Trajectory) -> dict[str, list[tuple[int, int]]]:
        """Return the sequences (number, environment) of which a loss changes."""
        return {
            name: [divmod(row, ENVS) for row in (rows != before[name]).nonzero().flatten().tolist()]
            for name, rows in losses(changed).items()
        }

    for step, own, followed in (
        (0, [(0, 0), (0, 1)], []),
        (1, [(0, 0), (0, 1), (1, 0), (1, 1)], []),
        (4, [(1, 0), (1, 1)], [(0, 0), (0, 1)]),
        (5, [(1, 0), (1, 1), (2, 0), (2, 1)], []),
    ):
        observation = round_.columns["observation"].clone()
        observation[step, :2] += 1.0
        found = moved(replace(round_, columns={**round_.columns, "observation": observation}))
        assert found == {"value": own, "policy": own, "critic": [*followed, *own]}, step
    for at, followed in enumerate([[], [(1, 2)], [(2, 1)], [(2, 0)], [(2, 1)], [(2, 2)]]):
        after = round_.bootstrap_observation.clone()
        after[at] += 1.0
        found = moved(replace(round_, bootstrap_observation=after))
        assert found == {"value": [], "policy": [], "critic": followed}, round_.bootstrap_rows[at]
    without = {name: column for name, column in round_.columns.items() if name != "memory"}
    assert moved(replace(round_, columns=without)) == {name: [] for name in before}


def test_masks_are_those_of_their_steps():
    """Forbidden choices have no probability at their own step of a sequence."""
    algorithm = made()
    state = apart(algorithm)
    batch = algorithm.post(state.params, shown())
    allowed = torch.zeros(*batch["action"].shape, CHOICES.action.n, dtype=torch.bool)
    allowed.scatter_(2, batch["action"].unsqueeze(-1), True)
    allowed[0, 2] = True
    policy = next(loss for loss in algorithm.losses if loss.name == "policy")
    _, outputs = policy.function(state.params, LossInputs({**batch, "allowed": allowed}, 9, targets=state.targets))
    assert (outputs["negative_log_likelihood"] > 0).tolist() == [True] + [False] * 8


@pytest.mark.parametrize(("network", "least", "most"), [("recurrent", 0.95, 1.0), ("mlp", 0.0, 0.7)])
def test_it_improves_by_what_was_seen_before(network: str, least: float, most: float):
    """Stored choices are random, and those that equal a cue of two steps ago are paid; without a memory, by chance."""
    settings = {"network": network, "features": 16, "sequence_steps": 6, "burn_in_steps": 0, "learning_rate": 1e-2}
    settings |= {"weight_limit": 100.0, "inverse_temperature": 10.0, "target_rate": 0.1, "expectile": 0.7}
    algorithm = made(**settings, reward_scale=1.0, minibatch_rows=96, epochs=15)
    state, generator = algorithm.init(1), torch.Generator().manual_seed(1)
    columns, cue = cued(128, generator)
    action, reward = torch.randint(2, (6, 128), generator=generator), torch.zeros(6, 128)
    reward[2], reward[5] = (action[2] == cue[0]).float(), (action[5] == cue[1]).float()
    last = torch.cat([torch.arange(2 * 128, 3 * 128), torch.arange(5 * 128, 6 * 128)])
    stored = Trajectory({**columns, "action": action, "reward": reward}, last, torch.zeros(len(last), 3))
    batch = algorithm.post(state.params, stored)
    for index in algorithm.plan(torch.Generator().manual_seed(1), RoundWindow.of_round(len(batch["action"]))):
        rows = rows_of(batch, index)
        for loss in algorithm.losses:
            gradient, _ = minibatch_gradient(loss, state, rows, {}, 4096)
            with torch.no_grad():
                state = algorithm.update(state, loss, gradient)
        with torch.no_grad():
            state = algorithm.after_minibatch(state)
    new, cue = cued(200, generator)
    carry, noise = algorithm.initial_carry(200), torch.zeros(200, *algorithm.noise.shape)
    for step in range(3):
        with torch.no_grad():
            acted, carry = algorithm.act(state.params, carry, new["observation"][step], noise)
    assert acted.keys() == algorithm.rows.keys(), "the memory is no column of a shard"
    assert least <= float((acted["action"] == cue[0]).float().mean()) <= most


def test_settings_without_a_memory_keep_their_identity_and_wrong_ones_are_refused():
    """Settings of sequences are part of a replay's identity only where they are set."""
    added = {"network", "features", "sequence_steps", "burn_in_steps"}
    assert not added & IQLSettings().identity().keys()
    assert IQLSettings(**MEMORY).identity().keys() >= added
    source: dict[str, Any] = {"source": {"runs": ["any"]}}
    for settings, said in (
        ({**MEMORY, "burn_in_steps": 5}, r"burn_in_steps = 5 is more than algorithm.sequence_steps = 4"),
        ({"burn_in_steps": 5}, r"burn_in_steps = 5: network = 'mlp' has no memory to burn in, expected network = 're"),
        ({"sequence_steps": 0}, r"sequence_steps = 0"),
    ):
        with pytest.raises(ConfigError, match=said):
            build_replay_config({**source, "algorithm": {"name": "iql", **settings}})
    config = build_replay_config({**source, "algorithm": {"name": "iql", "sequence_steps": 8}})
    (line,) = settings_without_effect(config, local_store=True)
    assert "sequence_steps = 8 has no effect: algorithm.network is 'mlp', which has no memory" in line
    config = build_replay_config({**source, "algorithm": {"name": "iql", **MEMORY}})
    assert settings_without_effect(config, local_store=True) == []
