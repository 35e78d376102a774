"""PPO, IMPALA and behaviour cloning against their formulas in docs/algorithms.md, from stored rows to gradients.

The formulas are written out in float64 (`support.algorithms.plain_formulas`), for choices, vectors and structured
actions, with masks and with episodes that end in every way.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from penstock.tasks.model.algorithms.behaviour_cloning import BehaviourCloning
from penstock.tasks.model.algorithms.impala import IMPALA
from penstock.tasks.model.algorithms.ppo import PPO
from penstock.tasks.setup.config.offline import BehaviourCloningSettings
from penstock.tasks.setup.config.on_policy import IMPALASettings, PPOSettings
from penstock.tasks.specs import EnvironmentSpec, State, Trajectory

from ....support.algorithms.plain_formulas import (
    ENVS,
    HYBRID,
    MASKED,
    STEPS,
    VECTORS,
    after,
    alive,
    backwards,
    compare,
    exact,
    log_likelihood,
    moved,
    near,
    observed,
    perceptron,
    played,
    split,
    standard,
    sums_of,
)

ROWS = torch.randperm(STEPS * ENVS, generator=torch.Generator().manual_seed(5))[:19]
"""A minibatch of a round."""
DISCOUNT, DECAY = 0.9, 0.8
COMMON: dict[str, Any] = {"hidden": (8,), "discount": DISCOUNT, "trace_decay": DECAY}


def round_by(algorithm: Any, seed: int = 20) -> tuple[State, Trajectory]:
    """Return a state, and a round that a policy of other parameters has acted."""
    state, older = algorithm.init(1), algorithm.init(2)
    for each, spread in ((state, 7), (older, 8)):
        for group in each.params:
            moved(each, group, 0.3, spread)
    environment = algorithm.environment
    return state, played(algorithm, older.params, lambda rows, seed: observed(environment, rows, seed), seed)


def flat(values: Tensor) -> Tensor:
    return values.flatten(0, 1)


# PPO

PPO_CASES = [
    pytest.param(MASKED, {"entropy_weight": 0.05}, id="masked choices"),
    pytest.param(
        HYBRID,
        {"entropy_weight": 0.05, "value_clip_range": 0.1, "advantage_normalization": "minibatch"},
        id="structured, clipped values, by minibatch",
    ),
    pytest.param(
        VECTORS,
        {"actions": "squashed", "normalize_observation": True, "normalize_reward": True, "reward_scale": 0.5},
        id="squashed vectors, normalised",
    ),
    pytest.param(
        VECTORS,
        {"shared_network": True, "value_weight": 0.3, "advantage_normalization": "none", "value_clip_range": 0.1},
        id="shared network, clipped values",
    ),
]


def deviation_of_sums(reward: Tensor, trajectory: Trajectory) -> Tensor:
    """Return the deviation of the discounted sums of rewards so far, which begin anew with episodes and rounds."""
    sums, columns = torch.zeros(STEPS, ENVS, dtype=torch.float64), trajectory.columns
    for step in range(STEPS):
        for env in range(ENVS):
            sums[step, env] = reward[step, env]
            if step and not (columns["terminated"][step - 1, env] or columns["truncated"][step - 1, env]):
                sums[step, env] += DISCOUNT * sums[step - 1, env]
    return (sums.var(correction=0) + 1e-8).sqrt()


@pytest.mark.parametrize(("environment", "settings"), PPO_CASES)
def test_ppo_learns_by_its_formulas(environment: EnvironmentSpec, settings: dict[str, Any]):
    """Advantages, targets, both losses and their gradients, after minibatches that have moved the parameters."""
    ppo = PPO(PPOSettings(**COMMON, **settings), environment)
    state, round_ = round_by(ppo)
    normalises = ppo.settings.normalize_observation
    mean, deviation, spread = torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64), torch.ones(())
    if normalises:  # by the moments of the rounds before
        _, before = round_by(ppo, seed=50)
        with torch.no_grad():
            state = ppo.after_round(state, ppo.stats(ppo.post(state.params, before)))
        seen = flat(before.columns["observation"]).double()
        mean, deviation = seen.mean(0), (seen.var(0, correction=0) + 1e-8).sqrt()
        spread = deviation_of_sums(0.5 * before.columns["reward"].double(), before)

    def outputs(params: dict[str, dict[str, Tensor]], observation: Tensor) -> tuple[Tensor, Tensor]:
        inputs = ((split(environment, observation)[0] - mean) / deviation).clamp(-10, 10)
        if ppo.settings.shared_network:
            both = perceptron(params["network"], inputs, torch.tanh)
            return both[..., :-1], both[..., -1]
        policy, value = (perceptron(params[name], inputs, torch.tanh) for name in ("policy", "value"))
        return policy, value[..., 0]

    columns, start = round_.columns, {name: exact(group) for name, group in state.params.items()}
    with torch.no_grad():
        _, value = outputs(start, columns["observation"])
        _, final = outputs(start, round_.bootstrap_observation)
        reward = (columns["reward"].double() * ppo.settings.reward_scale / spread).clamp(-10, 10)
        delta = reward + DISCOUNT * alive(round_) * after(value, final, round_) - value
        advantage = backwards(delta, torch.full_like(delta, DISCOUNT * DECAY), round_)
        batch = ppo.post(state.params, round_)
    near(batch["advantage"], flat(advantage))
    near(batch["value_target"], flat(advantage + value))

    for loss in ppo.losses:
        moved(state, loss.group, 0.1, 9)
    rows = {name: column[ROWS] for name, column in batch.items()}
    now = {name: exact(group) for name, group in state.params.items()}
    observation = flat(columns["observation"])[ROWS]
    policy, estimate = outputs(now, observation)
    action = flat(columns["sampled_action" if ppo.settings.actions == "squashed" else "action"])[ROWS]
    log_std = (now.get("policy") or now["network"]).get("log_std")
    allowed = split(environment, observation)[1]
    log_probability, entropy = log_likelihood(environment.action, policy, log_std, action, allowed)
    if ppo.settings.actions == "squashed":
        half = torch.tensor([2.0, 0.75])
        log_probability = log_probability - (half * (1 - action.double().tanh().square())).log().sum(-1)
    ratio = (log_probability - flat(columns["log_probability"])[ROWS].double()).exp()
    own = flat(advantage)[ROWS]
    if ppo.settings.advantage_normalization != "none":
        own = standard(own, own if ppo.settings.advantage_normalization == "minibatch" else advantage)
    surrogate = torch.minimum(ratio * own, ratio.clamp(0.8, 1.2) * own)
    assert (surrogate < ratio * own).any()
    policy_loss = -surrogate.mean() - ppo.settings.entropy_weight * entropy.mean()
    error = 0.5 * (estimate - flat(advantage + value)[ROWS]).square()
    if limit := ppo.settings.value_clip_range:
        first = flat(value)[ROWS]
        held = first + (estimate - first).clamp(-limit, limit)
        limited = 0.5 * (held - flat(advantage + value)[ROWS]).square()
        assert (limited > error).any()
        error = torch.maximum(error, limited)
    totals = sums_of(ppo, batch)
    if ppo.settings.advantage_normalization == "minibatch":
        totals = {name: float(value) for name, value in ppo.minibatch_stats(rows).items()}
    if ppo.settings.shared_network:
        whole = policy_loss + ppo.settings.value_weight * error.mean()
        compare(ppo.losses[0], state, rows, whole, now["network"], totals)
    else:
        for loss, expected in zip(ppo.losses, (policy_loss, error.mean()), strict=True):
            compare(loss, state, rows, expected, now[loss.group], totals)


# IMPALA


@pytest.mark.parametrize("environment", [MASKED, VECTORS, HYBRID], ids=lambda each: each.name)
@pytest.mark.parametrize(("rho", "c"), [(1.0, 1.0), (1.3, 0.7)])
def test_impala_learns_by_its_formulas(environment: EnvironmentSpec, rho: float, c: float):
    """V-trace's targets and advantages by the parameters of the round's start; the loss by those of the minibatch."""
    settings = IMPALASettings(**COMMON, rho_limit=rho, c_limit=c, value_weight=0.3, entropy_weight=0.05)
    impala = IMPALA(settings, environment)
    state, round_ = round_by(impala)
    columns = round_.columns

    def outputs(params: dict[str, Tensor], observation: Tensor) -> tuple[Tensor, Tensor]:
        both = perceptron(params, split(environment, observation)[0], torch.tanh)
        return both[..., :-1], both[..., -1]

    def log_ratio(params: dict[str, Tensor], policy: Tensor, rows: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        allowed = split(environment, rows["observation"])[1]
        found = log_likelihood(environment.action, policy, params.get("log_std"), rows["action"], allowed)
        return (*found, (found[0] - rows["log_probability"].double()).exp().detach())

    with torch.no_grad():
        start = exact(state.params["network"])
        policy, value = outputs(start, columns["observation"])
        ratio = log_ratio(start, policy, columns)[2]
        following = after(value, outputs(start, round_.bootstrap_observation)[1], round_)
        assert (ratio > rho).any()
        assert (ratio < c).any()
        delta = ratio.clamp(max=rho) * (columns["reward"].double() + DISCOUNT * alive(round_) * following - value)
        target = value + backwards(delta, DISCOUNT * DECAY * ratio.clamp(max=c), round_)
        bootstrapped = following.view(-1)[round_.bootstrap_rows]
        advantage = columns["reward"].double() - value + DISCOUNT * alive(round_) * after(target, bootstrapped, round_)
        batch = impala.post(state.params, round_)
    near(batch["value_target"], flat(target))
    near(batch["advantage"], flat(advantage))

    moved(state, "network", 0.1, 9)
    now = exact(state.params["network"])
    rows = {name: flat(column)[ROWS] for name, column in columns.items()}
    policy, estimate = outputs(now, rows["observation"])
    log_probability, entropy, ratio = log_ratio(now, policy, rows)
    error = 0.3 * 0.5 * (estimate - flat(target)[ROWS]).square()
    gain = ratio.clamp(max=rho) * flat(advantage)[ROWS] * log_probability
    expected = (error - gain - 0.05 * entropy).mean()
    minibatch = {name: column[ROWS] for name, column in batch.items()}
    compare(impala.losses[0], state, minibatch, expected, now, sums_of(impala, batch))


# Behaviour cloning

LOG_STD = torch.tensor([-7.0, 0.3])
"""One is beyond the limits: its deviation is e^-5, and it has no gradient."""


@pytest.mark.parametrize(
    ("environment", "bounded"),
    [
        pytest.param(MASKED, False, id="masked choices"),
        pytest.param(VECTORS, False, id="vectors"),
        pytest.param(VECTORS, True, id="means within bounds"),
        pytest.param(HYBRID, False, id="structured"),
    ],
)
def test_behaviour_cloning_learns_by_its_formula(environment: EnvironmentSpec, bounded: bool):
    """The likelihood of choices, vectors and structured actions, of what masks allow; its gradient, with a ReLU."""
    settings = BehaviourCloningSettings(hidden=(8,), activation="relu", bounded_mean=bounded)
    cloning = BehaviourCloning(settings, environment)
    state = cloning.init(1)
    moved(state, "policy", 0.3, 7)
    round_ = played(cloning, cloning.init(2).params, lambda rows, seed: observed(environment, rows, seed))
    with torch.no_grad():
        batch = cloning.post({}, round_)
        if "log_std" in state.params["policy"]:
            state.params["policy"]["log_std"].copy_(LOG_STD)
    rows, params = {name: column[ROWS] for name, column in batch.items()}, exact(state.params["policy"])
    inputs, allowed = split(environment, flat(round_.columns["observation"])[ROWS])
    output = perceptron(params, inputs, torch.relu)
    if bounded:
        low, high = (torch.tensor(each, dtype=torch.float64) for each in ((-2.0, -0.5), (2.0, 1.0)))
        output = (low + high) / 2 + output.tanh() * (high - low) / 2
    log_std = params["log_std"].clamp(-5, 2) if "log_std" in params else None
    action = flat(round_.columns["action"])[ROWS]
    likelihood, _ = log_likelihood(environment.action, output, log_std, action, allowed)
    compare(cloning.losses[0], state, rows, -likelihood.mean(), params)
