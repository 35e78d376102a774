"""Proximal policy optimisation for several agents: MAPPO and IPPO.

MAPPO is of Yu et al. 2022 (arXiv 2103.01955), IPPO of de Witt et al. 2020 (arXiv 2011.09533). All agents share one
policy, which sees the own observation of each and, if wanted, which agent it is. The two differ in the critic: MAPPO's
sees what all agents observe, those of the agent whose value it gives first, and is there for learning alone, so acting
stays decentralised; IPPO's sees the agent's own observation, so that each learns as if it were alone. Everything else
is PPO's, with an agent axis behind the row: a row is a step of an environment and holds all its agents, so that every
loss sees them together.

Left out on purpose: value clipping and normalised value targets (`reward_scale` serves here), recurrent networks, and
agents that leave before the episode ends.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tasks.algorithm import Loss
from tasks.distributions import choice_probability, choose, displace, vector_probability
from tasks.networks import init_mlp, mlp
from tasks.normalizers import Normalizers
from tasks.optimizers import annealed, clip_norm, init_adam, step_adam
from tasks.returns import generalized_advantages, successor_values
from tasks.specs import EnvironmentSpec, NoiseSpec, ParameterGroup, Spec, State
from tasks.surrogate import advantage_sums, clipped_surrogate, normalised

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tasks.algorithm import LossResult, Params, Window
    from tasks.specs import Batch, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class MAPPO:
    """PPO with shared parameters for the agents of one environment; columns are `[B, agents, ...]`."""

    environment: EnvironmentSpec
    central_critic: bool = True
    """Whether values are of all agents' observations (MAPPO), or of the own one (IPPO)."""
    agent_id: bool = True
    """Whether the networks are told which agent they are, so that equal agents can take different parts."""
    team_reward: bool = True
    """Whether every agent is paid the mean of all rewards, which is what returns are made of, or its own."""
    hidden: tuple[int, ...] = (64, 64)
    learning_rate: float = 5e-4
    final_learning_rate: float = 0.0
    """Reached linearly after `anneal_rounds` rounds and kept from then on."""
    anneal_rounds: int = 0
    """0 keeps `learning_rate` for ever."""
    discount: float = 0.99
    trace_decay: float = 0.95
    clip_range: float = 0.2
    entropy_weight: float = 0.01
    epochs: int = 10
    minibatches: int = 1
    """Minibatches an epoch."""
    gradient_norm: float = 10.0
    reward_scale: float = 1.0
    """Rewards are multiplied by it before anything else; reported returns are not."""
    initial_log_std: float = 0.0
    """Of a continuous policy's state-independent normal distribution."""
    normalize_observation: bool = False
    """By the running mean and deviation of each number, over all agents, limited to 10 deviations."""
    normalize_reward: bool = False
    """By the running deviation of `discounted_rewards`, after `reward_scale`, and limited to 10; reported returns are
    not."""

    @property
    def discrete(self) -> bool:
        """Whether an agent's actions are choices; otherwise they are vectors."""
        return self.environment.action.kind == "discrete"

    @property
    def _normalizers(self) -> Normalizers:
        numbers = math.prod(self.environment.seen.shape[1:])
        return Normalizers(observation=numbers if self.normalize_observation else 0, reward=self.normalize_reward)

    @property
    def rows(self) -> dict[str, Spec]:
        """`action` as the environment takes it, and its `log_probability` for each agent."""
        return {"action": self.environment.action.spec, "log_probability": Spec("float32", (self.environment.agents,))}

    @property
    def noise(self) -> NoiseSpec:
        """Gumbel noise picks among choices (Gumbel-max), normal noise displaces a mean; zero noise means greedy."""
        action = self.environment.action
        if self.discrete:
            return NoiseSpec("gumbel", (self.environment.agents, action.n))
        return NoiseSpec("normal", action.shape)

    @property
    def losses(self) -> tuple[Loss, ...]:
        """Clipped surrogate for the policy, squared error for the value."""
        return (
            Loss("policy", "policy", self._policy_loss, alone=True),
            Loss("value", "value", self._value_loss, alone=True),
        )

    @property
    def actor_groups(self) -> tuple[str, ...]:
        """Actors need the policy and what it sees observations through: the critic sees more than an agent does."""
        return ("policy", *self._normalizers.actor_groups)

    def init(self, seed: int) -> State:
        """Orthogonal weights; the policy's last layer is small so that it starts near uniform."""
        generator = torch.Generator().manual_seed(seed)
        agents = self.environment.agents
        seen, told = math.prod(self.environment.seen.shape[1:]), agents if self.agent_id else 0
        outputs = self.environment.action.n if self.discrete else math.prod(self.environment.action.shape[1:])
        policy = init_mlp((seen + told, *self.hidden, outputs), 0.01, generator)
        if not self.discrete:
            policy["log_std"] = torch.full((outputs,), self.initial_log_std)
        known = seen * agents if self.central_critic else seen
        value = init_mlp((known + told, *self.hidden, 1), 1.0, generator)
        params = {"policy": ParameterGroup(policy), "value": ParameterGroup(value)}
        state = State(params=params, optimizer={name: init_adam(group.flat) for name, group in params.items()})
        self._normalizers.init(state)
        return state

    def initial_carry(self, envs: int) -> None:  # noqa: ARG002
        """A perceptron has no memory."""
        return

    def act(
        self, params: Params, carry: Tensor | None, observation: Tensor, noise: Tensor
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """Sample every agent's action from the policy; see `Algorithm.act`."""
        shown, allowed = self.environment.split(observation)
        output = self._policy(params["policy"], self._normalizers.seen(params, _features(shown)))
        if self.discrete:
            action, log_probability = choose(output, noise, allowed)
        else:
            vector, log_probability = displace(output, params["policy"]["log_std"], noise.flatten(2))
            action = vector.view(-1, *self.environment.action.shape)
        return {"action": action, "log_probability": log_probability}, carry

    def post(self, params: Params, trajectory: Trajectory) -> Batch:
        """Values in one batch, advantages and value targets per environment and agent."""
        columns = trajectory.columns
        reward = columns["reward"] * self.reward_scale
        if self.team_reward:
            reward = reward.mean(-1, keepdim=True).expand_as(reward)
        ends = columns["terminated"].unsqueeze(-1), columns["truncated"].unsqueeze(-1)
        reward, gathered = self._normalizers.rewards(params, reward, *ends, self.discount)
        shown, allowed = self.environment.split(columns["observation"].flatten(0, 1))
        observation = _features(shown)
        final = _features(self.environment.split(trajectory.bootstrap_observation)[0])
        value = self._value(params["value"], self._normalizers.seen(params, observation)).view(reward.shape)
        following = self._value(params["value"], self._normalizers.seen(params, final))
        advantage = generalized_advantages(
            reward,
            value,
            successor_values(value, trajectory.bootstrap_rows, following),
            *ends,
            self.discount,
            self.trace_decay,
        )
        return {
            "observation": observation,
            "action": columns["action"].flatten(0, 1),
            "log_probability": columns["log_probability"].flatten(0, 1),
            "advantage": advantage.flatten(0, 1),
            "value_target": (advantage + value).flatten(0, 1),
            **({} if allowed is None else {"allowed": allowed}),
            **{name: column.flatten(0, 1) for name, column in gathered.items()},
        }

    def stats(self, batch: Batch) -> dict[str, Tensor]:
        """What mean and variance of the advantages of all rows and agents are made of, and what normalisers learn."""
        return advantage_sums(batch["advantage"]) | self._normalizers.sums(batch)

    def plan(self, generator: torch.Generator, window: Window) -> Iterator[Tensor]:
        """Every row once an epoch, in a fresh order."""
        for _ in range(self.epochs):
            yield from torch.randperm(window.rows, generator=generator).tensor_split(self.minibatches)

    def update(self, state: State, loss: Loss, gradient: Tensor) -> State:
        """Clip by the group's norm, then Adam."""
        optimizer = state.optimizer[loss.group]
        over_steps = self.anneal_rounds * self.epochs * self.minibatches
        rate = annealed(self.learning_rate, self.final_learning_rate, optimizer, over_steps)
        step_adam(state.params[loss.group].flat, clip_norm(gradient, self.gradient_norm), optimizer, rate)
        return state

    def after_minibatch(self, state: State) -> State:
        """Nothing to do: no targets, and the schedule counts optimizer steps."""
        return state

    def after_round(self, state: State, stats: Mapping[str, Tensor]) -> State:
        """Normalisers take the round in; without them, nothing to do."""
        self._normalizers.update(state, stats)
        return state

    def _policy(self, params: Mapping[str, Tensor], features: Tensor) -> Tensor:
        """Logits or means of each agent, `[rows, agents, outputs]`."""
        layers = params if self.discrete else {name: value for name, value in params.items() if name != "log_std"}
        return mlp(layers, self._with_id(features))

    def _value(self, params: Mapping[str, Tensor], features: Tensor) -> Tensor:
        """Values `[rows, agents]`."""
        if self.central_critic:
            agents = range(self.environment.agents)
            features = torch.stack([features.roll(-agent, 1).flatten(1) for agent in agents], 1)
        return mlp(params, self._with_id(features)).squeeze(-1)

    def _with_id(self, features: Tensor) -> Tensor:
        if not self.agent_id:
            return features
        agents = self.environment.agents
        told = torch.eye(agents, device=features.device).expand(len(features), agents, agents)
        return torch.cat([features, told], -1)

    def _policy_loss(
        self,
        params: Params,
        targets: Mapping[str, Tensor],  # noqa: ARG002
        rows: Batch,
        noise: Tensor | None,  # noqa: ARG002
        stats: Mapping[str, float],
        count: int,
    ) -> LossResult:
        """PPO's clipped surrogate less the entropy bonus, a mean over agents."""
        output = self._policy(params["policy"], self._normalizers.seen(params, rows["observation"]))
        if self.discrete:
            log_probability, entropy = choice_probability(output, rows["action"], rows.get("allowed"))
        else:
            log_std = params["policy"]["log_std"]
            log_probability, entropy = vector_probability(output, log_std, rows["action"].flatten(2))
        advantage = normalised(rows["advantage"], stats)
        surrogate, outputs = clipped_surrogate(log_probability, rows["log_probability"], advantage, self.clip_range)
        scalar = -(surrogate + self.entropy_weight * entropy).sum() / (count * self.environment.agents)
        outputs = {**outputs, "entropy": entropy.detach()}
        return scalar, {name: value.mean(-1) for name, value in outputs.items()}

    def _value_loss(
        self,
        params: Params,
        targets: Mapping[str, Tensor],  # noqa: ARG002
        rows: Batch,
        noise: Tensor | None,  # noqa: ARG002
        stats: Mapping[str, float],  # noqa: ARG002
        count: int,
    ) -> LossResult:
        """Half the squared error against the advantage-corrected value, a mean over agents."""
        value = self._value(params["value"], self._normalizers.seen(params, rows["observation"]))
        square = 0.5 * (value - rows["value_target"]).square()
        return square.sum() / (count * self.environment.agents), {"value_loss": square.detach().mean(-1)}


def _features(observation: Tensor) -> Tensor:
    """`[rows, agents, ...]` of any number type as float32 `[rows, agents, inputs]`."""
    return observation.flatten(2).float()
