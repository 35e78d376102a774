"""Behaviour cloning with a memory: against stepping one environment at a time, and that it imitates the past's use."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from penstock.storage.errors import ConfigError
from penstock.tasks.model.algorithms.behaviour_cloning import BehaviourCloning
from penstock.tasks.roles.learning.gradients import minibatch_gradient
from penstock.tasks.roles.learning.minibatches import rows_of
from penstock.tasks.roles.learning.window import RoundWindow
from penstock.tasks.setup.config.offline import BehaviourCloningSettings
from penstock.tasks.setup.config.replay import build_replay_config
from penstock.tasks.setup.config.without_effect import settings_without_effect
from penstock.tasks.specs import EnvironmentSpec, LossInputs, Spec, Trajectory

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
    from penstock.tasks.specs import Batch

ENVIRONMENTS = [pytest.param(CHOICES, id="choices"), pytest.param(VECTORS, id="vectors")]
ENVIRONMENTS.append(pytest.param(STRUCTURED, id="structured"))


def made(environment: EnvironmentSpec = CHOICES, **settings: Any) -> BehaviourCloning:
    return BehaviourCloning(BehaviourCloningSettings(**{**MEMORY, **settings}), environment)


def by_hand(algorithm: BehaviourCloning, policy: Any, round_: Trajectory) -> Tensor:
    """Return the negative log-likelihoods `[T, B]`, by one step of one environment at a time; burn-in as constants."""
    columns = round_.columns
    likelihood = [[torch.zeros(())] * ENVS for _ in range(STEPS)]
    for env in range(ENVS):
        for start in range(0, STEPS, SEQUENCE):
            memory = torch.zeros(1, WIDTH)
            for step in range(max(0, start - BURN_IN), start + SEQUENCE):
                if step and (columns["terminated"][step - 1, env] or columns["truncated"][step - 1, env]):
                    memory = torch.zeros(1, WIDTH)
                memory = memory.detach() if step <= start else memory
                seen = columns["observation"][step, env : env + 1]
                output, memory = algorithm._network.step(policy, memory, seen)
                if step >= start:
                    given = output[0], policy.get("log_std"), columns["action"][step, env]
                    likelihood[step][env] = -log_likelihood(algorithm.environment, *given)
    return torch.stack([torch.stack(row) for row in likelihood])


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_the_loss_and_its_gradient_are_those_of_stepping_one_environment_at_a_time(environment: EnvironmentSpec):
    """From an empty memory through the burn-in, emptied where episodes begin; a mean over all steps of the round."""
    algorithm, round_ = made(environment), shown(environment)
    state = algorithm.init(1)
    with torch.no_grad():
        state.params["policy"].flat.mul_(2.0)
    batch = algorithm.post(state.params, round_)
    assert {len(column) for column in batch.values()} == {ENVS * STEPS // SEQUENCE}
    gradient, outputs = minibatch_gradient(algorithm.losses[0], state, batch, {}, 4)
    policy = state.params["policy"]
    expected = by_hand(algorithm, policy, round_)
    wanted = torch.autograd.grad(expected.mean(), list(policy.values()))
    given = gradient.split([value.numel() for value in policy.values()])
    for name, value, by_step in zip(policy, given, wanted, strict=True):
        torch.testing.assert_close(value, by_step.flatten(), rtol=1e-4, atol=1e-6, msg=name)
    rows = by_sequence(expected.detach()).mean(1)
    torch.testing.assert_close(outputs["negative_log_likelihood"], rows, rtol=1e-4, atol=1e-5)


def test_a_memory_reaches_back_over_the_burn_in_and_no_further():
    """Neither to the steps before it, nor over an episode's begin, nor to memories that a shard holds."""
    algorithm, round_ = made(), shown()
    state = algorithm.init(1)

    def losses(changed: Trajectory) -> Tensor:
        batch = algorithm.post(state.params, changed)
        return algorithm.losses[0].function(state.params, LossInputs(batch, 9))[1]["negative_log_likelihood"]

    def moved(step: int) -> list[tuple[int, int]]:
        """Return the sequences (number, environment) that an observation of environments 0 and 1 changes."""
        observation = round_.columns["observation"].clone()
        observation[step, :2] += 1.0
        changed = losses(replace(round_, columns={**round_.columns, "observation": observation}))
        rows = (changed != losses(round_)).nonzero().flatten().tolist()
        return [divmod(row, ENVS) for row in rows]

    assert moved(0) == [(0, 0), (0, 1)], "the second sequence's burn-in begins after it"
    assert moved(1) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert moved(4) == [(1, 0), (1, 1)], "the third sequence's burn-in begins after it"
    assert moved(5) == [(1, 0), (1, 1), (2, 0), (2, 1)]
    ended = round_.columns["terminated"].clone()
    ended[6, 1] = 1
    round_ = replace(round_, columns={**round_.columns, "terminated": ended})
    assert moved(5) == [(1, 0), (1, 1), (2, 0)], "an episode of environment 1 begins after it"
    without = {name: column for name, column in round_.columns.items() if name != "memory"}
    assert torch.equal(losses(replace(round_, columns=without)), losses(round_))


def test_masks_are_those_of_their_steps():
    """Forbidden choices have no probability at their own step of a sequence."""
    environment = replace(CHOICES, observation=Spec("float32", (3,)))
    algorithm = made(environment)
    state = algorithm.init(1)
    batch = algorithm.post(state.params, shown())
    allowed = torch.zeros(*batch["action"].shape, environment.action.n, dtype=torch.bool)
    allowed.scatter_(2, batch["action"].unsqueeze(-1), True)
    allowed[0, 2] = True
    _, outputs = algorithm.losses[0].function(state.params, LossInputs({**batch, "allowed": allowed}, 9))
    assert (outputs["negative_log_likelihood"] > 0).tolist() == [True] + [False] * 8


def test_the_plan_takes_every_sequence_once_an_epoch():
    """`minibatch_rows` counts steps: as many whole sequences as have about so many, and one at least."""
    for rows, sizes in ((20, [5, 5, 5, 5]), (8, [2] * 10), (3, [1] * 20)):
        algorithm = made(minibatch_rows=rows, epochs=2)
        planned = list(algorithm.plan(torch.Generator().manual_seed(1), RoundWindow.of_round(20)))
        assert [len(part) for part in planned] == sizes * 2
        assert sorted(torch.cat(planned[: len(sizes)]).tolist()) == list(range(20))


def recalled(envs: int, generator: torch.Generator) -> Batch:
    """The stored action is the cue in an episode's third step, where nothing is seen."""
    columns, cue = cued(envs, generator)
    action = torch.zeros(6, envs, dtype=torch.int64)
    action[2], action[5] = cue
    return {**columns, "action": action}


@pytest.mark.parametrize(("network", "least", "most"), [("recurrent", 0.99, 1.0), ("mlp", 0.0, 0.7)])
def test_it_imitates_a_policy_that_depends_on_the_past(network: str, least: float, most: float):
    """A cloned policy acts by a cue of two steps ago, with the memory alone that `act` gives it; without, by chance."""
    settings = {"network": network, "features": 16, "sequence_steps": 6, "burn_in_steps": 0, "learning_rate": 1e-2}
    algorithm = made(**settings, minibatch_rows=96, epochs=25)
    state, generator = algorithm.init(1), torch.Generator().manual_seed(1)
    columns = recalled(64, generator)
    batch = algorithm.post(state.params, Trajectory(columns, torch.zeros(0), torch.zeros(0, 3)))
    for index in algorithm.plan(torch.Generator().manual_seed(1), RoundWindow.of_round(len(batch["action"]))):
        gradient, _ = minibatch_gradient(algorithm.losses[0], state, rows_of(batch, index), {}, 4096)
        with torch.no_grad():
            state = algorithm.update(state, algorithm.losses[0], gradient)
    new = recalled(200, generator)
    carry, noise = algorithm.initial_carry(200), torch.zeros(200, *algorithm.noise.shape)
    for step in range(3):
        with torch.no_grad():
            rows, carry = algorithm.act(state.params, carry, new["observation"][step], noise)
    assert rows.keys() == algorithm.rows.keys(), "the memory is no column of a shard"
    assert least <= float((rows["action"] == new["action"][2]).float().mean()) <= most


def test_settings_without_a_memory_keep_their_identity_and_wrong_ones_are_refused():
    """Settings of sequences are part of a replay's identity only where they are set; TD3+BC has none."""
    added = {"network", "features", "sequence_steps", "burn_in_steps"}
    assert not added & BehaviourCloningSettings().identity().keys()
    assert BehaviourCloningSettings(**MEMORY).identity().keys() >= added
    source: dict[str, Any] = {"source": {"runs": ["any"]}}
    for settings, said in (
        ({**MEMORY, "burn_in_steps": 5}, r"burn_in_steps = 5 is more than algorithm.sequence_steps = 4"),
        ({"burn_in_steps": 5}, r"burn_in_steps = 5: network = 'mlp' has no memory to burn in, expected network = 're"),
        ({"name": "td3_bc", "network": "recurrent"}, r"network = 'recurrent': input should be .* or 'leaves'"),
    ):
        with pytest.raises(ConfigError, match=said):
            build_replay_config({**source, "algorithm": settings})
    config = build_replay_config({**source, "algorithm": {"sequence_steps": 8}})
    (line,) = settings_without_effect(config, local_store=True)
    assert "sequence_steps = 8 has no effect: algorithm.network is 'mlp', which has no memory" in line
    config = build_replay_config({**source, "algorithm": MEMORY})
    assert settings_without_effect(config, local_store=True) == []
