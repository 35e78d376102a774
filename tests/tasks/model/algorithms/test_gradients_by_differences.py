"""Gradients of SAC and IQL against numeric differences of their formulas in docs/algorithms.md.

The formulas are written out in float64 (`support.algorithms.plain_formulas`) and never differentiated, so nothing here
shares autograd's way through a loss: what a loss detaches, and what it does not, has to follow from the formula.
"""

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from penstock.tasks.model.algorithms.iql import IQL
from penstock.tasks.model.algorithms.sac import SAC
from penstock.tasks.roles.learning.gradients import minibatch_gradient
from penstock.tasks.setup.config.off_policy import SACSettings
from penstock.tasks.setup.config.offline import IQLSettings
from penstock.tasks.specs import ActionSpec, Batch, EnvironmentSpec, LossInputs, State

from ....support.algorithms.plain_formulas import (
    ENVS,
    HYBRID,
    MASKED,
    STEPS,
    VECTORS,
    exact,
    log_likelihood,
    moved,
    near,
    observed,
    perceptron,
    played,
)
from ....support.algorithms.ppo_cases import random

ROWS = torch.randperm(STEPS * ENVS, generator=torch.Generator().manual_seed(5))[:19]
STEP = 1e-5
TWINS = {"sac": ("first/", "second/"), "iql": ("first.", "second.")}
Params = Mapping[str, Mapping[str, Tensor]]
Formula = Callable[[Params], Tensor]


def lively(algorithm: Any) -> State:
    """Return a state far from what it begins with, whose targets are of other networks."""
    state, other = algorithm.init(1), algorithm.init(2)
    for each, seed in ((state, 7), (other, 8)):
        for group in each.params:
            moved(each, group, 0.4, seed)
    state.targets = {name: value.detach().clone() for name, value in other.params["critic"].items()}
    return state


def learned_from(algorithm: Any) -> Batch:
    """Return a minibatch of a round that other parameters have acted."""
    environment = algorithm.environment
    round_ = played(algorithm, algorithm.init(3).params, lambda rows, seed: observed(environment, rows, seed), 20)
    return {name: column[ROWS] for name, column in algorithm.post({}, round_).items()}


def differences(formula: Formula, params: Params, group: str) -> Tensor:
    """Return central differences of a formula by each number of a group, `[P]`."""
    found = []
    for value in params[group].values():
        numbers = value.view(-1)
        for place, number in enumerate(numbers.tolist()):
            sides = []
            for moved_by in (STEP, -STEP):
                numbers[place] = number + moved_by
                sides.append(float(formula(params)))
            numbers[place] = number
            found.append((sides[0] - sides[1]) / (2 * STEP))
    return torch.tensor(found, dtype=torch.float64)


def in_float64(columns: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: column.double() if column.is_floating_point() else column for name, column in columns.items()}


def check(
    algorithm: Any,
    name: str,
    state: State,
    rows: Batch,
    formula: Formula,
    noise: Tensor | None = None,
    reached: Collection[str] = (),
) -> None:
    """Check a loss's value, and its gradient in float64 and as learners compute it.

    No gradient reaches the targets, nor groups of other losses but those in `reached`.
    """
    loss = next(loss for loss in algorithm.losses if loss.name == name)
    assert (loss.noise is None) == (noise is None)
    plain = {
        group: {part: value.detach().double() for part, value in each.items()} for group, each in state.params.items()
    }
    wanted, expected = differences(formula, plain, loss.group), formula(plain)
    params, targets = {group: exact(each) for group, each in state.params.items()}, exact(state.targets)
    inputs = LossInputs(in_float64(rows), len(ROWS), {}, targets, None if noise is None else noise.double())
    scalar, outputs = loss.function(params, inputs)
    near(scalar.reshape(1), expected.reshape(1), 1e-7)
    assert not any(value.requires_grad for value in outputs.values())
    found = {}
    for group, each in {**params, "targets": targets}.items():
        leaves = list(each.values())
        parts = torch.autograd.grad(scalar, leaves, retain_graph=True, allow_unused=True)
        if any(part is not None for part in parts):
            found[group] = torch.cat(
                [
                    (torch.zeros_like(leaf) if part is None else part).flatten()
                    for part, leaf in zip(parts, leaves, strict=True)
                ]
            )
    assert found.keys() == {loss.group, *reached}
    near(found[loss.group], wanted, 1e-7)
    for _ in range(3):  # by kernels, then as they were captured
        gradient, _ = minibatch_gradient(loss, state, rows, {}, 1000, None, noise)
        near(gradient, wanted)


def smaller_of(critics: Mapping[str, Tensor], observation: Tensor, action: Tensor) -> Tensor:
    """Return the smaller of Q₁ and Q₂ of pairs, with ReLUs."""
    pairs = torch.cat([observation, action], -1)
    return torch.minimum(*(perceptron(critics, pairs, torch.relu, twin)[:, 0] for twin in TWINS["sac"]))


def drawn(actor: Mapping[str, Tensor], observation: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return the squashed action, and the logarithm of its density by the change of variables."""
    mean, log_std = perceptron(actor, observation, torch.relu).chunk(2, -1)
    deviation = log_std.clamp(-20, 2).exp()
    free = mean + deviation * noise
    # ln(1 - tanh² u) = -2 ln cosh u, which is finite where tanh u rounds to 1.
    slope = -2 * (free.abs() + (-2 * free.abs()).exp().log1p() - math.log(2))
    density = torch.distributions.Normal(mean, deviation).log_prob(free) - slope
    return free.tanh(), density.sum(-1)


def test_gradients_of_sac_are_differences_of_its_formulas():
    """Critics with a target that is a constant; the actor through action and density, the temperature through neither.

    The actor's loss reaches the critics, too, since the action passes through them: learners take the actor's part.
    """
    sac = SAC(SACSettings(hidden=(4,), discount=0.9, initial_temperature=0.3, target_entropy=-1.5), VECTORS)
    state, rows, noise = lively(sac), learned_from(sac), random(len(ROWS), 2, seed=4)
    with torch.no_grad():
        state.params["actor"]["1.bias"][2] = 1.8
    given, targets, draw = in_float64(rows), in_float64(state.targets), noise.double()
    log_std = perceptron(in_float64(state.params["actor"]), given["observation"], torch.relu)[:, 2:]
    assert (log_std > 2).any(), "beyond its limit it has no gradient"
    assert (log_std < 2).any()

    def critic(params: Params) -> Tensor:
        action, density = drawn(params["actor"], given["following"], draw)
        soft = smaller_of(targets, given["following"], action) - params["temperature"]["log"].exp() * density
        target = given["reward"] + given["factor"] * soft
        pairs = torch.cat([given["observation"], given["action"]], -1)
        values = [perceptron(params["critic"], pairs, torch.relu, twin)[:, 0] for twin in TWINS["sac"]]
        return sum(0.5 * (value - target).square() for value in values).mean()

    def actor(params: Params) -> Tensor:
        action, density = drawn(params["actor"], given["observation"], draw)
        value = smaller_of(params["critic"], given["observation"], action)
        return (params["temperature"]["log"].exp() * density - value).mean()

    def temperature(params: Params) -> Tensor:
        _, density = drawn(params["actor"], given["observation"], draw)
        return (-params["temperature"]["log"] * (density - 1.5)).mean()

    check(sac, "critic", state, rows, critic, noise)
    check(sac, "actor", state, rows, actor, noise, reached={"critic"})
    check(sac, "temperature", state, rows, temperature, noise)


def judged(spec: ActionSpec, critics: Mapping[str, Tensor], rows: Batch) -> tuple[Tensor, Tensor]:
    """Return Q₁ and Q₂ of stored actions, with tanh: of a choice one of the outputs, otherwise of the pair."""
    observation, action = rows["observation"], rows["action"]
    if spec.kind == "structured":
        choices = [torch.nn.functional.one_hot(action[:, at].long(), size) for at, size in enumerate((3, 2))]
        action = torch.cat([*choices, action[:, 2:]], -1)
    inputs = observation if spec.kind == "discrete" else torch.cat([observation, action], -1)
    outputs = [perceptron(critics, inputs, torch.tanh, twin) for twin in TWINS["iql"]]
    place = action.unsqueeze(-1) if spec.kind == "discrete" else torch.zeros(len(action), 1, dtype=torch.int64)
    first, second = (output.gather(-1, place)[:, 0] for output in outputs)
    return first, second


@pytest.mark.parametrize("environment", [MASKED, VECTORS, HYBRID], ids=lambda each: each.name)
def test_gradients_of_iql_are_differences_of_its_formulas(environment: EnvironmentSpec):
    """The value against constant critics; the policy with constant weights, some at their limit; critics both."""
    settings: dict[str, Any] = {"expectile": 0.8, "inverse_temperature": 2.0, "weight_limit": 1.2, "discount": 0.9}
    iql = IQL(IQLSettings(hidden=(4,), **settings), environment)
    state, rows, spec = lively(iql), learned_from(iql), environment.action
    given, targets = in_float64(rows), in_float64(state.targets)

    def value_of(params: Params, column: str) -> Tensor:
        return perceptron(params["value"], given[column], torch.tanh)[:, 0]

    def advantage(params: Params) -> Tensor:
        return torch.minimum(*judged(spec, targets, given)) - value_of(params, "observation")

    def weight(params: Params) -> Tensor:
        return (2.0 * advantage(params)).exp().clamp(max=1.2)

    def value(params: Params) -> Tensor:
        found = advantage(params)
        return ((0.8 - (found < 0).double()).abs() * found.square()).mean()

    def policy(params: Params) -> Tensor:
        output = perceptron(params["policy"], given["observation"], torch.tanh)
        log_std, allowed = params["policy"].get("log_std"), given.get("allowed")
        likelihood, _ = log_likelihood(spec, output, log_std, given["action"], allowed)
        return -(weight(params) * likelihood).mean()

    def critic(params: Params) -> Tensor:
        target = given["reward"] + 0.9 * given["alive"] * value_of(params, "next_observation")
        return sum((each - target).square() for each in judged(spec, params["critic"], given)).mean()

    now = {name: in_float64(group) for name, group in state.params.items()}
    assert {bool(each) for each in weight(now) == 1.2} == {bool(each) for each in advantage(now) > 0} == {False, True}
    check(iql, "value", state, rows, value)
    check(iql, "policy", state, rows, policy)
    check(iql, "critic", state, rows, critic)
