"""MAPPO and IPPO against their formulas in docs/algorithms.md, with limited values and agents that leave.

The formulas are written out in float64 (`support.algorithms.plain_formulas`), from stored rows to gradients.
"""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from penstock.tasks.model.algorithms.mappo import MAPPO
from penstock.tasks.setup.config.on_policy import IPPOSettings, MAPPOSettings
from penstock.tasks.specs import ActionSpec, EnvironmentSpec, Spec, State, Trajectory

from ....support.algorithms.plain_formulas import (
    ENVS,
    STEPS,
    after,
    alive,
    backwards,
    compare,
    exact,
    log_likelihood,
    moved,
    near,
    perceptron,
    played,
    standard,
    sums_of,
)
from ....support.algorithms.ppo_cases import random

AGENTS, CHOICES, NUMBERS = 3, 4, 2
MASKS = AGENTS * CHOICES
TEAM = EnvironmentSpec(
    "team",
    Spec("float32", (AGENTS * (CHOICES + NUMBERS),)),
    ActionSpec("discrete", n=CHOICES, shape=(AGENTS,)),
    None,
    None,
    agents=AGENTS,
    unmasked_observation=Spec("float32", (AGENTS, NUMBERS)),
)
VECTORS = EnvironmentSpec(
    "vectors of a team",
    Spec("float32", (AGENTS, NUMBERS)),
    ActionSpec("box", shape=(AGENTS, 2), low=(-1.0,) * 6, high=(1.0,) * 6),
    None,
    None,
    agents=AGENTS,
)
ROWS = torch.randperm(STEPS * ENVS, generator=torch.Generator().manual_seed(5))[:19]
DISCOUNT, DECAY, HUBER, LIMIT = 0.9, 0.8, 0.4, 0.15
RECOMMENDED = {"normalize_value": True, "huber_delta": HUBER, "value_clip_range": LIMIT}
OWN = {**RECOMMENDED, "value_after_leaving": False, "team_reward": False}
CASES = [
    pytest.param(TEAM, True, RECOMMENDED, id="mappo, as recommended"),
    pytest.param(TEAM, True, OWN, id="mappo, own rewards"),
    pytest.param(TEAM, True, {**RECOMMENDED, "shared_parameters": False}, id="mappo, networks of their own"),
    pytest.param(TEAM, False, {**RECOMMENDED, "value_decay": 0.5, "reward_scale": 0.3}, id="ippo, as recommended"),
    pytest.param(TEAM, False, {"value_after_leaving": False}, id="ippo, plain"),
    pytest.param(VECTORS, True, {**RECOMMENDED, "agent_id": False}, id="mappo, vectors without ids"),
]


def seen(environment: EnvironmentSpec, rows: int, seed: int) -> Tensor:
    """Return random observations; of each team with masks about a third of the agents has left, and one is there."""
    numbers = random(rows, AGENTS, NUMBERS, seed=seed)
    if environment is VECTORS:
        return numbers
    generator = torch.Generator().manual_seed(seed)
    allowed = torch.rand(rows, AGENTS, CHOICES, generator=generator) > 0.3
    there = torch.rand(rows, AGENTS, generator=generator) > 0.35
    there[range(rows), torch.arange(rows) % AGENTS] = True
    allowed[..., 1] |= ~allowed.any(-1)
    return torch.cat([(allowed & there.unsqueeze(-1)).float().flatten(1), numbers.flatten(1)], 1)


def taken_apart(observation: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return what agents observe `[..., agents, 2]`, their masks, and 1 for those that are there `[..., agents]`."""
    if observation.shape[-1] == NUMBERS:
        return observation.double(), None, torch.ones(observation.shape[:-1], dtype=torch.float64)
    allowed = observation[..., :MASKS].unflatten(-1, (AGENTS, CHOICES)) != 0
    return observation[..., MASKS:].unflatten(-1, (AGENTS, NUMBERS)).double(), allowed, allowed.any(-1).double()


class Networks:
    """Outputs of a run's policies and critics, each agent's by its own inputs."""

    def __init__(self, mappo: MAPPO, state: State) -> None:
        self._settings, self._central = mappo.settings, mappo.settings.central_critic
        self.params = {name: exact(group) for name, group in state.params.items()}

    def _of(self, kind: str, agent: int, inputs: list[Tensor]) -> Tensor:
        settings = self._settings
        if settings.shared_parameters and settings.agent_id:
            one_hot = torch.eye(AGENTS, dtype=torch.float64)[agent]
            inputs = [*inputs, one_hot.expand(*inputs[0].shape[:-1], AGENTS)]
        name = kind if settings.shared_parameters else f"{kind}_{agent}"
        return perceptron(self.params[name], torch.cat(inputs, -1), torch.tanh)

    def values(self, observation: Tensor) -> Tensor:
        """Return the critics' outputs `[..., agents]`: in place of agents that have left they get zeros."""
        features, _, there = taken_apart(observation)
        features, found = features * there.unsqueeze(-1), []
        for agent in range(AGENTS):
            order = [(agent + k) % AGENTS for k in range(AGENTS if self._central else 1)]
            inputs = [features[..., k, :] * there[..., agent, None] for k in order]
            found.append(self._of("value", agent, inputs)[..., 0])
        return torch.stack(found, -1)

    def likelihood(self, mappo: MAPPO, observation: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return ln π `[rows, agents]` and the entropies; of agents that have left both are 0."""
        features, allowed, there = taken_apart(observation)
        shape = mappo.environment.action.shape[1:]
        one = ActionSpec(mappo.environment.action.kind, n=CHOICES, shape=shape, low=(-1.0,) * 2, high=(1.0,) * 2)
        found = []
        for agent in range(AGENTS):
            output = self._of("policy", agent, [features[..., agent, :]])
            mask = None if allowed is None else allowed[..., agent, :] | (there[..., agent, None] == 0)
            name = "policy" if self._settings.shared_parameters else f"policy_{agent}"
            log_std = self.params[name].get("log_std")
            each = log_likelihood(one, output, log_std, action[:, agent], mask)
            found.append(torch.stack(each) * there[..., agent])
        return tuple(torch.stack(found, -1))  # type: ignore[return-value]


def targets_of(mappo: MAPPO, networks: Networks, round_: Trajectory, m: Tensor, sigma: Tensor) -> tuple[Tensor, ...]:
    """Return a round's advantages, value targets and critics' outputs, `[T, B, agents]`."""
    settings, columns = mappo.settings, round_.columns
    reward = columns["reward"].double() * settings.reward_scale
    if settings.team_reward:
        reward = reward.mean(-1, keepdim=True).expand(STEPS, ENVS, AGENTS)
    output, final = (networks.values(each).detach() for each in (columns["observation"], round_.bootstrap_observation))
    value, following = sigma * output + m, after(sigma * output + m, sigma * final + m, round_)
    goes = alive(round_).unsqueeze(-1).expand_as(value)
    if not settings.value_after_leaving:
        there = taken_apart(columns["observation"])[2]
        left = after(there, taken_apart(round_.bootstrap_observation)[2], round_)
        goes = goes * (1 - there * (1 - left))
    advantage = backwards(reward + DISCOUNT * goes * following - value, DISCOUNT * DECAY * goes, round_)
    return advantage, advantage + value, output


@pytest.mark.parametrize(("environment", "central", "settings"), CASES)
def test_teams_learn_by_their_formulas(environment: EnvironmentSpec, central: bool, settings: dict[str, Any]):
    """In the third round: moments are of the two before, and minibatches have moved the parameters since its start."""
    common: dict[str, Any] = {"hidden": (8,), "discount": DISCOUNT, "trace_decay": DECAY, "entropy_weight": 0.05}
    kind = MAPPOSettings if central else IPPOSettings
    mappo = MAPPO(kind(**common, **settings), environment)
    state, older = mappo.init(1), mappo.init(2)
    for each, spread in ((state, 7), (older, 8)):
        for loss in mappo.losses:
            moved(each, loss.group, 0.3, spread)
    rounds = [played(mappo, older.params, partial(seen, environment), seed) for seed in (20, 40, 60)]
    m, sigma, learned = torch.zeros(()).double(), torch.ones(()).double(), []
    for round_ in rounds[:2]:
        networks = Networks(mappo, state)
        target, there = targets_of(mappo, networks, round_, m, sigma)[1], taken_apart(round_.columns["observation"])[2]
        learned.append(target[there != 0])
        with torch.no_grad():
            state = mappo.after_round(state, mappo.stats(mappo.post(state.params, round_)))
        if mappo.settings.normalize_value:
            ages = torch.cat([torch.full_like(each, number) for number, each in enumerate(reversed(learned))][::-1])
            weights = mappo.settings.value_decay**ages
            m = (weights * torch.cat(learned)).sum() / weights.sum()
            sigma = ((weights * (torch.cat(learned) - m).square()).sum() / weights.sum() + 1e-8).sqrt()

    round_, columns = rounds[2], rounds[2].columns
    advantage, target, first = targets_of(mappo, Networks(mappo, state), round_, m, sigma)
    with torch.no_grad():
        batch = mappo.post(state.params, round_)
    near(batch["advantage"], advantage.flatten(0, 1), 4e-6)
    near(batch["value_target"], target.flatten(0, 1), 4e-6)
    present = taken_apart(columns["observation"])[2]
    own = standard(advantage, advantage[present != 0])

    for loss in mappo.losses:
        moved(state, loss.group, 0.1, 9)
    networks = Networks(mappo, state)
    advantage, target, first, present, observation, action, acted = (
        each.flatten(0, 1)[ROWS]
        for each in (own, target, first, present, *(columns[n] for n in ("observation", "action", "log_probability")))
    )
    log_probability, entropy = networks.likelihood(mappo, observation, action)
    ratio = (log_probability - acted.double()).exp()
    surrogate = present * torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    value, aim = networks.values(observation), (target - m) / sigma

    def error(estimate: Tensor) -> Tensor:
        distance, limit = (estimate - aim).abs(), mappo.settings.huber_delta or torch.inf
        beyond = mappo.settings.huber_delta * (distance - 0.5 * mappo.settings.huber_delta)
        return torch.where(distance <= limit, 0.5 * distance**2, beyond)

    errors = error(value)
    if mappo.settings.value_clip_range:
        held = error(first + (value - first).clamp(-LIMIT, LIMIT))
        assert (held > errors).any()
        assert ((value - aim).abs() > HUBER).any()
        errors = torch.maximum(errors, held)
    if not mappo.settings.value_after_leaving:
        errors = errors * present
    rows, totals = {name: column[ROWS] for name, column in batch.items()}, sums_of(mappo, batch)
    assert environment is VECTORS or 0.1 < (present == 0).double().mean() < 0.5
    by_agent = {"policy": -surrogate - 0.05 * entropy, "value": errors}
    for loss in mappo.losses:
        kind_, _, agent = loss.name.partition("_")
        terms = by_agent[kind_][:, int(agent)] if agent else by_agent[kind_]
        compare(loss, state, rows, terms.mean(), networks.params[loss.group], totals, tolerance=4e-6)
