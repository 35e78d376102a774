"""Proximal policy optimisation (Schulman et al. 2017, arXiv 1707.06347) for actions of all kinds.

The file reads in the order in which a round uses it: `init`, `act`, `post` (advantages), `plan` (epochs of shuffled
minibatches), the losses, `update`. Formulas of several algorithms are functions with their sources: advantages in
`nn.returns`, the clipped surrogate in `nn.surrogate`, log-probabilities in `nn.distributions`.

Differences from the usual single-process implementations:

- Policy and value are separate networks with an optimizer each, so that a snapshot holds the policy alone and actors
  never compute a value: `post` evaluates the values of a round in one batch, with the parameters that learn from it.
  With `shared_network` they are one network, whose last output is the value: half the work for convolutions.
- Advantages are normalised by sums that add up over tiles and learners: over the whole round, or over a minibatch
  (`advantage_normalization`), whose rows may be with several learners.
- With `joint_gradient_norm` the two networks are one group with one optimizer, as in single-process implementations:
  the gradient's norm is then limited for both together. A snapshot holds both.
- Vectors reach the environment as they are sampled, or within its bounds (`actions`). Rows then also hold the vector as
  it was sampled, whose log-probability is learned.
- Observations and rewards can be normalised by running statistics (`nn.normalizers`). Rows hold raw observations, and
  every loss normalises them: by the same numbers throughout a round, which change after it.
- With a recurrent network, each network has a memory. Actors also carry the value's memory, since learning has to start
  where acting was: rows store both, and a training row is a sequence of steps with the memories before its first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from penstock.tasks.model.algorithms.contract import Algorithm, Loss, RoundLimit
from penstock.tasks.model.nn.distributions import (
    ActionDistribution,
    clipped_within,
    displace,
    squashed_within,
)
from penstock.tasks.model.nn.layers import part
from penstock.tasks.model.nn.network import Network, rowwise
from penstock.tasks.model.nn.normalizers import Normalizers
from penstock.tasks.model.nn.optimizers import (
    ROUNDS,
    EntropyBonus,
    annealed,
    clip_norm,
    count_round,
    init_adam,
    init_rounds,
    step_adam,
)
from penstock.tasks.model.nn.returns import generalized_advantages, successor_values
from penstock.tasks.model.nn.surrogate import (
    advantage_sums,
    clipped_surrogate,
    normalised,
    value_error,
)
from penstock.tasks.model.nn.value_learning import limited_value_error
from penstock.tasks.setup.config.on_policy import PPOSettings
from penstock.tasks.specs import EnvironmentSpec, NoiseSpec, ParameterGroup, Spec, State

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.tasks.model.algorithms.contract import Window
    from penstock.tasks.specs import Batch, LossInputs, LossResult, Params, Trajectory

_NETWORKS = ("policy", "value")
_SHARED = "network"
"""The group of both networks, where they are one, or have one optimizer."""


@dataclass(frozen=True, slots=True)
class PPO(Algorithm):
    """PPO with a clipped surrogate, for one environment's spaces."""

    settings: PPOSettings
    environment: EnvironmentSpec

    # Declarations: columns of a shard, random numbers of an actor, objectives, groups of a snapshot

    @property
    def rows(self) -> dict[str, Spec]:
        """`action` as the environment takes it, and its `log_probability` under the policy that acted.

        Where the environment takes another vector than was sampled, also `sampled_action`: of `clipped` actions the
        log-probability is this one's. With recurrent networks also `memory`, before the step: one for each network.
        """
        columns = {"action": self.environment.action.spec, "log_probability": Spec("float32")}
        if self._bounded:
            columns["sampled_action"] = self.environment.action.spec
        if self._network.recurrent:
            columns["memory"] = Spec("float32", (self._network_count, self.settings.features))
        return columns

    @property
    def noise(self) -> NoiseSpec:
        """Gumbel noise samples a choice (Gumbel-max), normal noise displaces a mean; zero noise is greedy."""
        return self._distribution.noise

    @property
    def losses(self) -> tuple[Loss, ...]:
        """Clipped surrogate for the policy and squared error for the value; their sum where they have one group."""
        if self._groups == (_SHARED,):
            return (Loss("actor_critic", _SHARED, self._actor_critic_loss, independent=True),)
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
        outputs, numbers = self._distribution.outputs, self._distribution.numbers
        if self.settings.shared_network:
            policy = self._network.init(outputs + 1, 1.0, generator)
            self._network.near_uniform(policy, outputs)
        else:
            policy = self._network.init(outputs, 0.01, generator)
        if numbers:
            policy["log_std"] = torch.full((numbers,), self.settings.initial_log_std)
        networks = [policy]
        if not self.settings.shared_network:
            networks.append(self._network.init(1, 1.0, generator))
        if len(networks) > len(self._groups):
            networks = [
                {
                    f"{name}.{key}": value
                    for name, each in zip(_NETWORKS, networks, strict=True)
                    for key, value in each.items()
                }
            ]
        params = {name: ParameterGroup(network) for name, network in zip(self._groups, networks, strict=True)}
        state = State(params=params, optimizer={name: init_adam(group.flat) for name, group in params.items()})
        self._normalizers.init(state)
        self._entropy_bonus.init(state)
        if self.limit:
            init_rounds(state)
        return state

    # Acting

    def initial_carry(self, envs: int) -> Tensor | None:
        """Return empty memories `[envs, networks, features]`; None if the networks have none."""
        return torch.zeros(envs, self._network_count, self.settings.features) if self._network.recurrent else None

    def act(
        self, params: Params, carry: Tensor | None, observation: Tensor, noise: Tensor
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """Sample an action from the policy; see `Algorithm.act`."""
        unmasked, allowed = self.environment.split(observation)
        inputs = self._normalizers.normalized(params, self._network.prepared(unmasked))
        stepped = [
            self._network.step(self._weights(params, number), _memory_of(carry, number), inputs)
            for number in range(1 if carry is None else self._network_count)
        ]
        output = self._policy_part(stepped[0][0])
        log_std = self._weights(params, 0).get("log_std")
        if self._bounded:
            rows = self._bounded_rows(*displace(output, cast("Tensor", log_std), noise.flatten(1)))
        else:
            action, log_probability = self._distribution.sample(output, log_std, noise, allowed)
            rows = {"action": action, "log_probability": log_probability}
        if carry is None:
            return rows, None
        return {**rows, "memory": carry}, torch.stack([cast("Tensor", memory) for _, memory in stepped], 1)

    def _bounded_rows(self, sampled: Tensor, log_probability: Tensor) -> dict[str, Tensor]:
        """Return the columns of sampled vectors `[B, n]`, and of the actions that become of them."""
        box, shape = self.environment.action, (-1, *self.environment.action.shape)
        if self.settings.actions == "clipped":
            action = clipped_within(sampled, box.low, box.high)
        else:
            action, slope = squashed_within(sampled, box.low, box.high)
            log_probability = log_probability - slope
        return {
            "action": action.view(shape),
            "log_probability": log_probability,
            "sampled_action": sampled.view(shape),
        }

    # Advantages of a round

    def post(self, params: Params, trajectory: Trajectory) -> Batch:
        """Compute a round's values in one batch, then generalized advantages and value targets per environment."""
        settings, columns = self.settings, trajectory.columns
        unmasked, allowed = self.environment.split(columns["observation"].flatten(0, 1))
        observation = self._network.prepared(unmasked)
        final = self._network.prepared(self.environment.split(trajectory.bootstrap_observation)[0])
        output, final_output = self._network.over_round(
            self._weights(params, -1),
            trajectory,
            self._normalizers.normalized(params, observation),
            self._normalizers.normalized(params, final),
            _memory_of(columns["memory"][0], -1) if "memory" in columns else None,
        )
        value = output[..., -1]
        ends = columns["terminated"], columns["truncated"]
        reward, reward_statistics = self._normalizers.rewards(
            params, columns["reward"] * settings.reward_scale, *ends, settings.discount, trajectory.first_env
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
            "action": columns["sampled_action" if self._bounded else "action"],
            "log_probability": columns["log_probability"],
            "advantage": advantage,
            "value_target": advantage + value,
            **reward_statistics,
        }
        if settings.value_clip_range:
            learned["value"] = value
        if self._bounded and settings.actions == "squashed":
            sampled, box = columns["sampled_action"].flatten(2), self.environment.action
            learned["slope"] = squashed_within(sampled, box.low, box.high)[1]
        if allowed is not None:
            learned["allowed"] = allowed.unflatten(0, reward.shape)
        return self._network.training_rows(trajectory, observation, learned, settings.sequence_steps)

    def stats(self, batch: Batch) -> dict[str, Tensor]:
        """Return the sums that give the mean and variance of all advantages, and those of the normalisers."""
        over_round = self.settings.advantage_normalization == "round"
        return (advantage_sums(batch["advantage"]) if over_round else {}) | self._normalizers.sums(batch)

    @property
    def summed_columns(self) -> tuple[str, ...]:
        """The advantages, if they are normalised over each minibatch."""
        return ("advantage",) if self.settings.advantage_normalization == "minibatch" else ()

    def minibatch_stats(self, rows: Batch) -> dict[str, Tensor]:
        """Return the sums that give the mean and variance of a minibatch's advantages."""
        return advantage_sums(rows["advantage"])

    # Minibatches

    def plan(self, generator: torch.Generator, window: Window) -> Iterator[Tensor]:
        """Yield every row once an epoch, in a fresh order."""
        for _ in range(self.settings.epochs):
            yield from torch.randperm(window.rows, generator=generator).tensor_split(self.settings.minibatches)

    @property
    def limit(self) -> RoundLimit | None:
        """No further epoch once the divergence in an epoch's last minibatch is over `target_kl`; None: all epochs."""
        settings = self.settings
        return RoundLimit("kl", settings.target_kl, settings.minibatches) if settings.target_kl else None

    def _policy_loss(self, params: Params, batch: LossInputs) -> LossResult:
        """Return minus the surrogate and its entropy bonus."""
        terms, outputs = self._objective(params, self._outputs(0, params, batch), batch)
        return batch.weighted_mean(*terms), _by_row(outputs)

    def _value_loss(self, params: Params, batch: LossInputs) -> LossResult:
        """Return half the squared error of the value."""
        error = self._value_error(self._outputs(1, params, batch), batch)
        return batch.mean(error), _by_row({"value_loss": error.detach()})

    def _actor_critic_loss(self, params: Params, batch: LossInputs) -> LossResult:
        """Return the sum of both; of a shared network by one pass through it."""
        output = self._outputs(0, params, batch)
        terms, outputs = self._objective(params, self._policy_part(output), batch)
        error = self._value_error(output if self.settings.shared_network else self._outputs(1, params, batch), batch)
        scalar = batch.weighted_mean((error, self.settings.value_weight), *terms)
        return scalar, _by_row({**outputs, "value_loss": error.detach()})

    def _objective(
        self, params: Params, output: Tensor, batch: LossInputs
    ) -> tuple[list[tuple[Tensor, float | Tensor]], dict[str, Tensor]]:
        """Equation 9 of the paper without its value term: clipped surrogate and entropy bonus, with their weights."""
        log_probability, entropy = self._distribution.probability(
            output, self._weights(params, 0).get("log_std"), batch["action"], batch.get("allowed")
        )
        if (slope := batch.get("slope")) is not None:
            # The entropy stays that of the vector before it is squashed: the other one has no closed form.
            log_probability = log_probability - slope
        advantage = batch["advantage"]
        if self.settings.advantage_normalization != "none":
            advantage = normalised(advantage, batch.stats)
        surrogate, outputs = clipped_surrogate(
            log_probability, batch["log_probability"], advantage, self.settings.clip_range
        )
        terms: list[tuple[Tensor, float | Tensor]] = [
            (surrogate, -1.0),
            (entropy, -self._entropy_bonus.weight(batch.targets)),
        ]
        return terms, {**outputs, "entropy": entropy.detach()}

    def _value_error(self, output: Tensor, batch: LossInputs) -> Tensor:
        """Half the squared error of an output's last number, clipped if settings say so."""
        clip_range, target = self.settings.value_clip_range, batch["value_target"]
        if not clip_range:
            return value_error(output, target)
        return limited_value_error(output, target, batch["value"], huber_delta=0.0, clip_range=clip_range)

    def update(self, state: State, loss: Loss, gradient: Tensor) -> State:
        """Clip the group's gradient by its norm, then take a step of Adam with the annealed learning rate."""
        settings, optimizer = self.settings, state.optimizer[loss.group]
        steps, over_steps = optimizer, settings.anneal_rounds * settings.epochs * settings.minibatches
        if self.limit:  # not every round takes as many steps
            steps, over_steps = {"step": state.targets[ROUNDS]}, settings.anneal_rounds
        rate = annealed(settings.learning_rate, settings.final_learning_rate, steps, over_steps)
        step_adam(state.params[loss.group].flat, clip_norm(gradient, settings.gradient_norm), optimizer, rate)
        return state

    def after_round(self, state: State, stats: Mapping[str, Tensor]) -> State:
        """Update the normalisers, and count the round if a schedule needs it; otherwise do nothing."""
        self._normalizers.update(state, stats)
        count_round(state)
        return state

    # Networks

    @property
    def _distribution(self) -> ActionDistribution:
        return ActionDistribution(self.environment.action)

    @property
    def _entropy_bonus(self) -> EntropyBonus:
        settings = self.settings
        return EntropyBonus(settings.entropy_weight, settings.final_entropy_weight, settings.anneal_rounds)

    @property
    def _bounded(self) -> bool:
        """Return whether the environment takes another vector than was sampled."""
        return self.environment.action.kind == "box" and self.settings.actions != "sampled"

    @property
    def _groups(self) -> tuple[str, ...]:
        """The groups, with an optimizer each: the policy's first, the value's last, which may be the same."""
        together = self.settings.shared_network or self.settings.joint_gradient_norm
        return (_SHARED,) if together else _NETWORKS

    @property
    def _network_count(self) -> int:
        return 1 if self.settings.shared_network else 2

    def _weights(self, params: Params, number: int) -> Mapping[str, Tensor]:
        """Return the parameters of a network: 0 is the policy's, -1 the value's, which may be the same."""
        group = params[self._groups[min(number, len(self._groups) - 1)]]
        return group if self._network_count == len(self._groups) else part(group, f"{_NETWORKS[number]}.")

    @property
    def _network(self) -> Network:
        settings, environment = self.settings, self.environment
        return Network(
            settings.network,
            environment.policy_input,
            settings.features,
            settings.hidden,
            environment.facts,
            channels=settings.channels,
            cells=settings.cells,
        )

    @property
    def _normalizers(self) -> Normalizers:
        settings, numbers = self.settings, math.prod(self.environment.policy_input.shape)
        return Normalizers(
            observation=numbers if settings.normalize_observation else 0,
            reward=settings.normalize_reward,
            carried_envs=self.environment.num_envs if settings.reward_normalization == "running" else 0,
        )

    def _outputs(self, number: int, params: Params, batch: LossInputs) -> Tensor:
        """Apply a network to training rows: `[rows, outputs]`, or of sequences `[rows, steps, outputs]`."""
        inputs = self._normalizers.normalized(params, batch["observation"])
        memory = _memory_of(batch.get("memory"), number)
        return self._network.over_rows(self._weights(params, number), inputs, memory, batch.get("fresh"))

    def _policy_part(self, output: Tensor) -> Tensor:
        """Leave out the value, if that is among a network's outputs."""
        return output[..., :-1] if self.settings.shared_network else output


def _memory_of(memories: Tensor | None, number: int) -> Tensor | None:
    """Take one network's memory `[rows, features]` from `[rows, networks, features]`, if there are any."""
    return None if memories is None else memories[:, number]


def _by_row(outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Reduce outputs of sequences to one number a row."""
    return {name: rowwise(values) for name, values in outputs.items()}
