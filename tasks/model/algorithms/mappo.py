"""Proximal policy optimisation for several agents: MAPPO and IPPO.

MAPPO is from Yu et al. 2022 (arXiv 2103.01955), IPPO from de Witt et al. 2020 (arXiv 2011.09533). All agents share one
policy, which gets each agent's own observation and, if wanted, the agent's id. The two differ in the critic: MAPPO's
gets the observations of all agents, first those of the agent whose value it gives, and is used in learning alone, so
acting stays decentralised; IPPO's gets the agent's own observation, so that each agent learns independently. The rest
is PPO's with an agent axis after the row axis: a row is a step of an environment and holds all its agents, so that
every loss gets them together.

Without `shared_parameters` every agent has a policy and a critic of its own, `policy_0`, `value_0` and so on, with a
loss each that reads no other agent's networks: of other agents a central critic sees the observations, which are data.
So each agent's networks may be trained by a learner of its own (policy `agents`). Advantages are normalised over all
agents either way.

Left out on purpose: value clipping and normalised value targets (`reward_scale` serves here), recurrent networks, and
agents that leave before the episode ends.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from penstock.tasks.model.algorithms.contract import Algorithm, Loss
from penstock.tasks.model.nn.distributions import choice_probability, choose, displace, vector_probability
from penstock.tasks.model.nn.layers import init_mlp, mlp
from penstock.tasks.model.nn.normalizers import Normalizers
from penstock.tasks.model.nn.optimizers import annealed, clip_norm, init_adam, step_adam
from penstock.tasks.model.nn.returns import generalized_advantages, successor_values
from penstock.tasks.model.nn.surrogate import advantage_sums, clipped_surrogate, normalised
from penstock.tasks.setup.config.on_policy import MultiAgentSettings
from penstock.tasks.specs import EnvironmentSpec, NoiseSpec, ParameterGroup, Spec, State

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.tasks.model.algorithms.contract import Window
    from penstock.tasks.specs import Batch, LossInputs, LossResult, Params, Trajectory


@dataclass(frozen=True, slots=True)
class MAPPO(Algorithm):
    """PPO for the agents of one environment; columns are `[B, agents, ...]`."""

    settings: MultiAgentSettings
    environment: EnvironmentSpec

    @property
    def rows(self) -> dict[str, Spec]:
        """`action` as the environment takes it, and its `log_probability` for each agent."""
        return {"action": self.environment.action.spec, "log_probability": Spec("float32", (self.environment.agents,))}

    @property
    def noise(self) -> NoiseSpec:
        """Gumbel noise samples a choice (Gumbel-max), normal noise displaces a mean; zero noise is greedy."""
        action = self.environment.action
        if self._discrete:
            return NoiseSpec("gumbel", (self.environment.agents, action.n))
        return NoiseSpec("normal", action.shape)

    @property
    def losses(self) -> tuple[Loss, ...]:
        """Clipped surrogate for the policy, squared error for the value; of all agents, or two for each of them."""
        return tuple(
            Loss(
                f"{kind}{suffix}",
                f"{kind}{suffix}",
                partial(function, suffix, agents),
                independent=True,
                agents=tuple(agents) if suffix else None,
            )
            for suffix, agents in self._shares
            for kind, function in (("policy", self._policy_loss), ("value", self._value_loss))
        )

    @property
    def actor_groups(self) -> tuple[str, ...]:
        """The policies and the observation's normaliser: actors have no critic."""
        return (*(f"policy{suffix}" for suffix, _ in self._shares), *self._normalizers.actor_groups)

    def init(self, seed: int) -> State:
        """Return orthogonal weights; the policy's last layer is small, so that it starts near uniform."""
        generator = torch.Generator().manual_seed(seed)
        settings, agents = self.settings, self.environment.agents
        numbers = math.prod(self.environment.policy_input.shape[1:])
        ids = agents if self._gives_id else 0
        outputs = self.environment.action.n if self._discrete else math.prod(self.environment.action.shape[1:])
        value_numbers = numbers * agents if settings.central_critic else numbers
        params: dict[str, ParameterGroup] = {}
        for suffix, _ in self._shares:
            policy = init_mlp((numbers + ids, *settings.hidden, outputs), 0.01, generator)
            if not self._discrete:
                policy["log_std"] = torch.full((outputs,), settings.initial_log_std)
            value = init_mlp((value_numbers + ids, *settings.hidden, 1), 1.0, generator)
            params |= {f"policy{suffix}": ParameterGroup(policy), f"value{suffix}": ParameterGroup(value)}
        state = State(params=params, optimizer={name: init_adam(group.flat) for name, group in params.items()})
        self._normalizers.init(state)
        return state

    def act(
        self, params: Params, carry: Tensor | None, observation: Tensor, noise: Tensor
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """Sample every agent's action from its policy; see `Algorithm.act`."""
        unmasked, allowed = self.environment.split(observation)
        features = self._normalizers.normalized(params, _features(unmasked))
        acted = []
        for suffix, agents in self._shares:
            policy, own = params[f"policy{suffix}"], _axis(agents)
            output = self._policy(policy, features[:, own])
            if self._discrete:
                acted.append(choose(output, noise[:, own], None if allowed is None else allowed[:, own]))
            else:
                acted.append(displace(output, policy["log_std"], noise[:, own].flatten(2)))
        action, log_probability = (torch.cat(parts, 1) if parts[1:] else parts[0] for parts in zip(*acted, strict=True))
        if not self._discrete:
            action = action.view(-1, *self.environment.action.shape)
        return {"action": action, "log_probability": log_probability}, carry

    def post(self, params: Params, trajectory: Trajectory) -> Batch:
        """Compute values in one batch, then advantages and value targets per environment and agent."""
        settings, columns = self.settings, trajectory.columns
        reward = columns["reward"] * settings.reward_scale
        if settings.team_reward:
            reward = reward.mean(-1, keepdim=True).expand_as(reward)
        ends = columns["terminated"].unsqueeze(-1), columns["truncated"].unsqueeze(-1)
        reward, reward_statistics = self._normalizers.rewards(params, reward, *ends, settings.discount)
        unmasked, allowed = self.environment.split(columns["observation"].flatten(0, 1))
        observation = _features(unmasked)
        final = _features(self.environment.split(trajectory.bootstrap_observation)[0])
        value = self._values(params, self._normalizers.normalized(params, observation)).view(reward.shape)
        final_value = self._values(params, self._normalizers.normalized(params, final))
        advantage = generalized_advantages(
            reward,
            value,
            successor_values(value, trajectory.bootstrap_rows, final_value),
            *ends,
            settings.discount,
            settings.trace_decay,
        )
        return {
            "observation": observation,
            "action": columns["action"].flatten(0, 1),
            "log_probability": columns["log_probability"].flatten(0, 1),
            "advantage": advantage.flatten(0, 1),
            "value_target": (advantage + value).flatten(0, 1),
            **({} if allowed is None else {"allowed": allowed}),
            **{name: column.flatten(0, 1) for name, column in reward_statistics.items()},
        }

    def stats(self, batch: Batch) -> dict[str, Tensor]:
        """Return the sums that give mean and variance of all agents' advantages, and those of the normalisers."""
        return advantage_sums(batch["advantage"]) | self._normalizers.sums(batch)

    def plan(self, generator: torch.Generator, window: Window) -> Iterator[Tensor]:
        """Yield every row once an epoch, in a fresh order."""
        for _ in range(self.settings.epochs):
            yield from torch.randperm(window.rows, generator=generator).tensor_split(self.settings.minibatches)

    def _policy_loss(self, suffix: str, agents: range, params: Params, batch: LossInputs) -> LossResult:
        """Minus PPO's clipped surrogate and its entropy bonus, a mean over the agents of one policy."""
        settings, policy, own = self.settings, params[f"policy{suffix}"], _axis(agents)
        output = self._policy(policy, self._normalizers.normalized(params, batch["observation"][:, own]))
        action, allowed = batch["action"][:, own], batch.get("allowed")
        if self._discrete:
            log_probability, entropy = choice_probability(output, action, None if allowed is None else allowed[:, own])
        else:
            log_probability, entropy = vector_probability(output, policy["log_std"], action.flatten(2))
        advantage = normalised(batch["advantage"][:, own], batch.stats)
        surrogate, outputs = clipped_surrogate(
            log_probability, batch["log_probability"][:, own], advantage, settings.clip_range
        )
        scalar = -batch.mean(surrogate + settings.entropy_weight * entropy)
        outputs = {**outputs, "entropy": entropy.detach()}
        return scalar, {f"{name}{suffix}": value.mean(-1) for name, value in outputs.items()}

    def _value_loss(self, suffix: str, agents: range, params: Params, batch: LossInputs) -> LossResult:
        """Half the squared error of the value, a mean over the agents of one critic."""
        features = self._normalizers.normalized(params, batch["observation"])
        value = self._value(params[f"value{suffix}"], features, agents)
        error = 0.5 * (value - batch["value_target"][:, _axis(agents)]).square()
        return batch.mean(error), {f"value_loss{suffix}": error.detach().mean(-1)}

    def update(self, state: State, loss: Loss, gradient: Tensor) -> State:
        """Clip the group's gradient by its norm, then take a step of Adam with the annealed learning rate."""
        settings, optimizer = self.settings, state.optimizer[loss.group]
        over_steps = settings.anneal_rounds * settings.epochs * settings.minibatches
        rate = annealed(settings.learning_rate, settings.final_learning_rate, optimizer, over_steps)
        step_adam(state.params[loss.group].flat, clip_norm(gradient, settings.gradient_norm), optimizer, rate)
        return state

    def after_round(self, state: State, stats: Mapping[str, Tensor]) -> State:
        """Update the normalisers; without them, nothing changes."""
        self._normalizers.update(state, stats)
        return state

    @property
    def _discrete(self) -> bool:
        """Return whether an agent's actions are choices; otherwise they are vectors."""
        return self.environment.action.kind == "discrete"

    @property
    def _shares(self) -> tuple[tuple[str, range], ...]:
        """The suffix of each pair of groups, policy and value, and the agents that use it: all of them, or one each."""
        agents = range(self.environment.agents)
        if self.settings.shared_parameters:
            return (("", agents),)
        return tuple((f"_{agent}", agents[agent : agent + 1]) for agent in agents)

    @property
    def _gives_id(self) -> bool:
        """Return whether networks get the agent's id; one agent's own networks need none."""
        return self.settings.agent_id and self.settings.shared_parameters

    @property
    def _normalizers(self) -> Normalizers:
        settings, numbers = self.settings, math.prod(self.environment.policy_input.shape[1:])
        return Normalizers(
            observation=numbers if settings.normalize_observation else 0, reward=settings.normalize_reward
        )

    def _policy(self, params: Mapping[str, Tensor], features: Tensor) -> Tensor:
        """Compute logits or means of each agent, `[rows, agents, outputs]`."""
        layers = params if self._discrete else {name: value for name, value in params.items() if name != "log_std"}
        return mlp(layers, self._with_id(features))

    def _values(self, params: Params, features: Tensor) -> Tensor:
        """Compute the values of all agents `[rows, agents]`."""
        return torch.cat([self._value(params[f"value{suffix}"], features, own) for suffix, own in self._shares], 1)

    def _value(self, params: Mapping[str, Tensor], features: Tensor, agents: range | None = None) -> Tensor:
        """Compute values `[rows, agents]` of some agents, by default all, from what all observe `[rows, all, ...]`."""
        agents = range(self.environment.agents) if agents is None else agents
        if self.settings.central_critic:
            features = torch.stack([features.roll(-agent, 1).flatten(1) for agent in agents], 1)
        else:
            features = features[:, _axis(agents)]
        return mlp(params, self._with_id(features)).squeeze(-1)

    def _with_id(self, features: Tensor) -> Tensor:
        """Append each agent's id, one-hot, if the networks get it."""
        if not self._gives_id:
            return features
        agents = self.environment.agents
        ids = torch.eye(agents, device=features.device).expand(features.shape[0], agents, agents)
        return torch.cat([features, ids], -1)


def _axis(agents: range) -> slice:
    """Return these agents' part of the agent axis."""
    return slice(agents.start, agents.stop)


def _features(observation: Tensor) -> Tensor:
    """Convert `[rows, agents, ...]` of any number type to float32 `[rows, agents, inputs]`."""
    return observation.flatten(2).float()
