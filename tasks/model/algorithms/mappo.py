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

Of what Yu et al. recommend, settings add the rest: normalised value targets, Huber's loss and clipped values
(`nn.value_learning`), and recurrent networks: each agent has a memory for its policy and one for its critic, and a
training row is a sequence of steps with the memories before its first. Actors then carry the critic's memory too, as
PPO's do.

An agent whose mask allows it nothing has left, while others go on. It takes choice 0, and its rows count neither in the
policy's loss nor in the moments of any normaliser. Critics get zeros in its place and, for itself, zeros and its id
(death masking). As in Yu et al.'s runs on SMAC, its critic still learns from its rows what the team earns after it has
left; `value_after_leaving = false` ends its return there instead, and its rows count in no loss.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from penstock.tasks.model.algorithms.contract import Algorithm, Loss
from penstock.tasks.model.nn.agent_networks import (
    AgentNetwork,
    TeamDistribution,
    agent_means,
    axis_of,
    flat_features,
    join_agents,
    memory_of,
    present_agents,
)
from penstock.tasks.model.nn.distributions import require_choice
from penstock.tasks.model.nn.network import Network
from penstock.tasks.model.nn.normalizers import Normalizers
from penstock.tasks.model.nn.optimizers import EntropyBonus, annealed, clip_norm, count_round, init_adam, step_adam
from penstock.tasks.model.nn.returns import generalized_advantages, successor_values
from penstock.tasks.model.nn.surrogate import advantage_sums, clipped_surrogate, normalised
from penstock.tasks.model.nn.value_learning import ValueNormalizer, limited_value_error
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
        """`action` as the environment takes it, and its `log_probability` for each agent.

        With recurrent networks also `memory`, before the step: each agent's of its policy, and of its critic.
        """
        agents = self.environment.agents
        columns = {"action": self.environment.action.spec, "log_probability": Spec("float32", (agents,))}
        if self._recurrent:
            columns["memory"] = Spec("float32", (2, agents, self.settings.features))
        return columns

    @property
    def noise(self) -> NoiseSpec:
        """Gumbel noise samples a choice (Gumbel-max), normal noise displaces a mean; zero noise is greedy."""
        return self._team.noise

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
        """The policies, the observation's normaliser, and the critics if actors carry their memories."""
        kinds = ("policy", "value") if self._recurrent else ("policy",)
        networks = (f"{kind}{suffix}" for suffix, _ in self._shares for kind in kinds)
        return (*networks, *self._normalizers.actor_groups)

    def init(self, seed: int) -> State:
        """Return orthogonal weights; the policy's last layer is small, so that it starts near uniform."""
        generator = torch.Generator().manual_seed(seed)
        params: dict[str, ParameterGroup] = {}
        for suffix, agents in self._shares:
            distribution = self._actions_of(agents)
            policy = self._policies.init(distribution.outputs, 0.01, generator)
            if numbers := distribution.numbers:
                policy["log_std"] = torch.full((numbers,), self.settings.initial_log_std)
            value = self._critics.init(1, 1.0, generator)
            params |= {f"policy{suffix}": ParameterGroup(policy), f"value{suffix}": ParameterGroup(value)}
        state = State(params=params, optimizer={name: init_adam(group.flat) for name, group in params.items()})
        self._normalizers.init(state)
        self._value_normalizer.init(state)
        self._entropy_bonus.init(state)
        return state

    def initial_carry(self, envs: int) -> Tensor | None:
        """Return empty memories `[envs, 2, agents, features]`; None if the networks have none."""
        return torch.zeros(envs, *self.rows["memory"].shape) if self._recurrent else None

    def act(
        self, params: Params, carry: Tensor | None, observation: Tensor, noise: Tensor
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """Sample every agent's action from its policy; see `Algorithm.act`."""
        unmasked, allowed = self.environment.split(observation)
        features, present = self._normalizers.normalized(params, flat_features(unmasked)), present_agents(allowed)
        if allowed is not None:
            require_choice(allowed.flatten(1))
            allowed = self._team.with_fixed_choices(allowed)
        acted, memories = [], []
        for suffix, agents in self._shares:
            policy, own = params[f"policy{suffix}"], axis_of(agents)
            seen = self._policies.inputs(policy, features, agents, present)
            output, memory = self._policies.step(policy, memory_of(carry, 0, agents), seen)
            of_agents = None if allowed is None else allowed[:, own]
            acted.append(self._actions_of(agents).sample(output, policy.get("log_std"), noise[:, own], of_agents))
            if memory is not None:
                critic, before = params[f"value{suffix}"], memory_of(carry, 1, agents)
                inputs = self._critics.inputs(critic, features, agents, present)
                _, of_critic = self._critics.step(critic, before, inputs)
                memories.append(torch.stack([memory, cast("Tensor", of_critic)], 1))
        action, log_probability = (join_agents(parts, 1) for parts in zip(*acted, strict=True))
        rows = {"action": action, "log_probability": log_probability}
        if carry is None:
            return rows, None
        return {**rows, "memory": carry}, join_agents(memories, 2)

    def post(self, params: Params, trajectory: Trajectory) -> Batch:
        """Compute values in one batch, then advantages and value targets per environment and agent."""
        settings, columns = self.settings, trajectory.columns
        reward = columns["reward"] * settings.reward_scale
        if settings.team_reward:
            reward = reward.mean(-1, keepdim=True).expand_as(reward)
        unmasked, allowed = self.environment.split(columns["observation"].flatten(0, 1))
        observation, present = flat_features(unmasked), present_agents(allowed)
        unmasked, allowed_after = self.environment.split(trajectory.bootstrap_observation)
        final, final_present = flat_features(unmasked), present_agents(allowed_after)
        ends = columns["terminated"].unsqueeze(-1), columns["truncated"].unsqueeze(-1)
        if present is not None and final_present is not None:
            # What an agent that has left observes may be anything, and 0 times it is not always 0.
            observation = torch.where(present.unsqueeze(-1) != 0, observation, 0.0)
            if not settings.value_after_leaving:
                there = present.view_as(reward)
                stays = successor_values(there, trajectory.bootstrap_rows, final_present)
                ends = (ends[0] != 0) | (there > stays), ends[1]
        reward, reward_statistics = self._normalizers.rewards(params, reward, *ends, settings.discount)
        output, final_output = self._outputs_of_round(
            params, trajectory, (observation, present), (final, final_present)
        )
        value = self._value_normalizer.restored(params, output)
        final_value = self._value_normalizer.restored(params, final_output)
        advantage = generalized_advantages(
            reward,
            value,
            successor_values(value, trajectory.bootstrap_rows, final_value),
            *ends,
            settings.discount,
            settings.trace_decay,
        )
        learned = {
            "action": columns["action"],
            "log_probability": columns["log_probability"],
            "advantage": advantage,
            "value_target": advantage + value,
            **reward_statistics,
        }
        if settings.value_clip_range:
            learned["value"] = output
        if allowed is not None and present is not None:
            learned["allowed"] = self._team.with_fixed_choices(allowed).unflatten(0, reward.shape[:2])
            learned["present"] = present.view_as(reward)
        return self._policies.network.training_rows(trajectory, observation, learned, settings.sequence_steps)

    def stats(self, batch: Batch) -> dict[str, Tensor]:
        """Return the sums that give mean and variance of all agents' advantages, and those of the normalisers.

        Rows of agents that have left count in none.
        """
        present = batch.get("present")
        sums = advantage_sums(batch["advantage"], present) | self._normalizers.sums(batch, present)
        if not self._value_normalizer.enabled:
            return sums
        return sums | self._value_normalizer.sums(batch["value_target"], present)

    def plan(self, generator: torch.Generator, window: Window) -> Iterator[Tensor]:
        """Yield every row once an epoch, in a fresh order."""
        for _ in range(self.settings.epochs):
            yield from torch.randperm(window.rows, generator=generator).tensor_split(self.settings.minibatches)

    def _policy_loss(self, suffix: str, agents: range, params: Params, batch: LossInputs) -> LossResult:
        """Return minus PPO's clipped surrogate and its entropy bonus, a mean over the agents of one policy.

        Those that have left count as 0: ratio, divergence and entropy of their only choice are constants.
        """
        settings, policy = self.settings, params[f"policy{suffix}"]
        features = self._normalizers.normalized(params, batch["observation"])
        memory, present = memory_of(batch.get("memory"), 0, agents), batch.get("present")
        seen = self._policies.inputs(policy, features, agents, present)
        output = self._policies.over_rows(policy, seen, memory, batch.get("fresh"))
        action, allowed = self._own(batch["action"], agents), batch.get("allowed")
        of_agents = None if allowed is None else self._own(allowed, agents)
        log_probability, entropy = self._actions_of(agents).probability(
            output, policy.get("log_std"), action, of_agents
        )
        advantage = normalised(self._own(batch["advantage"], agents), batch.stats)
        surrogate, outputs = clipped_surrogate(
            log_probability, self._own(batch["log_probability"], agents), advantage, settings.clip_range
        )
        if present is not None:
            surrogate = surrogate * self._own(present, agents)
        scalar = batch.weighted_mean((surrogate, -1.0), (entropy, -self._entropy_bonus.weight(batch.targets)))
        return scalar, {
            f"{name}{suffix}": agent_means(values) for name, values in (outputs | {"entropy": entropy}).items()
        }

    def _value_loss(self, suffix: str, agents: range, params: Params, batch: LossInputs) -> LossResult:
        """Return half the squared error of the value, or Huber's, a mean over the agents of one critic."""
        settings, present, critic = self.settings, batch.get("present"), params[f"value{suffix}"]
        features = self._normalizers.normalized(params, batch["observation"])
        inputs = self._critics.inputs(critic, features, agents, present)
        memory = memory_of(batch.get("memory"), 1, agents)
        output = self._critics.over_rows(critic, inputs, memory, batch.get("fresh"))
        target = self._value_normalizer.normalized(params, self._own(batch["value_target"], agents))
        before = self._own(batch["value"], agents) if settings.value_clip_range else None
        error = limited_value_error(
            output, target, before, huber_delta=settings.huber_delta, clip_range=settings.value_clip_range
        )
        if present is not None and not settings.value_after_leaving:
            error = error * self._own(present, agents)
        return batch.mean(error), {f"value_loss{suffix}": agent_means(error)}

    def update(self, state: State, loss: Loss, gradient: Tensor) -> State:
        """Clip the group's gradient by its norm, then take a step of Adam with the annealed learning rate."""
        settings, optimizer = self.settings, state.optimizer[loss.group]
        over_steps = settings.anneal_rounds * settings.epochs * settings.minibatches
        rate = annealed(settings.learning_rate, settings.final_learning_rate, optimizer, over_steps)
        step_adam(state.params[loss.group].flat, clip_norm(gradient, settings.gradient_norm), optimizer, rate)
        return state

    def after_round(self, state: State, stats: Mapping[str, Tensor]) -> State:
        """Update the normalisers, and count the round if a schedule needs it; otherwise do nothing."""
        self._normalizers.update(state, stats)
        self._value_normalizer.update(state, stats)
        count_round(state)
        return state

    def _actions_of(self, agents: range) -> TeamDistribution:
        """Return the distribution over some agents' actions, by one network's outputs."""
        return TeamDistribution(self.environment.action, agents)

    @property
    def _entropy_bonus(self) -> EntropyBonus:
        settings = self.settings
        return EntropyBonus(settings.entropy_weight, settings.final_entropy_weight, settings.anneal_rounds)

    @property
    def _team(self) -> TeamDistribution:
        return self._actions_of(range(self.environment.agents))

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

    @property
    def _value_normalizer(self) -> ValueNormalizer:
        return ValueNormalizer(enabled=self.settings.normalize_value, decay=self.settings.value_decay)

    @property
    def _recurrent(self) -> bool:
        """Return whether the networks have memories."""
        return self.settings.network == "recurrent"

    @property
    def _policies(self) -> AgentNetwork:
        return self._network(central=False)

    @property
    def _critics(self) -> AgentNetwork:
        return self._network(central=self.settings.central_critic)

    def _network(self, *, central: bool) -> AgentNetwork:
        """Return the network that gets one agent's observation or, `central`, those of all, and maybe an id."""
        settings, environment = self.settings, self.environment
        name, observed = settings.network, environment.policy_input
        numbers, encoder = math.prod(observed.shape[1:]), None
        if name == "leaves":
            seen = Spec(observed.dtype, (numbers,), leaves=environment.agent_leaves)
            name, encoder = "mlp", Network("leaves", seen, settings.features, (), cells=settings.cells)
            numbers = encoder.encoded_size
        width = numbers * (environment.agents if central else 1) + (environment.agents if self._gives_id else 0)
        network = Network(name, Spec("float32", (width,)), settings.features, settings.hidden)
        return AgentNetwork(network, encoder, central=central, gives_id=self._gives_id)

    def _own(self, column: Tensor, agents: range) -> Tensor:
        """Select some agents of a training column, `[rows, agents, ...]` or `[rows, steps, agents, ...]`."""
        return column.narrow(2 if self._recurrent else 1, agents.start, len(agents))

    def _outputs_of_round(
        self, params: Params, trajectory: Trajectory, *observed: tuple[Tensor, Tensor | None]
    ) -> tuple[Tensor, Tensor]:
        """Compute all critics' outputs of a round `[T, B, agents]`, and of its bootstrap rows `[K, agents]`.

        `observed` is what agents observed in the former and in the latter, and which of them were there.
        """
        rows, ends = ((self._normalizers.normalized(params, each), present) for each, present in observed)
        memories = trajectory.columns.get("memory")
        found = [
            self._critics.over_round(
                params[f"value{suffix}"],
                trajectory,
                self._critics.inputs(params[f"value{suffix}"], rows[0], agents, rows[1]),
                self._critics.inputs(params[f"value{suffix}"], ends[0], agents, ends[1]),
                None if memories is None else memory_of(memories[0], 1, agents),
            )
            for suffix, agents in self._shares
        ]
        values, finals = (join_agents(parts, -2).squeeze(-1) for parts in zip(*found, strict=True))
        return values, finals
