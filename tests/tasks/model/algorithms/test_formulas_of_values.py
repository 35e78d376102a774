"""QR-DQN, DQN, TD3 and TD3+BC against their formulas in docs/algorithms.md, from stored rows to gradients.

The formulas are written out in float64 (`support.algorithms.plain_formulas`), with episodes that end in every way.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from penstock.tasks.model.algorithms.dqn import DQN
from penstock.tasks.model.algorithms.qr_dqn import QRDQN
from penstock.tasks.model.algorithms.td3 import TD3
from penstock.tasks.model.algorithms.td3_bc import TD3BC
from penstock.tasks.roles.learning.gradients import minibatch_gradient
from penstock.tasks.roles.learning.window import RoundWindow
from penstock.tasks.setup.config.off_policy import DQNSettings, QRDQNSettings, TD3Settings
from penstock.tasks.setup.config.offline import TD3BCSettings
from penstock.tasks.specs import Batch, EnvironmentSpec, State, Trajectory

from ....support.algorithms.plain_formulas import (
    ENVS,
    MASKED,
    STEPS,
    VECTORS,
    compare,
    exact,
    moved,
    near,
    observed,
    perceptron,
    played,
    split,
)
from ....support.algorithms.ppo_cases import CHOICES, random

ROWS = torch.randperm(STEPS * ENVS, generator=torch.Generator().manual_seed(5))[:19]
DISCOUNT, Q = 0.9, 5


def lively(algorithm: Any, trained: tuple[str, ...]) -> State:
    """Return a state whose networks differ from their targets, and are both far from what they begin with."""
    state, other = algorithm.init(1), algorithm.init(2)
    for each in (state, other):
        for group in trained:
            moved(each, group, 0.4, 7 + (each is other))
    for group, prefix in zip(trained, ("value/",) if trained == ("value",) else ("", "actor/"), strict=True):
        for name, value in other.params[group].items():
            state.targets[f"{prefix}{name}"].copy_(value.detach())
    return state


def taken(algorithm: Any, state: State) -> Trajectory:
    """Return a round that was acted at random or by these parameters."""
    environment = algorithm.environment
    return played(algorithm, state.params, lambda rows, seed: observed(environment, rows, seed), 20)


def returns(round_: Trajectory, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return R, f and the observation after the steps of each row: fewer where an episode or the round ends."""
    columns, rows = round_.columns, STEPS * ENVS
    ends = {int(row): number for number, row in enumerate(round_.bootstrap_rows)}
    total, factor = torch.zeros(2, rows, dtype=torch.float64)
    seen = torch.zeros(rows, *columns["observation"].shape[2:])
    for row in range(rows):
        last = row
        total[row] = float(columns["reward"].flatten()[row])
        while last not in ends and (last - row) // ENVS < steps - 1:
            last += ENVS
            total[row] += DISCOUNT ** ((last - row) // ENVS) * float(columns["reward"].flatten()[last])
        if not columns["terminated"].flatten()[last]:
            factor[row] = DISCOUNT ** ((last - row) // ENVS + 1)
        after = columns["observation"].flatten(0, 1)
        seen[row] = round_.bootstrap_observation[ends[last]] if last in ends else after[last + ENVS]
    return total, factor, seen


# Choices


def by_choice(outputs: Tensor, quantiles: int, dueling: bool) -> Tensor:
    """Return θ `[rows, n, q]`; of a dueling network the first q are the state's."""
    parts = outputs.unflatten(-1, (-1, quantiles))
    return parts[:, :1] + parts[:, 1:] - parts[:, 1:].mean(1, keepdim=True) if dueling else parts


def noisy(params: Mapping[str, Tensor], inputs: Tensor, noise: Tensor) -> Tensor:
    """Return outputs of noisy layers, whose weights are each row's own: a mean, and a scale times f(out) f(in)."""
    start = 0
    noise = noise.double().sign() * noise.double().abs().sqrt()
    for layer in range(2):
        weight, bias = params[f"{layer}.weight"], params[f"{layer}.bias"]
        wide, narrow = weight.shape
        of_inputs, of_outputs = noise[:, start : start + narrow], noise[:, start + narrow : start + narrow + wide]
        start += narrow + wide
        weights = weight + params[f"{layer}.weight_noise"] * of_outputs.unsqueeze(2) * of_inputs.unsqueeze(1)
        biases = bias + params[f"{layer}.bias_noise"] * of_outputs
        inputs = (weights @ inputs.unsqueeze(2)).squeeze(2) + biases
        inputs = inputs.relu() if layer == 0 else inputs
    return inputs


CHOICE_CASES = [
    pytest.param(MASKED, {"huber_limit": 0.3, "return_steps": 3}, id="qr-dqn, masks, three steps"),
    pytest.param(MASKED, {"double": False, "dueling": False}, id="qr-dqn, plain"),
    pytest.param(CHOICES, {"noisy_scale": 0.5, "return_steps": 2}, id="qr-dqn, noisy"),
    pytest.param(MASKED, {"huber": True, "return_steps": 3}, id="dqn, masks, three steps"),
    pytest.param(MASKED, {"double": False, "dueling": False}, id="dqn, plain"),
]


@pytest.mark.parametrize(("environment", "settings"), CHOICE_CASES)
def test_choices_are_learned_by_their_formulas(
    environment: EnvironmentSpec, settings: dict[str, Any], request: pytest.FixtureRequest
):
    """Returns and bootstraps, targets of the best allowed choice, the weighted loss, its gradient and priorities."""
    of_quantiles = "qr" in request.node.name
    common: dict[str, Any] = {"hidden": (8,), "discount": DISCOUNT, **settings}
    algorithm: Any = QRDQN(QRDQNSettings(**common, quantiles=Q), environment) if of_quantiles else None
    algorithm = algorithm or DQN(DQNSettings(**common), environment)
    chosen, state = algorithm.settings, lively(algorithm, ("value",))
    round_ = taken(algorithm, state)
    total, factor, seen = returns(round_, chosen.return_steps)
    batch = algorithm.post({}, round_)
    near(batch["return"], total)
    near(batch["factor"], factor)
    assert torch.equal(batch["following"].double(), split(environment, seen)[0])
    weight = torch.linspace(0.2, 1.0, len(ROWS))
    rows = {**{name: column[ROWS] for name, column in batch.items()}, "weight": weight}
    spec = algorithm.losses[0].noise
    noise = None if spec is None else random(len(ROWS), *spec.shape, seed=4)
    params, target = exact(state.params["value"]), {n[6:]: v.double() for n, v in state.targets.items() if "/" in n}

    def worth(network: Mapping[str, Tensor], observation: Tensor, place: int) -> Tensor:
        inputs = split(environment, observation)[0]
        outputs = perceptron(network, inputs, torch.relu) if noise is None else noisy(network, inputs, noise[:, place])
        return by_choice(outputs, Q if of_quantiles else 1, chosen.dueling)

    following, allowed = seen[ROWS], split(environment, seen[ROWS])[1]
    with torch.no_grad():
        judge = worth(params, following, 2) if chosen.double else worth(target, following, 1)
        mean = judge.mean(-1) if allowed is None else judge.mean(-1).masked_fill(~allowed, -torch.inf)
        assert allowed is None or (mean.argmax(-1) != judge.mean(-1).argmax(-1)).any()
        best = worth(target, following, 1)[torch.arange(len(ROWS)), mean.argmax(-1)]
        goal = total[ROWS, None] + factor[ROWS, None] * best
    action = round_.columns["action"].flatten()[ROWS]
    own = worth(params, round_.columns["observation"].flatten(0, 1)[ROWS], 0)[torch.arange(len(ROWS)), action]
    error = goal.unsqueeze(1) - own.unsqueeze(2)  # u of each quantile i of the choice, and each j of its target
    limit = chosen.huber_limit if of_quantiles else 1.0 if chosen.huber else torch.inf
    each = torch.where(error.abs() <= limit, 0.5 * error**2, 0.0)
    if limit < torch.inf:
        assert (error.abs() > limit).any()
        each = each + torch.where(error.abs() > limit, limit * (error.abs() - 0.5 * limit), 0.0)
    if of_quantiles:
        fractions = (2 * torch.arange(1, Q + 1, dtype=torch.float64) - 1) / (2 * Q)
        each = (fractions[:, None] - (error.detach() < 0).double()).abs() * each
    loss = each.mean(2).sum(1)
    compare(algorithm.losses[0], state, rows, (weight.double() * loss).mean(), params, noise=noise)
    _, outputs = minibatch_gradient(algorithm.losses[0], state, rows, {}, 100, None, noise)
    near(outputs["priority"], (loss if of_quantiles else error.abs()[:, 0, 0]) + 1e-6)


def test_prioritised_rows_have_their_weights_in_every_minibatch():
    """P of the last time or the largest so far, 1 at least; P, β and w as in the formulas; one row of each share."""
    settings = {"priority_exponent": 0.7, "priority_correction": 0.4, "correction_minibatches": 6, "warm_up_rows": 25}
    dqn = DQN(DQNSettings(window_rows=40, minibatches=2, minibatch_rows=16, **settings), CHOICES)
    window, priority, largest, learned = RoundWindow(dqn.window, 10), np.zeros(0), 1.0, 0
    generator = np.random.default_rng(1)
    for round_ in range(7):
        window.begin_round()
        priority = np.append(priority, np.full(10, largest))[-40:]
        for draw in dqn.plan(torch.Generator().manual_seed(round_), window):
            beta = 0.4 + 0.6 * min(1.0, learned / 6)
            chance = priority**0.7 / (priority**0.7).sum()
            rows = draw.rows.numpy()
            weight = (len(priority) * chance[rows]) ** -beta
            np.testing.assert_allclose(draw.weights.numpy(), weight / weight.max(), rtol=1e-6)
            # A row has more than n - 2 and fewer than n + 2 of the shares for which its probability is n.
            assert (np.abs(np.bincount(rows, minlength=len(priority)) - 16 * chance) < 2).all()
            worth = 3.0 * generator.random(16) * (1 + round_ % 2)
            window.update(draw.rows, torch.from_numpy(worth))
            priority[rows] = worth  # of a row that was drawn twice, the last counts
            largest, learned = max(largest, float(worth.max())), learned + 1
    assert learned == 10
    assert largest > 3.0


# Vectors


def actor_and_critics(params: Mapping[str, Mapping[str, Tensor]]) -> tuple[Any, Any]:
    """Return μ(s) within -1 and 1, and Q_k(s, a)."""

    def act(observation: Tensor) -> Tensor:
        return perceptron(params["actor"], observation, torch.relu).tanh()

    def judge(name: str, observation: Tensor, action: Tensor) -> Tensor:
        return perceptron(params["critic"], torch.cat([observation, action], -1), torch.relu, name)[:, 0]

    return act, judge


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("kind", [TD3, TD3BC])
def test_vectors_are_learned_by_their_formulas(kind: type[TD3 | TD3BC], normalised: bool):
    """Smoothed targets of the smaller critic, the actor by the first critic, and λ with the clone: all gradients."""
    common: dict[str, Any] = {"hidden": (8,), "discount": DISCOUNT, "normalize_observation": normalised}
    common |= {"smoothing_noise": 0.3, "smoothing_limit": 0.4}
    if kind is TD3:
        algorithm: Any = TD3(TD3Settings(**common, random_steps=0), VECTORS)
    else:
        algorithm = TD3BC(TD3BCSettings(**common, alpha=1.5), VECTORS)
    state = lively(algorithm, ("critic", "actor"))
    round_ = taken(algorithm, state)
    mean, deviation = torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    if normalised:  # by the moments of the rounds before; here of one
        before = played(algorithm, state.params, lambda rows, seed: 2 * observed(VECTORS, rows, seed) + 1, 50)
        with torch.no_grad():
            state = algorithm.after_round(state, algorithm.stats(algorithm.post({}, before)))
        seen = before.columns["observation"].flatten(0, 1).double()
        mean, variance = seen.mean(0), seen.var(0, correction=0)
        deviation = variance.sqrt() + 1e-3 if kind is TD3BC else (variance + 1e-8).sqrt()
    low, high = (torch.tensor(bounds, dtype=torch.float64) for bounds in (VECTORS.action.low, VECTORS.action.high))
    action = 2 * (round_.columns["action"].flatten(0, 1).double() - low) / (high - low) - 1
    reward, factor, following = returns(round_, 1)
    batch: Batch = algorithm.post({}, round_)
    for name, expected in (("action", action), ("reward", reward), ("factor", factor), ("following", following)):
        near(batch[name], expected.double())
    rows, noise = {name: column[ROWS] for name, column in batch.items()}, 2 * random(len(ROWS), 2, seed=4)
    observation = (round_.columns["observation"].flatten(0, 1)[ROWS].double() - mean) / deviation
    following, action = (following[ROWS].double() - mean) / deviation, action[ROWS]

    params = {name: exact(group) for name, group in state.params.items()}
    aims = {name: value.double() for name, value in state.targets.items() if "/" in name}
    of_actor = {name[6:]: value for name, value in aims.items() if name.startswith("actor/")}
    act, judge = actor_and_critics({"actor": of_actor, "critic": aims})
    smoothed = act(following) + (0.3 * noise.double()).clamp(-0.4, 0.4)
    assert (smoothed.abs() > 1).any()
    value = torch.minimum(*(judge(name, following, smoothed.clamp(-1, 1)) for name in ("first/", "second/")))
    target = reward[ROWS] + factor[ROWS] * value
    act, judge = actor_and_critics(params)
    errors = [(judge(name, observation, action) - target).square() for name in ("first/", "second/")]
    compare(algorithm.losses[0], state, rows, (0.5 * (errors[0] + errors[1])).mean(), params["critic"], noise=noise)

    chosen = act(observation)
    value = judge("first/", observation, chosen)
    if kind is TD3:
        compare(algorithm.losses[1], state, rows, -value.mean(), params["actor"])
        return
    balance, actor = algorithm.losses[1:]
    gradient, _ = minibatch_gradient(balance, state, rows, {}, 100)
    with torch.no_grad():
        state = algorithm.update(state, balance, gradient)
    weight = 1.5 / value.detach().abs().mean()
    near(state.params["balance"].flat.exp(), weight.reshape(1))
    cloned = (chosen - action).square().mean(-1)
    compare(actor, state, rows, (cloned - weight * value).mean(), params["actor"])


def test_critics_that_are_zero_leave_lambda_finite():
    """The mean magnitude of Q counts as 1e-6 at least."""
    algorithm = TD3BC(TD3BCSettings(hidden=(8,), alpha=1.5), VECTORS)
    state = algorithm.init(1)
    state.params["critic"].flat.zero_()
    rows = {name: column[ROWS] for name, column in algorithm.post({}, taken(algorithm, state)).items()}
    balance = algorithm.losses[1]
    gradient, _ = minibatch_gradient(balance, state, rows, {}, 100)
    with torch.no_grad():
        state = algorithm.update(state, balance, gradient)
    assert float(state.params["balance"].flat.exp()) == pytest.approx(1.5e6, rel=1e-5)
