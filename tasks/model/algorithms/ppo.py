"""Proximal policy optimisation (Schulman et al. 2017, arXiv 1707.06347) for discrete and continuous actions.

The file reads in the order in which a round uses it: `init`, `act`, `post` (advantages), `plan` (epochs of shuffled
minibatches), the losses, `update`. Formulas of several algorithms are functions with their sources: advantages in
`nn.returns`, the clipped surrogate in `nn.surrogate`, log-probabilities in `nn.distributions`.

Differences from the usual single-process implementations:

- Policy and value are separate networks with an optimizer each, so that a snapshot holds the policy alone and actors
  never compute a value: `post` evaluates the values of a round in one batch, with the parameters that learn from it.
  With `shared_network` they are one network, whose last output is the value: half the work for convolutions.
- Advantages are normalised over the whole round and not per minibatch, by sums that add up over tiles and learners.
- Observations and rewards can be normalised by running statistics (`nn.normalizers`). Rows hold raw observations, and
  every loss normalises them: by the same numbers throughout a round, which change after it.
- With a recurrent network, each network has a memory. Actors also carry the value's memory, since learning has to start
  where acting was: rows store both, and a training row is a sequence of steps with the memories before its first.
- There is no value clipping: it does not help on the tasks that ship.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from penstock.tasks.model.algorithms.contract import Algorithm, Loss
from penstock.tasks.model.nn.distributions import choice_probability, choose, displace, vector_probability
from penstock.tasks.model.nn.network import Network, rowwise
from penstock.tasks.model.nn.normalizers import Normalizers
from penstock.tasks.model.nn.optimizers import annealed, clip_norm, init_adam, step_adam
from penstock.tasks.model.nn.returns import generalized_advantages, successor_values
from penstock.tasks.model.nn.surrogate import advantage_sums, clipped_surrogate, normalised, value_error
from penstock.tasks.setup.config.on_policy import PPOSettings
from penstock.tasks.specs import EnvironmentSpec, NoiseSpec, ParameterGroup, Spec, State

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.tasks.model.algorithms.contract import Window
    from penstock.tasks.specs import Batch, LossInputs, LossResult, Params, Trajectory

_SHARED = "network"


@dataclass(frozen=True, slots=True)
class PPO(Algorithm):
    """PPO with a clipped surrogate, for one environment's spaces."""

    settings: PPOSettings
    environment: EnvironmentSpec

    # Declarations: columns of a shard, random numbers of an actor, objectives, groups of a snapshot

    @property
    def rows(self) -> dict[str, Spec]:
        """`action` as the environment takes it, and its `log_probability` under the policy that acted.

        With recurrent networks also `memory`, before the step: one for each network.
        """
        memory = {"memory": Spec("float32", (len(self._groups), self.settings.features))}
        columns = {"action": self.environment.action.spec, "log_probability": Spec("float32")}
        return {**columns, **memory} if self._network.recurrent else columns

    @property
    def noise(self) -> NoiseSpec:
        """Gumbel noise samples a choice (Gumbel-max), normal noise displaces a mean; zero noise is greedy."""
        action = self.environment.action
        return NoiseSpec("gumbel", (action.n,)) if self._discrete else NoiseSpec("normal", action.shape)

    @property
    def losses(self) -> tuple[Loss, ...]:
        """Clipped surrogate for the policy and squared error for the value; their sum for a shared network."""
        if self.settings.shared_network:
            return (Loss("actor_critic", _SHARED, self._shared_loss, independent=True),)
        return (
            Loss("policy", "policy", self._policy_loss, independent=True),
            Loss("value", "value", self._value_loss, independent=True),
        )

    @property
    def actor_groups(self) -> tuple[str, ...]:
        """The policy, the observation's normaliser, and the value if actors carry its memory."""
        groups = self._groups if self._network.recurrent else self._groups[:1]
        return (*groups, *self._normalizers.actor_groups)

    # Parameters

    def init(self, seed: int) -> State:
        """Return orthogonal weights; those of the policy's outputs are small, so that it starts near uniform."""
        generator = torch.Generator().manual_seed(seed)
        outputs = self.environment.action.n if self._discrete else math.prod(self.environment.action.shape)
        if self.settings.shared_network:
            policy = self._network.init(outputs + 1, 1.0, generator)
            self._network.near_uniform(policy, outputs)
        else:
            policy = self._network.init(outputs, 0.01, generator)
        if not self._discrete:
            policy["log_std"] = torch.full((outputs,), self.settings.initial_log_std)
        networks = {self._groups[0]: policy}
        if not self.settings.shared_network:
            networks["value"] = self._network.init(1, 1.0, generator)
        params = {name: ParameterGroup(network) for name, network in networks.items()}
        state = State(params=params, optimizer={name: init_adam(group.flat) for name, group in params.items()})
        self._normalizers.init(state)
        return state

    # Acting

    def initial_carry(self, envs: int) -> Tensor | None:
        """Return empty memories `[envs, networks, features]`; None if the networks have none."""
        return torch.zeros(envs, len(self._groups), self.settings.features) if self._network.recurrent else None

    def act(
        self, params: Params, carry: Tensor | None, observation: Tensor, noise: Tensor
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """Sample an action from the policy; see `Algorithm.act`."""
        unmasked, allowed = self.environment.split(observation)
        inputs = self._normalizers.normalized(params, self._network.prepared(unmasked))
        groups = self._groups[:1] if carry is None else self._groups
        stepped = [
            self._network.step(params[group], _memory_of(carry, number), inputs) for number, group in enumerate(groups)
        ]
        output = self._policy_part(stepped[0][0])
        if self._discrete:
            action, log_probability = choose(output, noise, allowed)
        else:
            vector, log_probability = displace(output, params[groups[0]]["log_std"], noise.flatten(1))
            action = vector.view(-1, *self.environment.action.shape)
        rows = {"action": action, "log_probability": log_probability}
        if carry is None:
            return rows, None
        return {**rows, "memory": carry}, torch.stack([cast("Tensor", memory) for _, memory in stepped], 1)

    # Advantages of a round

    def post(self, params: Params, trajectory: Trajectory) -> Batch:
        """Compute a round's values in one batch, then generalized advantages and value targets per environment."""
        settings, columns = self.settings, trajectory.columns
        unmasked, allowed = self.environment.split(columns["observation"].flatten(0, 1))
        observation = self._network.prepared(unmasked)
        final = self._network.prepared(self.environment.split(trajectory.bootstrap_observation)[0])
        output, final_output = self._network.over_round(
            params[self._groups[-1]],
            trajectory,
            self._normalizers.normalized(params, observation),
            self._normalizers.normalized(params, final),
            _memory_of(columns["memory"][0], -1) if "memory" in columns else None,
        )
        value = output[..., -1]
        ends = columns["terminated"], columns["truncated"]
        reward, reward_statistics = self._normalizers.rewards(
            params, columns["reward"] * settings.reward_scale, *ends, settings.discount
        )
        advantage = generalized_advantages(
            reward,
            value,
            successor_values(value, trajectory.bootstrap_rows, final_output[:, -1]),
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
        if allowed is not None:
            learned["allowed"] = allowed.unflatten(0, reward.shape)
        return self._network.training_rows(trajectory, observation, learned, settings.sequence_steps)

    def stats(self, batch: Batch) -> dict[str, Tensor]:
        """Return the sums that give the mean and variance of all advantages, and those of the normalisers."""
        return advantage_sums(batch["advantage"]) | self._normalizers.sums(batch)

    # Minibatches

    def plan(self, generator: torch.Generator, window: Window) -> Iterator[Tensor]:
        """Yield every row once an epoch, in a fresh order."""
        for _ in range(self.settings.epochs):
            yield from torch.randperm(window.rows, generator=generator).tensor_split(self.settings.minibatches)

    def _policy_loss(self, params: Params, batch: LossInputs) -> LossResult:
        """Minus the surrogate and its entropy bonus."""
        terms, outputs = self._objective(params["policy"], self._outputs(0, params, batch), batch)
        return batch.weighted_mean(*terms), _by_row(outputs)

    def _value_loss(self, params: Params, batch: LossInputs) -> LossResult:
        """Half the squared error of the value."""
        error = value_error(self._outputs(1, params, batch), batch["value_target"])
        return batch.mean(error), _by_row({"value_loss": error.detach()})

    def _shared_loss(self, params: Params, batch: LossInputs) -> LossResult:
        """Both, by one pass through the network."""
        output = self._outputs(0, params, batch)
        terms, outputs = self._objective(params[_SHARED], self._policy_part(output), batch)
        error = value_error(output, batch["value_target"])
        scalar = batch.weighted_mean((error, self.settings.value_weight), *terms)
        return scalar, _by_row({**outputs, "value_loss": error.detach()})

    def _objective(
        self, params: Mapping[str, Tensor], output: Tensor, batch: LossInputs
    ) -> tuple[list[tuple[Tensor, float]], dict[str, Tensor]]:
        """Equation 9 of the paper without its value term: clipped surrogate and entropy bonus, with their weights."""
        if self._discrete:
            log_probability, entropy = choice_probability(output, batch["action"], batch.get("allowed"))
        else:
            action = batch["action"].flatten(output.dim() - 1)
            log_probability, entropy = vector_probability(output, params["log_std"], action)
        advantage = normalised(batch["advantage"], batch.stats)
        surrogate, outputs = clipped_surrogate(
            log_probability, batch["log_probability"], advantage, self.settings.clip_range
        )
        terms = [(surrogate, -1.0), (entropy, -self.settings.entropy_weight)]
        return terms, {**outputs, "entropy": entropy.detach()}

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

    # Networks

    @property
    def _discrete(self) -> bool:
        """Return whether actions are choices; otherwise they are vectors."""
        return self.environment.action.kind == "discrete"

    @property
    def _groups(self) -> tuple[str, ...]:
        """The networks: the policy's first, the value's last, which may be the same."""
        return (_SHARED,) if self.settings.shared_network else ("policy", "value")

    @property
    def _network(self) -> Network:
        settings, environment = self.settings, self.environment
        return Network(
            settings.network, environment.policy_input, settings.features, settings.hidden, environment.facts
        )

    @property
    def _normalizers(self) -> Normalizers:
        settings, numbers = self.settings, math.prod(self.environment.policy_input.shape)
        return Normalizers(
            observation=numbers if settings.normalize_observation else 0, reward=settings.normalize_reward
        )

    def _outputs(self, number: int, params: Params, batch: LossInputs) -> Tensor:
        """Apply a network to training rows: `[rows, outputs]`, or of sequences `[rows, steps, outputs]`."""
        inputs = self._normalizers.normalized(params, batch["observation"])
        memory = _memory_of(batch.get("memory"), number)
        return self._network.over_rows(params[self._groups[number]], inputs, memory, batch.get("fresh"))

    def _policy_part(self, output: Tensor) -> Tensor:
        """Leave out the value, if that is among a network's outputs."""
        return output[..., :-1] if self.settings.shared_network else output


def _memory_of(memories: Tensor | None, number: int) -> Tensor | None:
    """Take one network's memory `[rows, features]` from `[rows, networks, features]`, if there are any."""
    return None if memories is None else memories[:, number]


def _by_row(outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Reduce outputs of sequences to one number a row."""
    return {name: rowwise(values) for name, values in outputs.items()}
