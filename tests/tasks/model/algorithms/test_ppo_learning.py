"""PPO's losses, plan and updates, against numbers that are worked out by hand or computed independently."""

import math

import pytest
import torch
from torch import Tensor

from penstock.tasks.model.algorithms.ppo import PPO
from penstock.tasks.roles.learning.window import RoundWindow
from penstock.tasks.setup.config.on_policy import PPOSettings
from penstock.tasks.specs import EnvironmentSpec, ParameterGroup, State

from ....support.algorithms.ppo_cases import (
    CHOICES,
    ENVIRONMENTS,
    VECTORS,
    biased,
    loss_of,
    random,
    rows_of,
    trajectory,
)

# Losses


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected", "clips"),
    [
        (1.5, 1.0, -1.2, True),
        (1.5, -1.0, 1.5, False),
        (0.5, 1.0, -0.5, False),
        (0.5, -1.0, 0.8, True),
        (1.1, 2.0, -2.2, False),
        (0.9, -2.0, 1.8, False),
    ],
)
def test_the_surrogate_clips_the_side_that_would_gain(ratio: float, advantage: float, expected: float, clips: bool):
    """Moving further in the direction that pays is clipped and has no gradient; moving back never is."""
    ppo = PPO(PPOSettings(clip_range=0.2), CHOICES)
    state = biased(ppo, policy=[0.0, math.log(3.0)])
    rows = {
        "observation": torch.zeros(1, 3),
        "action": torch.tensor([1]),
        "log_probability": torch.tensor([math.log(0.75) - math.log(ratio)]),
        "advantage": torch.tensor([advantage]),
    }
    scalar, outputs = loss_of(ppo, "policy", state.params, rows)
    assert scalar.item() == pytest.approx(expected, rel=1e-6)
    gradients = torch.autograd.grad(scalar, state.params["policy"].leaves)
    assert all(not gradient.any() for gradient in gradients) == clips
    assert outputs["kl"].item() == pytest.approx(ratio - 1 - math.log(ratio), rel=1e-4)
    assert outputs["clip_fraction"].item() == float(abs(ratio - 1) > 0.2)


def test_the_surrogates_gradient_is_that_of_the_ratio():
    """Unclipped, the gradient by the logits is -ratio * advantage * (one-hot - probabilities)."""
    ppo = PPO(PPOSettings(), CHOICES)
    state = biased(ppo, policy=[0.0, math.log(3.0)])
    rows = {
        "observation": torch.zeros(1, 3),
        "action": torch.tensor([1]),
        "log_probability": torch.tensor([math.log(0.75) - math.log(1.1)]),
        "advantage": torch.tensor([2.0]),
    }
    scalar, _ = loss_of(ppo, "policy", state.params, rows)
    (gradient,) = torch.autograd.grad(scalar, [state.params["policy"]["2.bias"]])
    assert gradient.tolist() == pytest.approx([2.2 * 0.25, -2.2 * 0.25], rel=1e-5)


def test_the_entropy_bonus_lowers_the_loss():
    """The entropy of a choice with 1/4 and 3/4 is 0.5623 nats, and counts with its weight."""
    state = biased(PPO(PPOSettings(), CHOICES), policy=[0.0, math.log(3.0)])
    entropy = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    rows = {
        "observation": torch.zeros(2, 3),
        "action": torch.tensor([1, 0]),
        "log_probability": torch.tensor([math.log(0.75), math.log(0.25)]),
        "advantage": torch.tensor([0.0, 0.0]),
    }
    scalar, outputs = loss_of(PPO(PPOSettings(entropy_weight=0.1), CHOICES), "policy", state.params, rows)
    assert outputs["entropy"].tolist() == pytest.approx([entropy, entropy], rel=1e-6)
    assert scalar.item() == pytest.approx(-0.1 * entropy, rel=1e-6)
    (gradient,) = torch.autograd.grad(scalar, [state.params["policy"]["2.bias"]])
    assert gradient[0] < 0 < gradient[1], "the bonus should raise the unlikelier choice's logit"


def test_the_value_loss_is_half_the_squared_error():
    """Summed over the given rows, and divided by the rows of the whole minibatch."""
    ppo = PPO(PPOSettings(), CHOICES)
    state = biased(ppo, value=[2.0])
    rows = {"observation": torch.zeros(2, 3), "value_target": torch.tensor([5.0, 1.0])}
    scalar, outputs = loss_of(ppo, "value", state.params, rows, count=10)
    assert outputs["value_loss"].tolist() == [4.5, 0.5]
    assert scalar.item() == pytest.approx(0.5)
    (gradient,) = torch.autograd.grad(scalar, [state.params["value"]["2.bias"]])
    assert gradient.item() == pytest.approx((-3 + 1) / 10)


@pytest.mark.parametrize("environment", ENVIRONMENTS)
@pytest.mark.parametrize("name", ["policy", "value"])
def test_parts_of_a_minibatch_add_up(environment: EnvironmentSpec, name: str):
    """Losses of the parts, each given the whole minibatch's count, sum to the loss of the whole."""
    ppo = PPO(PPOSettings(entropy_weight=0.01), environment)
    state = ppo.init(1)
    rows = rows_of(ppo, state, 10)
    rows["log_probability"] = rows["log_probability"] + 0.2 * random(10, seed=8)
    whole, outputs = loss_of(ppo, name, state.params, rows)
    halves = [{key: value[cut] for key, value in rows.items()} for cut in (slice(0, 4), slice(4, 10))]
    parts = [loss_of(ppo, name, state.params, half, count=10) for half in halves]
    torch.testing.assert_close(parts[0][0] + parts[1][0], whole)
    for key, value in outputs.items():
        assert value.shape == (10,), key
        assert not value.requires_grad, key
        torch.testing.assert_close(torch.cat([part[1][key] for part in parts]), value)


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_a_loss_has_gradients_by_its_own_group_alone(environment: EnvironmentSpec):
    """The other group is no part of the loss, and every parameter of its own is."""
    ppo = PPO(PPOSettings(entropy_weight=0.01), environment)
    state = ppo.init(1)
    rows = rows_of(ppo, state, 10)
    for loss in ppo.losses:
        for group, params in state.params.items():
            scalar, _ = loss_of(ppo, loss.name, state.params, rows)
            gradients = torch.autograd.grad(scalar, params.leaves, allow_unused=True)
            assert [gradient is not None for gradient in gradients] == [group == loss.group] * len(params)


def test_the_first_minibatch_has_ratio_one():
    """Learning starts where acting was: the divergence is exactly zero for choices, and rounding for vectors."""
    for environment, limit in ((CHOICES, 0.0), (VECTORS, 1e-6)):
        ppo = PPO(PPOSettings(), environment)
        state = ppo.init(1)
        rows = rows_of(ppo, state, 32)
        _, outputs = loss_of(ppo, "policy", state.params, rows)
        assert outputs["kl"].abs().max().item() <= limit
        assert outputs["clip_fraction"].sum().item() == 0.0


# State, plan and update


def state_bytes(state: State) -> dict[str, bytes]:
    tensors = {f"{group}.flat": params.flat for group, params in state.params.items()}
    for group, values in state.optimizer.items():
        tensors |= {f"{group}.{name}": value for name, value in values.items()}
    return {name: value.detach().numpy().tobytes() for name, value in tensors.items()}


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_a_seed_gives_the_same_state_always(environment: EnvironmentSpec):
    """Neither what was drawn before nor torch's global generator matters, and init does not move the latter."""
    ppo = PPO(PPOSettings(), environment)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = state_bytes(ppo.init(7))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert state_bytes(ppo.init(7)) == first
    assert state_bytes(ppo.init(8)) != first


def test_a_fresh_policy_is_near_uniform():
    """Whatever is observed, both choices are about as likely; a continuous policy starts at its set deviation."""
    acted, _ = PPO(PPOSettings(), CHOICES).act(
        PPO(PPOSettings(), CHOICES).init(1).params, None, random(64, 3), random(64, 2)
    )
    assert (acted["log_probability"].exp() - 0.5).abs().max() < 0.05
    state = PPO(PPOSettings(initial_log_std=-0.5), VECTORS).init(1)
    assert state.params["policy"]["log_std"].tolist() == [-0.5, -0.5]


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_the_pieces_are_pure(environment: EnvironmentSpec):
    """Same inputs, same outputs, and nothing that was given is changed."""
    ppo = PPO(PPOSettings(entropy_weight=0.01), environment)
    state = ppo.init(1)
    rows = rows_of(ppo, state, 6)
    action = {"action": torch.zeros(3, 2, 2)} if environment is VECTORS else {}
    round_ = trajectory(**action)
    given = [rows, round_.columns, {"rows": round_.bootstrap_rows, "observation": round_.bootstrap_observation}]
    noise = random(6, *ppo.noise.shape)

    def all_pieces() -> list[Tensor]:
        with torch.no_grad():
            acted, _ = ppo.act(state.params, None, rows["observation"], noise)
            batch = ppo.post(state.params, round_)
            stats = ppo.stats(batch)
        losses = [loss_of(ppo, loss.name, state.params, rows, stats=stats) for loss in ppo.losses]
        found = [*acted.values(), *batch.values(), *stats.values()]
        return found + [value for scalar, outputs in losses for value in (scalar, *outputs.values())]

    kept = [{name: value.clone() for name, value in group.items()} for group in given]
    before = state_bytes(state)
    first = [value.clone() for value in all_pieces()]
    assert all(torch.equal(one, two) for one, two in zip(first, all_pieces(), strict=True))
    assert state_bytes(state) == before
    for group, copies in zip(given, kept, strict=True):
        assert all(torch.equal(group[name], copy) for name, copy in copies.items())


def test_a_plan_visits_every_row_once_an_epoch():
    """Each pass is a fresh permutation in near-equal parts, and follows from the generator alone."""
    ppo = PPO(PPOSettings(epochs=3, minibatches=4), CHOICES)
    plan = list(ppo.plan(torch.Generator().manual_seed(1), RoundWindow.of_round(18)))
    assert [len(part) for part in plan] == [5, 5, 4, 4] * 3
    assert {part.dtype for part in plan} == {torch.int64}
    passes = [torch.cat(plan[start : start + 4]).tolist() for start in (0, 4, 8)]
    assert all(sorted(rows) == list(range(18)) for rows in passes)
    assert passes[0] != passes[1] != passes[2]
    again = list(ppo.plan(torch.Generator().manual_seed(1), RoundWindow.of_round(18)))
    assert all(torch.equal(one, two) for one, two in zip(plan, again, strict=True))
    other = torch.cat(list(ppo.plan(torch.Generator().manual_seed(2), RoundWindow.of_round(18)))).tolist()
    assert other != torch.cat(plan).tolist()


def steps_taken(ppo: PPO, count: int) -> list[float]:
    """Return how far a constant gradient moves the value group in each step; with Adam, by the learning rate."""
    state, loss = ppo.init(1), ppo.losses[1]
    group = state.params["value"]
    taken = []
    for _ in range(count):
        before = group.flat.clone()
        state = ppo.update(state, loss, torch.ones_like(group.flat))
        state = ppo.after_minibatch(state)
        taken.append((before - group.flat).mean().item())
    return taken


def test_the_learning_rate_is_annealed_linearly_and_then_kept():
    """Two rounds of one epoch and two minibatches are four steps; from then on the final rate holds."""
    ppo = PPO(
        PPOSettings(
            learning_rate=0.1, final_learning_rate=0.02, anneal_rounds=2, epochs=1, minibatches=2, gradient_norm=1e6
        ),
        CHOICES,
    )
    assert steps_taken(ppo, 6) == pytest.approx([0.1, 0.08, 0.06, 0.04, 0.02, 0.02], rel=1e-3)


def test_the_learning_rate_stays_without_annealing():
    """`anneal_rounds = 0` ignores the final rate."""
    ppo = PPO(PPOSettings(learning_rate=0.1, final_learning_rate=0.02, gradient_norm=1e6), CHOICES)
    assert steps_taken(ppo, 3) == pytest.approx([0.1, 0.1, 0.1], rel=1e-3)


def test_an_update_clips_and_touches_its_group_alone():
    """Adam sees the gradient scaled to the limit; the other group's parameters and moments stay."""
    ppo = PPO(PPOSettings(gradient_norm=0.5), CHOICES)
    state = ppo.init(1)
    before = state_bytes(state)
    gradient = torch.full_like(state.params["policy"].flat, 3.0)
    after = state_bytes(ppo.update(state, ppo.losses[0], gradient))
    changed = {name.split(".")[0] for name, value in after.items() if value != before[name]}
    assert changed == {"policy"}
    seen = state.optimizer["policy"]["mean"] / 0.1
    assert torch.linalg.vector_norm(seen).item() == pytest.approx(0.5, rel=1e-4)


def test_an_update_shows_in_the_named_parameters():
    """The tensors that act and the losses read are the vector that the optimizer writes."""
    ppo = PPO(PPOSettings(), CHOICES)
    state = ppo.init(1)
    group = state.params["policy"]
    before = group["0.weight"].detach().clone()
    with torch.no_grad():
        state = ppo.update(state, ppo.losses[0], torch.ones_like(group.flat))
    assert not torch.equal(state.params["policy"]["0.weight"], before)
    assert isinstance(state.params["policy"], ParameterGroup)


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_a_few_updates_reduce_the_losses(environment: EnvironmentSpec):
    """Actions with a positive advantage become likelier, others less so, and values approach their targets."""
    ppo = PPO(PPOSettings(learning_rate=1e-2, clip_range=10.0), environment)
    state = ppo.init(1)
    rows = rows_of(ppo, state, 64)
    rows["advantage"] = (
        torch.where(rows["action"].flatten(1).sum(-1) > 0.5, 1.0, -1.0)
        if environment is VECTORS
        else (rows["action"] * 2.0 - 1.0)
    )
    losses: dict[str, list[float]] = {"policy": [], "value": []}
    for _ in range(20):
        for loss in ppo.losses:
            scalar, _ = loss_of(ppo, loss.name, state.params, rows)
            losses[loss.name].append(scalar.item())
            leaves = state.params[loss.group].leaves
            gradient = torch.cat([part.reshape(-1) for part in torch.autograd.grad(scalar, leaves)])
            with torch.no_grad():
                state = ppo.update(state, loss, gradient)
    assert losses["policy"][-1] < losses["policy"][0] - 0.05
    assert losses["value"][-1] < 0.85 * losses["value"][0]
