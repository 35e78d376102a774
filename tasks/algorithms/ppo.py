"""Proximal policy optimisation (Schulman et al. 2017, arXiv 1707.06347) for discrete and continuous actions.

Policy and value are separate perceptrons with an optimizer each, so that a snapshot holds the policy alone and actors
never compute a value: `post` evaluates the values of a round in one batch, with the parameters that learn from it.
Advantages are normalised over the whole round (not per minibatch), from sums that add up over tiles and learners.

Observations and rewards can be normalised by running statistics (`tasks.normalizers`). Rows then hold raw observations,
and each loss normalises them: by the same numbers throughout a round, which change after it.

With a recurrent network, policy and value have a memory each. Actors carry both, since learning has to begin where
acting was: rows store them, and a training row is a sequence of steps with the memories before its first.

Left out on purpose: value clipping (it does not help on the tasks that ship).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from tasks.algorithm import Loss
from tasks.distributions import choice_probability, choose, displace, vector_probability
from tasks.encoders import Network, NetworkName, rowwise
from tasks.normalizers import Normalizers
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
    network: NetworkName = "mlp"
    features: int = 256
    """Numbers that convolutions give, or that a memory has."""
    sequence_steps: int = 16
    """Steps of a training row, if the network is recurrent."""
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
    def _normalizers(self) -> Normalizers:
        numbers = math.prod(self.environment.seen.shape)
        return Normalizers(observation=numbers if self.normalize_observation else 0, reward=self.normalize_reward)

    @property
    def _network(self) -> Network:
        return Network(self.network, self.environment.seen, self.features, self.hidden)

    @property
    def _row_steps(self) -> int:
        return self.sequence_steps if self._network.recurrent else 1

    @property
    def rows(self) -> dict[str, Spec]:
        """`action` as the environment takes it, `log_probability` under the behaviour policy.

        With a recurrent network also `memory`, before the step: the policy's and the value's.
        """
        memory = {"memory": Spec("float32", (2, self.features))} if self._network.recurrent else {}
        return {"action": self.environment.action.spec, "log_probability": Spec("float32"), **memory}

    @property
    def noise(self) -> NoiseSpec:
        """Gumbel noise picks among choices (Gumbel-max), normal noise displaces a mean; zero noise means greedy."""
        action = self.environment.action
        return NoiseSpec("gumbel", (action.n,)) if self.discrete else NoiseSpec("normal", action.shape)

    @property
    def losses(self) -> tuple[Loss, ...]:
        """Clipped surrogate for the policy, squared error for the value."""
        return (
            Loss("policy", "policy", self._policy_loss, alone=True),
            Loss("value", "value", self._value_loss, alone=True),
        )

    @property
    def actor_groups(self) -> tuple[str, ...]:
        """Actors need the policy, what it sees observations through, and the value if they carry its memory."""
        return ("policy", *(("value",) if self._network.recurrent else ()), *self._normalizers.actor_groups)

    def init(self, seed: int) -> State:
        """Orthogonal weights; the policy's last layer is small so that it starts near uniform."""
        generator = torch.Generator().manual_seed(seed)
        outputs = self.environment.action.n if self.discrete else math.prod(self.environment.action.shape)
        policy = self._network.init(outputs, 0.01, generator)
        if not self.discrete:
            policy["log_std"] = torch.full((outputs,), self.initial_log_std)
        value = self._network.init(1, 1.0, generator)
        params = {"policy": ParameterGroup(policy), "value": ParameterGroup(value)}
        state = State(params=params, optimizer={name: init_adam(group.flat) for name, group in params.items()})
        self._normalizers.init(state)
        return state

    def initial_carry(self, envs: int) -> Tensor | None:
        """Empty memories `[envs, 2, features]`, if the network is recurrent."""
        return torch.zeros(envs, 2, self.features) if self._network.recurrent else None

    def act(
        self, params: Params, carry: Tensor | None, observation: Tensor, noise: Tensor
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """Sample from the policy; see `Algorithm.act`."""
        shown, allowed = self.environment.split(observation)
        seen = self._normalizers.seen(params, self._network.prepared(shown))
        output, memory = self._network.step(params["policy"], _memory(carry, "policy"), seen)
        if self.discrete:
            action, log_probability = choose(output, noise, allowed)
        else:
            vector, log_probability = displace(output, params["policy"]["log_std"], noise.flatten(1))
            action = vector.view(-1, *self.environment.action.shape)
        rows = {"action": action, "log_probability": log_probability}
        if carry is None or memory is None:
            return rows, None
        _, value_memory = self._network.step(params["value"], _memory(carry, "value"), seen)
        return {**rows, "memory": carry}, torch.stack([memory, cast("Tensor", value_memory)], 1)

    def post(self, params: Params, trajectory: Trajectory) -> Batch:
        """Values in one batch, advantages and value targets per environment."""
        columns = trajectory.columns
        shown, allowed = self.environment.split(columns["observation"].flatten(0, 1))
        observation = self._network.prepared(shown)
        final = self._network.prepared(self.environment.split(trajectory.bootstrap_observation)[0])
        output, following = self._network.over_round(
            params["value"],
            trajectory,
            self._normalizers.seen(params, observation),
            self._normalizers.seen(params, final),
            _memory(columns["memory"][0], "value") if "memory" in columns else None,
        )
        value = output.squeeze(-1)
        ends = columns["terminated"], columns["truncated"]
        reward, gathered = self._normalizers.rewards(
            params, columns["reward"] * self.reward_scale, *ends, self.discount
        )
        advantage = generalized_advantages(
            reward,
            value,
            successor_values(value, trajectory.bootstrap_rows, following.squeeze(-1)),
            *ends,
            self.discount,
            self.trace_decay,
        )
        learned = {
            "action": columns["action"],
            "log_probability": columns["log_probability"],
            "advantage": advantage,
            "value_target": advantage + value,
            **gathered,
        }
        if allowed is not None:
            learned["allowed"] = allowed.unflatten(0, reward.shape)
        return self._network.training_rows(trajectory, observation, learned, self.sequence_steps)

    def stats(self, batch: Batch) -> dict[str, Tensor]:
        """What the round's advantage mean and variance are made of, and what normalisers learn from the round."""
        return advantage_sums(batch["advantage"]) | self._normalizers.sums(batch)

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
        self._normalizers.update(state, stats)
        return state

    def _outputs(self, group: str, params: Params, rows: Batch) -> Tensor:
        """Of training rows: `[rows, outputs]`, or of sequences `[rows, steps, outputs]`."""
        seen, memory = self._normalizers.seen(params, rows["observation"]), _memory(rows.get("memory"), group)
        return self._network.over_rows(params[group], seen, memory, rows.get("fresh"))

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
        output = self._outputs("policy", params, rows)
        if self.discrete:
            log_probability, entropy = choice_probability(output, rows["action"], rows.get("allowed"))
        else:
            log_std = params["policy"]["log_std"]
            log_probability, entropy = vector_probability(output, log_std, rows["action"].flatten(output.dim() - 1))
        advantage = normalised(rows["advantage"], stats)
        surrogate, outputs = clipped_surrogate(log_probability, rows["log_probability"], advantage, self.clip_range)
        scalar = -(surrogate + self.entropy_weight * entropy).sum() / (count * self._row_steps)
        outputs = {**outputs, "entropy": entropy.detach()}
        return scalar, {name: rowwise(values) for name, values in outputs.items()}

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
        error = self._outputs("value", params, rows).squeeze(-1) - rows["value_target"]
        square = 0.5 * error.square()
        return square.sum() / (count * self._row_steps), {"value_loss": rowwise(square.detach())}


def _memory(both: Tensor | None, group: str) -> Tensor | None:
    """A group's part `[rows, features]` of the memories `[rows, 2, features]`, if there are any."""
    return None if both is None else both[:, ("policy", "value").index(group)]
