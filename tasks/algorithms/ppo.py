"""Proximal policy optimisation (Schulman et al. 2017, arXiv 1707.06347) for discrete and continuous actions.

Policy and value are separate networks with an optimizer each, so that a snapshot holds the policy alone and actors
never compute a value: `post` evaluates the values of a round in one batch, with the parameters that learn from it. With
`shared_network` they are one network, whose last output is the value: half the work where most of it is convolutions.
Advantages are normalised over the whole round (not per minibatch), from sums that add up over tiles and learners.

Observations and rewards can be normalised by running statistics (`tasks.normalizers`). Rows then hold raw observations,
and each loss normalises them: by the same numbers throughout a round, which change after it.

With a recurrent network, each network has a memory. Actors carry the value's too, since learning has to begin where
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
from tasks.optimizers import annealed, clip_norm, init_adam, step_adam
from tasks.returns import generalized_advantages, successor_values
from tasks.specs import EnvironmentSpec, NoiseSpec, ParameterGroup, Spec, State
from tasks.surrogate import advantage_sums, clipped_surrogate, normalised

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tasks.algorithm import LossResult, Params, Window
    from tasks.specs import Batch, Trajectory

_SHARED = "network"


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
    shared_network: bool = False
    """Whether policy and value share all but their outputs."""
    value_weight: float = 0.5
    """Of the value's error beside the surrogate, in a shared network."""
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
        environment = self.environment
        return Network(self.network, environment.seen, self.features, self.hidden, environment.facts)

    @property
    def _row_steps(self) -> int:
        return self.sequence_steps if self._network.recurrent else 1

    @property
    def _groups(self) -> tuple[str, ...]:
        """Of networks: the policy's first, the value's last, which may be the same."""
        return (_SHARED,) if self.shared_network else ("policy", "value")

    @property
    def rows(self) -> dict[str, Spec]:
        """`action` as the environment takes it, `log_probability` under the behaviour policy.

        With recurrent networks also `memory`, before the step: the policy's and the value's, or that of both.
        """
        memory = {"memory": Spec("float32", (len(self._groups), self.features))} if self._network.recurrent else {}
        return {"action": self.environment.action.spec, "log_probability": Spec("float32"), **memory}

    @property
    def noise(self) -> NoiseSpec:
        """Gumbel noise picks among choices (Gumbel-max), normal noise displaces a mean; zero noise means greedy."""
        action = self.environment.action
        return NoiseSpec("gumbel", (action.n,)) if self.discrete else NoiseSpec("normal", action.shape)

    @property
    def losses(self) -> tuple[Loss, ...]:
        """Clipped surrogate for the policy, squared error for the value; of a shared network their sum."""
        if self.shared_network:
            return (Loss("actor_critic", _SHARED, self._shared_loss, alone=True),)
        return (
            Loss("policy", "policy", self._policy_loss, alone=True),
            Loss("value", "value", self._value_loss, alone=True),
        )

    @property
    def actor_groups(self) -> tuple[str, ...]:
        """Actors need the policy, what it sees observations through, and the value if they carry its memory."""
        groups = self._groups if self._network.recurrent else self._groups[:1]
        return (*groups, *self._normalizers.actor_groups)

    def init(self, seed: int) -> State:
        """Orthogonal weights; those of the policy's outputs are small so that it starts near uniform."""
        generator = torch.Generator().manual_seed(seed)
        outputs = self.environment.action.n if self.discrete else math.prod(self.environment.action.shape)
        policy = self._network.init(outputs + self.shared_network, 1.0 if self.shared_network else 0.01, generator)
        if self.shared_network:
            self._network.near_uniform(policy, outputs)
        if not self.discrete:
            policy["log_std"] = torch.full((outputs,), self.initial_log_std)
        if self.shared_network:
            params = {_SHARED: ParameterGroup(policy)}
        else:
            params = {"policy": ParameterGroup(policy), "value": ParameterGroup(self._network.init(1, 1.0, generator))}
        state = State(params=params, optimizer={name: init_adam(group.flat) for name, group in params.items()})
        self._normalizers.init(state)
        return state

    def initial_carry(self, envs: int) -> Tensor | None:
        """Empty memories `[envs, networks, features]`, if they are recurrent."""
        return torch.zeros(envs, len(self._groups), self.features) if self._network.recurrent else None

    def act(
        self, params: Params, carry: Tensor | None, observation: Tensor, noise: Tensor
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """Sample from the policy; see `Algorithm.act`."""
        shown, allowed = self.environment.split(observation)
        seen = self._normalizers.seen(params, self._network.prepared(shown))
        params_of = [params[group] for group in self._groups[: len(self._groups) if carry is not None else 1]]
        stepped = [self._network.step(own, _memory(carry, at), seen) for at, own in enumerate(params_of)]
        output = self._policy_of(stepped[0][0])
        if self.discrete:
            action, log_probability = choose(output, noise, allowed)
        else:
            vector, log_probability = displace(output, params_of[0]["log_std"], noise.flatten(1))
            action = vector.view(-1, *self.environment.action.shape)
        rows = {"action": action, "log_probability": log_probability}
        if carry is None:
            return rows, None
        return {**rows, "memory": carry}, torch.stack([cast("Tensor", memory) for _, memory in stepped], 1)

    def post(self, params: Params, trajectory: Trajectory) -> Batch:
        """Values in one batch, advantages and value targets per environment."""
        columns = trajectory.columns
        shown, allowed = self.environment.split(columns["observation"].flatten(0, 1))
        observation = self._network.prepared(shown)
        final = self._network.prepared(self.environment.split(trajectory.bootstrap_observation)[0])
        output, following = self._network.over_round(
            params[self._groups[-1]],
            trajectory,
            self._normalizers.seen(params, observation),
            self._normalizers.seen(params, final),
            _memory(columns["memory"][0], -1) if "memory" in columns else None,
        )
        value = output[..., -1]
        ends = columns["terminated"], columns["truncated"]
        reward, gathered = self._normalizers.rewards(
            params, columns["reward"] * self.reward_scale, *ends, self.discount
        )
        advantage = generalized_advantages(
            reward,
            value,
            successor_values(value, trajectory.bootstrap_rows, following[:, -1]),
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

    def _policy_of(self, output: Tensor) -> Tensor:
        """A network's outputs without the value, if that is among them."""
        return output[..., :-1] if self.shared_network else output

    def _outputs(self, network: int, params: Params, rows: Batch) -> Tensor:
        """Of training rows: `[rows, outputs]`, or of sequences `[rows, steps, outputs]`."""
        seen, memory = self._normalizers.seen(params, rows["observation"]), _memory(rows.get("memory"), network)
        return self._network.over_rows(params[self._groups[network]], seen, memory, rows.get("fresh"))

    def _surrogate(
        self, params: Mapping[str, Tensor], output: Tensor, rows: Batch, stats: Mapping[str, float]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Clipped surrogate (equation 7 of the paper) with the entropy bonus, to be made large, of each step."""
        if self.discrete:
            log_probability, entropy = choice_probability(output, rows["action"], rows.get("allowed"))
        else:
            action = rows["action"].flatten(output.dim() - 1)
            log_probability, entropy = vector_probability(output, params["log_std"], action)
        advantage = normalised(rows["advantage"], stats)
        surrogate, outputs = clipped_surrogate(log_probability, rows["log_probability"], advantage, self.clip_range)
        return surrogate + self.entropy_weight * entropy, {**outputs, "entropy": entropy.detach()}

    def _policy_loss(
        self,
        params: Params,
        targets: Mapping[str, Tensor],  # noqa: ARG002
        rows: Batch,
        noise: Tensor | None,  # noqa: ARG002
        stats: Mapping[str, float],
        count: int,
    ) -> LossResult:
        """Less the surrogate and its bonus."""
        gain, outputs = self._surrogate(params["policy"], self._outputs(0, params, rows), rows, stats)
        scalar = -gain.sum() / (count * self._row_steps)
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
        square = _square(self._outputs(1, params, rows), rows)
        return square.sum() / (count * self._row_steps), {"value_loss": rowwise(square.detach())}

    def _shared_loss(
        self,
        params: Params,
        targets: Mapping[str, Tensor],  # noqa: ARG002
        rows: Batch,
        noise: Tensor | None,  # noqa: ARG002
        stats: Mapping[str, float],
        count: int,
    ) -> LossResult:
        """Both, by one pass through the network."""
        output = self._outputs(0, params, rows)
        gain, outputs = self._surrogate(params[_SHARED], self._policy_of(output), rows, stats)
        square = _square(output, rows)
        scalar = (self.value_weight * square - gain).sum() / (count * self._row_steps)
        return scalar, {name: rowwise(values) for name, values in {**outputs, "value_loss": square.detach()}.items()}


def _memory(all_: Tensor | None, network: int) -> Tensor | None:
    """A network's part `[rows, features]` of the memories `[rows, networks, features]`, if there are any."""
    return None if all_ is None else all_[:, network]


def _square(output: Tensor, rows: Batch) -> Tensor:
    """Half the squared error of a network's last output against the value's target."""
    return 0.5 * (output[..., -1] - rows["value_target"]).square()
