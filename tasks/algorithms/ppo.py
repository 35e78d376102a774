"""Proximal policy optimisation (Schulman et al. 2017, arXiv 1707.06347) for discrete and continuous actions.

Policy and value are separate perceptrons with an optimizer each, so that a snapshot holds the policy alone and actors
never compute a value: `post` evaluates the values of a round in one batch, with the parameters that learn from it.
Advantages are normalised over the whole round (not per minibatch), from sums that add up over tiles and learners.

Observations and rewards can be normalised by running statistics (`tasks.normalizers`). Rows then hold raw observations,
and each loss normalises them: by the same numbers throughout a round, which change after it.

Left out on purpose: value clipping (it does not help on the tasks that ship).
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
from tasks.normalizers import Normalizer, discounted_rewards
from tasks.optimizers import clip_norm, init_adam, step_adam
from tasks.returns import generalized_advantages, successor_values
from tasks.specs import EnvironmentSpec, NoiseSpec, ParameterGroup, Spec, State
from tasks.surrogate import advantage_sums, clipped_surrogate, normalised

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tasks.algorithm import LossResult, Params, Window
    from tasks.specs import Batch, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class PPO:
    """PPO with a clipped surrogate, for one environment's spaces."""

    environment: EnvironmentSpec
    hidden: tuple[int, ...] = (64, 64)
    learning_rate: float = 3e-4
    final_learning_rate: float = 0.0
    """Reached linearly after `anneal_rounds` rounds and kept from then on."""
    anneal_rounds: int = 0
    """0 keeps `learning_rate` for ever."""
    discount: float = 0.99
    trace_decay: float = 0.95
    clip_range: float = 0.2
    entropy_weight: float = 0.0
    epochs: int = 4
    minibatches: int = 8
    """Minibatches an epoch."""
    gradient_norm: float = 0.5
    reward_scale: float = 1.0
    """Rewards are multiplied by it before anything else; reported returns are not."""
    initial_log_std: float = 0.0
    """Of a continuous policy's state-independent normal distribution."""
    normalize_observation: bool = False
    """By the running mean and deviation of each number, limited to 10 deviations."""
    normalize_reward: bool = False
    """By the running deviation of `discounted_rewards`, after `reward_scale`, and limited to 10; reported returns are
    not."""

    @property
    def discrete(self) -> bool:
        """Whether actions are choices; otherwise they are vectors."""
        return self.environment.action.kind == "discrete"

    @property
    def _observations(self) -> Normalizer:
        return Normalizer(group="observations", shape=(math.prod(self.environment.observation.shape),))

    @property
    def _rewards(self) -> Normalizer:
        return Normalizer(group="rewards", centred=False)

    @property
    def rows(self) -> dict[str, Spec]:
        """`action` as the environment takes it, `log_probability` under the behaviour policy."""
        return {"action": self.environment.action.spec, "log_probability": Spec("float32")}

    @property
    def noise(self) -> NoiseSpec:
        """Gumbel noise picks among choices (Gumbel-max), normal noise displaces a mean; zero noise means greedy."""
        action = self.environment.action
        return NoiseSpec("gumbel", (action.n,)) if self.discrete else NoiseSpec("normal", action.shape)

    @property
    def losses(self) -> tuple[Loss, ...]:
        """Clipped surrogate for the policy, squared error for the value."""
        return (Loss("policy", "policy", self._policy_loss), Loss("value", "value", self._value_loss))

    @property
    def actor_groups(self) -> tuple[str, ...]:
        """Actors need the policy, and what it sees observations through."""
        return ("policy", self._observations.group) if self.normalize_observation else ("policy",)

    def init(self, seed: int) -> State:
        """Orthogonal weights; the policy's last layer is small so that it starts near uniform."""
        generator = torch.Generator().manual_seed(seed)
        inputs = math.prod(self.environment.observation.shape)
        outputs = self.environment.action.n if self.discrete else math.prod(self.environment.action.shape)
        policy = init_mlp((inputs, *self.hidden, outputs), 0.01, generator)
        if not self.discrete:
            policy["log_std"] = torch.full((outputs,), self.initial_log_std)
        value = init_mlp((inputs, *self.hidden, 1), 1.0, generator)
        params = {"policy": ParameterGroup(policy), "value": ParameterGroup(value)}
        state = State(params=params, optimizer={name: init_adam(group.flat) for name, group in params.items()})
        if self.normalize_observation:
            self._observations.init(state)
        if self.normalize_reward:
            self._rewards.init(state)
        return state

    def initial_carry(self, envs: int) -> None:  # noqa: ARG002
        """A perceptron has no memory."""
        return

    def act(
        self, params: Params, carry: Tensor | None, observation: Tensor, noise: Tensor
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """Sample from the policy; see `Algorithm.act`."""
        output = self._policy(params, observation)
        if self.discrete:
            action, log_probability = choose(output, noise)
        else:
            vector, log_probability = displace(output, params["policy"]["log_std"], noise.flatten(1))
            action = vector.view(-1, *self.environment.action.shape)
        return {"action": action, "log_probability": log_probability}, carry

    def post(self, params: Params, trajectory: Trajectory) -> Batch:
        """Values in one batch, advantages and value targets per environment."""
        columns = trajectory.columns
        steps, envs = columns["reward"].shape
        observation = _features(columns["observation"].flatten(0, 1))
        value = self._value(params, observation).view(steps, envs)
        following = self._value(params, trajectory.bootstrap_observation)
        reward = columns["reward"] * self.reward_scale
        gathered = {}
        if self.normalize_reward:
            ends = columns["terminated"], columns["truncated"]
            gathered = {"discounted_reward": discounted_rewards(reward, *ends, self.discount).flatten()}
            reward = self._rewards.apply(params, reward)
        advantage = generalized_advantages(
            reward,
            value,
            successor_values(value, trajectory.bootstrap_rows, following),
            columns["terminated"],
            columns["truncated"],
            self.discount,
            self.trace_decay,
        )
        return {
            "observation": observation,
            "action": columns["action"].flatten(0, 1),
            "log_probability": columns["log_probability"].flatten(),
            "advantage": advantage.flatten(),
            "value_target": (advantage + value).flatten(),
            **gathered,
        }

    def stats(self, batch: Batch) -> dict[str, Tensor]:
        """What the round's advantage mean and variance are made of, and what normalisers learn from the round."""
        sums = advantage_sums(batch["advantage"])
        if self.normalize_observation:
            sums |= self._observations.sums(batch["observation"])
        if self.normalize_reward:
            sums |= self._rewards.sums(batch["discounted_reward"])
        return sums

    def plan(self, generator: torch.Generator, window: Window) -> Iterator[Tensor]:
        """Every row once an epoch, in a fresh order."""
        for _ in range(self.epochs):
            yield from torch.randperm(window.rows, generator=generator).tensor_split(self.minibatches)

    def update(self, state: State, loss: Loss, gradient: Tensor) -> State:
        """Clip by the group's norm, then Adam."""
        optimizer = state.optimizer[loss.group]
        rate = self.learning_rate
        if self.anneal_rounds:
            fraction = min(1.0, float(optimizer["step"]) / (self.anneal_rounds * self.epochs * self.minibatches))
            rate += fraction * (self.final_learning_rate - rate)
        step_adam(state.params[loss.group].flat, clip_norm(gradient, self.gradient_norm), optimizer, rate)
        return state

    def after_minibatch(self, state: State) -> State:
        """Nothing to do: no targets, and the schedule counts optimizer steps."""
        return state

    def after_round(self, state: State, stats: Mapping[str, Tensor]) -> State:
        """Normalisers take the round in; without them, nothing to do."""
        if self.normalize_observation:
            self._observations.update(state, stats)
        if self.normalize_reward:
            self._rewards.update(state, stats)
        return state

    def _seen(self, params: Params, observation: Tensor) -> Tensor:
        """What the networks see of observations `[rows, ...]`: float32 `[rows, inputs]`."""
        features = _features(observation)
        return self._observations.apply(params, features) if self.normalize_observation else features

    def _policy(self, params: Params, observation: Tensor) -> Tensor:
        layers: Mapping[str, Tensor] = params["policy"]
        if not self.discrete:
            layers = {name: value for name, value in layers.items() if name != "log_std"}
        return mlp(layers, self._seen(params, observation))

    def _value(self, params: Params, observation: Tensor) -> Tensor:
        """`[rows]`."""
        return mlp(params["value"], self._seen(params, observation)).squeeze(-1)

    def _policy_loss(
        self,
        params: Params,
        targets: Mapping[str, Tensor],  # noqa: ARG002
        rows: Batch,
        noise: Tensor | None,  # noqa: ARG002
        stats: Mapping[str, float],
        count: int,
    ) -> LossResult:
        """Clipped surrogate (equation 7 of the paper) less the entropy bonus."""
        output = self._policy(params, rows["observation"])
        if self.discrete:
            log_probability, entropy = choice_probability(output, rows["action"])
        else:
            log_std = params["policy"]["log_std"]
            log_probability, entropy = vector_probability(output, log_std, rows["action"].flatten(1))
        advantage = normalised(rows["advantage"], stats)
        surrogate, outputs = clipped_surrogate(log_probability, rows["log_probability"], advantage, self.clip_range)
        scalar = -(surrogate + self.entropy_weight * entropy).sum() / count
        return scalar, {**outputs, "entropy": entropy.detach()}

    def _value_loss(
        self,
        params: Params,
        targets: Mapping[str, Tensor],  # noqa: ARG002
        rows: Batch,
        noise: Tensor | None,  # noqa: ARG002
        stats: Mapping[str, float],  # noqa: ARG002
        count: int,
    ) -> LossResult:
        """Half the squared error against the advantage-corrected value."""
        error = self._value(params, rows["observation"]) - rows["value_target"]
        square = 0.5 * error.square()
        return square.sum() / count, {"value_loss": square.detach()}


def _features(observation: Tensor) -> Tensor:
    """`[rows, ...]` of any number type as float32 `[rows, inputs]`; simulators observe in float64."""
    return observation.flatten(1).float()
