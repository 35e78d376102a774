"""Implicit Q-learning: its three losses against independent computations, and that it improves on what is stored."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from penstock.tasks.model.algorithms.behaviour_cloning import BehaviourCloning
from penstock.tasks.model.algorithms.iql import IQL
from penstock.tasks.roles.learning.gradients import minibatch_gradient
from penstock.tasks.roles.learning.minibatches import rows_of
from penstock.tasks.roles.learning.window import RoundWindow
from penstock.tasks.setup.config.offline import BehaviourCloningSettings, IQLSettings
from penstock.tasks.specs import ActionSpec, EnvironmentSpec, LossInputs, Spec, State, Trajectory

from ....support.algorithms.ppo_cases import CHOICES, ENVIRONMENTS, VECTORS, random, trajectory


def batch_of(algorithm: IQL, count: int = 40) -> dict[str, Tensor]:
    """Transitions as `post` makes them."""
    action = random(count, 2, seed=1)
    return {
        "observation": random(count, 3, seed=2),
        "action": (action[:, 0] > 0).long() if algorithm.environment.action.kind == "discrete" else action,
        "reward": random(count, seed=3),
        "alive": (random(count, seed=4) > -1).float(),
        "next_observation": random(count, 3, seed=5),
    }


def outputs_of(algorithm: IQL, state: State, name: str, rows: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    loss = next(loss for loss in algorithm.losses if loss.name == name)
    return loss.function(state.params, LossInputs(rows, len(rows["reward"]), targets=state.targets))


def network(params: dict[str, Tensor], prefix: str, inputs: np.ndarray, activation: np.ufunc = np.tanh) -> np.ndarray:
    """A perceptron in NumPy, in float64."""
    layers = {
        name[len(prefix) :]: np.asarray(value.detach(), dtype=np.float64)
        for name, value in params.items()
        if name.startswith(prefix)
    }
    hidden = inputs.astype(np.float64)
    for layer in range(len(layers) // 2):
        hidden = hidden @ layers[f"{layer}.weight"].T + layers[f"{layer}.bias"]
        hidden = activation(hidden) if layer < len(layers) // 2 - 1 else hidden
    return hidden


def worth(algorithm: IQL, critic: dict[str, Tensor], rows: dict[str, Tensor]) -> np.ndarray:
    """Both twins' values of the stored actions, `[2, rows]`, in NumPy."""
    seen, done = rows["observation"].numpy(), rows["action"].numpy()
    if algorithm.environment.action.kind == "discrete":
        return np.stack([network(critic, f"{twin}.", seen)[np.arange(len(done)), done] for twin in ("first", "second")])
    inputs = np.concatenate([seen, done], -1)
    return np.stack([network(critic, f"{twin}.", inputs)[:, 0] for twin in ("first", "second")])


def expectile_of(values: np.ndarray, tau: float) -> float:
    """By bisection of its definition (Newey and Powell 1987): tau E[(x - m)+] = (1 - tau) E[(m - x)+]."""
    low, high = values.min(), values.max()
    for _ in range(200):
        middle = (low + high) / 2
        surplus = tau * np.maximum(values - middle, 0).mean() - (1 - tau) * np.maximum(middle - values, 0).mean()
        low, high = (middle, high) if surplus > 0 else (low, middle)
    return float(low)


@pytest.mark.parametrize("tau", [0.5, 0.7, 0.95])
def test_the_value_is_drawn_to_the_expectile(tau: float):
    """The gradient vanishes at the expectile of the smaller target critic, which is computed independently."""
    algorithm = IQL(IQLSettings(hidden=(), expectile=tau), VECTORS)
    state, rows = algorithm.init(1), batch_of(algorithm)
    found = expectile_of(worth(algorithm, state.targets, rows).min(0), tau)
    if tau == 0.5:
        assert found == pytest.approx(worth(algorithm, state.targets, rows).min(0).mean())
    gradients = []
    for shift in (0.0, -0.1, 0.1):
        with torch.no_grad():
            state.params["value"].flat.zero_()
            state.params["value"]["0.bias"].fill_(found + shift)
        scalar, _ = outputs_of(algorithm, state, "value", rows)
        (gradient,) = torch.autograd.grad(scalar, [state.params["value"]["0.bias"]])
        gradients.append(gradient.item())
    assert abs(gradients[0]) < 1e-6
    assert gradients[1] < -1e-3
    assert gradients[2] > 1e-3


@pytest.mark.parametrize("kind", [IQL, BehaviourCloning])
def test_a_policy_has_the_chosen_activation_and_a_mean_within_the_bounds(kind: type[IQL | BehaviourCloning]):
    """ReLUs in hidden layers, and tanh times the largest action, which is 2; likelihoods are those of that mean."""
    settings = IQLSettings if kind is IQL else BehaviourCloningSettings
    algorithm = kind(settings(hidden=(5,), activation="relu", bounded_mean=True), VECTORS)
    state, rows = algorithm.init(1), batch_of(IQL(IQLSettings(), VECTORS))
    with torch.no_grad():
        state.params["policy"].flat.mul_(30.0)
    layers = {name: value for name, value in state.params["policy"].items() if name != "log_std"}
    relu = np.frompyfunc(lambda value: max(value, 0.0), 1, 1)
    outputs = network(layers, "", rows["observation"].numpy(), relu).astype(np.float64)
    assert np.abs(outputs).max() > 1.0
    acted, _ = algorithm.act(state.params, None, rows["observation"], torch.zeros(40, 2))
    np.testing.assert_allclose(acted["action"].detach(), 2.0 * np.tanh(outputs), rtol=1e-4, atol=1e-5)
    loss = next(loss for loss in algorithm.losses if loss.group == "policy")
    _, found = loss.function(state.params, LossInputs(rows, 40, targets=state.targets))
    square = ((rows["action"].numpy() - 2.0 * np.tanh(outputs)) ** 2).sum(-1)
    np.testing.assert_allclose(found["negative_log_likelihood"], 0.5 * square + np.log(2 * np.pi), rtol=1e-4)


def test_the_policys_rate_alone_falls_by_a_cosine():
    """The policy's first step is whole, its fifth of four none; critics and value keep their rate."""
    algorithm = IQL(IQLSettings(hidden=(5,), anneal_minibatches=4), VECTORS)
    state = algorithm.init(1)
    steps: dict[str, list[float]] = {"value": [], "policy": [], "critic": []}
    for _ in range(5):
        for loss in algorithm.losses:
            before = state.params[loss.group].flat.detach().clone()
            with torch.no_grad():
                state = algorithm.update(state, loss, torch.ones_like(before))
            steps[loss.group].append(float((before - state.params[loss.group].flat).mean()))
    whole = pytest.approx([3e-4] * 5, rel=1e-2)
    assert (steps["value"], steps["critic"]) == (whole, whole)
    expected = [1.5e-4 * (1.0 + np.cos(np.pi * taken / 4)) for taken in range(5)]
    assert steps["policy"] == pytest.approx(expected, rel=1e-2, abs=1e-9)


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_losses_are_those_of_the_paper(environment: EnvironmentSpec):
    """Equations 5 to 7 in NumPy, with targets that differ from the critic, and a weight that meets its limit."""
    algorithm = IQL(IQLSettings(hidden=(5,), expectile=0.8, inverse_temperature=4.0, weight_limit=3.0), environment)
    state, rows = algorithm.init(1), batch_of(algorithm)
    state.targets = {name: value + 0.3 for name, value in state.targets.items()}
    value = network(state.params["value"], "", rows["observation"].numpy())[:, 0]
    advantage = worth(algorithm, state.targets, rows).min(0) - value
    scalar, outputs = outputs_of(algorithm, state, "value", rows)
    expected = np.where(advantage > 0, 0.8, 0.2) * advantage**2
    np.testing.assert_allclose(outputs["value_loss"], expected, rtol=1e-4, atol=1e-6)
    assert scalar.item() == pytest.approx(expected.mean(), rel=1e-4)
    following = network(state.params["value"], "", rows["next_observation"].numpy())[:, 0]
    target = rows["reward"].numpy() + 0.99 * rows["alive"].numpy() * following
    _, outputs = outputs_of(algorithm, state, "critic", rows)
    expected = ((worth(algorithm, state.params["critic"], rows) - target) ** 2).sum(0)
    np.testing.assert_allclose(outputs["critic_loss"], expected, rtol=1e-4, atol=1e-6)
    scalar, outputs = outputs_of(algorithm, state, "policy", rows)
    weight = np.minimum(np.exp(4.0 * advantage), 3.0)
    assert (weight == 3.0).any()
    assert (weight < 3.0).any()
    np.testing.assert_allclose(outputs["advantage_weight"], weight, rtol=1e-4)
    policy = state.params["policy"]
    layers = {name: value for name, value in policy.items() if name != "log_std"}
    output = torch.from_numpy(network(layers, "", rows["observation"].numpy()))
    if algorithm.environment.action.kind == "discrete":
        likelihood = torch.distributions.Categorical(logits=output).log_prob(rows["action"])
    else:
        likelihood = torch.distributions.Normal(output, 1.0).log_prob(rows["action"].double()).sum(-1)
    assert scalar.item() == pytest.approx(float(-(weight * likelihood.numpy()).mean()), rel=1e-4)


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_parts_add_up_and_touch_their_group_alone(environment: EnvironmentSpec):
    """However a minibatch is cut, its gradient is the same up to rounding; every parameter of a group has one."""
    algorithm = IQL(IQLSettings(hidden=(5,)), environment)
    state, rows = algorithm.init(1), batch_of(algorithm)
    for loss in algorithm.losses:
        whole, outputs = minibatch_gradient(loss, state, rows, {}, 100)
        parts, _ = minibatch_gradient(loss, state, rows, {}, 7)
        torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-6)
        assert all(value.shape == (40,) and not value.requires_grad for value in outputs.values())


def test_a_transition_continues_unless_terminated():
    """The next observation is the next row's, or the final one of an episode; only a termination has none."""
    algorithm = IQL(IQLSettings(reward_scale=0.5), CHOICES)
    observation, following = random(3, 2, 3), random(3, 3, seed=9)
    batch = algorithm.post(
        {},
        trajectory(
            observation=observation,
            terminated=torch.tensor([[0, 0], [1, 0], [0, 0]], dtype=torch.uint8),
            truncated=torch.tensor([[0, 0], [0, 0], [0, 1]], dtype=torch.uint8),
            bootstrap_rows=torch.tensor([2, 4, 5]),
            bootstrap_observation=following,
        ),
    )
    rows = observation.flatten(0, 1)
    assert torch.equal(batch["observation"], rows)
    expected = [rows[2], rows[3], following[0], rows[5], following[1], following[2]]
    assert torch.equal(batch["next_observation"], torch.stack(expected))
    assert batch["alive"].tolist() == [1.0, 1.0, 0.0, 1.0, 1.0, 1.0]
    assert batch["reward"].tolist() == [0.5] * 6


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_the_target_follows_and_zero_noise_is_greedy(environment: EnvironmentSpec):
    """A step of `target_rate` towards the critic; without noise, the likeliest choice or the mean."""
    algorithm = IQL(IQLSettings(target_rate=0.25), environment)
    state = algorithm.init(1)
    state.targets = {name: torch.zeros_like(value) for name, value in state.targets.items()}
    with torch.no_grad():
        state = algorithm.after_minibatch(state)
    for name, value in state.params["critic"].items():
        torch.testing.assert_close(state.targets[name], 0.25 * value.detach())
    observation = random(6, 3)
    acted, _ = algorithm.act(state.params, None, observation, torch.zeros(6, 2))
    output, _ = algorithm._network.step(state.params["policy"], None, observation)
    assert torch.equal(
        acted["action"], output.argmax(-1) if algorithm.environment.action.kind == "discrete" else output
    )


def learned(algorithm: IQL | BehaviourCloning, batch: dict[str, Tensor]) -> State:
    state = algorithm.init(0)
    window = RoundWindow.of_round(len(batch["action"]))
    for index in algorithm.plan(torch.Generator().manual_seed(0), window):
        rows = rows_of(batch, index)
        for loss in algorithm.losses:
            gradient, _ = minibatch_gradient(loss, state, rows, {}, 4096)
            with torch.no_grad():
                state = algorithm.update(state, loss, gradient)
        with torch.no_grad():
            state = algorithm.after_minibatch(state)
    return state


def test_it_improves_on_the_stored_policy():
    """A walk along five places where the stored steps are mostly wrong, and only the end pays.

    Cloning walks back from everywhere; here, the value of what follows leads to the end from every place.
    """
    torch.set_num_threads(1)
    corridor = replace(CHOICES, observation=Spec("float32", (5,)), action=ActionSpec("discrete", n=2))
    generator = torch.Generator().manual_seed(3)
    place = torch.randint(0, 5, (1500,), generator=generator)
    action = (torch.rand(1500, generator=generator) < 0.3).long()
    following = (place + 2 * action - 1).clamp(0, 5)
    places = torch.eye(6, 5)
    batch = {
        "observation": places[place],
        "action": action,
        "reward": (following == 5).float(),
        "alive": (following != 5).float(),
        "next_observation": places[following],
    }
    iql = IQL(
        IQLSettings(
            hidden=(32,),
            discount=0.9,
            expectile=0.9,
            inverse_temperature=20.0,
            target_rate=0.05,
            learning_rate=1e-2,
            epochs=80,
        ),
        corridor,
    )
    cloning = BehaviourCloning(BehaviourCloningSettings(hidden=(32,), epochs=40), corridor)
    noise = torch.zeros(5, 2)
    acted, _ = cloning.act(learned(cloning, batch).params, None, torch.eye(5), noise)
    assert acted["action"].tolist() == [0] * 5
    acted, _ = iql.act(learned(iql, batch).params, None, torch.eye(5), noise)
    assert acted["action"].tolist() == [1] * 5


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32"])
def test_grids_of_any_whole_numbers_are_learned_from(dtype: str):
    """Torch can't set rows of unsigned numbers of several bytes; those after an episode's end are the final ones."""
    grid = EnvironmentSpec("grid", Spec(dtype, (4, 4, 2)), ActionSpec("discrete", n=3), None, None)
    algorithm = IQL(IQLSettings(network="small", hidden=(8,)), grid)
    number = torch.from_numpy(np.arange(3 * 2 * 32).reshape(3, 2, 4, 4, 2).astype(dtype))
    final = torch.from_numpy(np.full((3, 4, 4, 2), 7, dtype))
    zeros = torch.zeros(3, 2)
    columns = {"observation": number, "action": zeros.long(), "reward": zeros, "terminated": zeros.byte()}
    columns |= {"truncated": zeros.byte(), "episode_id": zeros.long()}
    rows = torch.tensor([1, 4, 5])
    batch = algorithm.post({}, Trajectory(columns, rows, final, 0))
    expected = number.flatten(0, 1).float().roll(-2, 0)
    expected[rows] = 7
    assert torch.equal(batch["next_observation"].float(), expected)
    assert torch.isfinite(outputs_of(algorithm, algorithm.init(1), "value", batch)[0])
