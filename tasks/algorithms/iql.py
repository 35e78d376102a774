"""Implicit Q-learning (Kostrikov et al. 2022, arXiv 2110.06169): a policy that is better than the stored one.

It never asks what an action that was not taken is worth. A value is an upper expectile of the critic over the stored
actions (equation 5 of the paper), the critic bootstraps from that value (equation 6), and the policy clones the stored
actions, weighed by the exponential of their advantage (equation 7). It learns from shards of any algorithm.
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
from tasks.optimizers import init_adam, step_adam
from tasks.specs import EnvironmentSpec, NoiseSpec, ParameterGroup, Spec, State

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tasks.algorithm import LossResult, Params, Window
    from tasks.specs import Batch, Trajectory

_LOG_STD_RANGE = (-5.0, 2.0)
"""Actions that follow from observations exactly would draw the deviation to zero, and the likelihood to infinity."""
_TWINS = ("first", "second")


@dataclass(frozen=True, slots=True, kw_only=True)
class IQL:
    """Twin critics, a value and a policy, for one environment's spaces."""

    environment: EnvironmentSpec
    hidden: tuple[int, ...] = (64, 64)
    learning_rate: float = 3e-4
    discount: float = 0.99
    expectile: float = 0.7
    inverse_temperature: float = 3.0
    weight_limit: float = 100.0
    target_rate: float = 0.005
    """Share of the critic that its target takes over after every minibatch."""
    reward_scale: float = 1.0
    minibatch_rows: int = 512
    epochs: int = 1
    """Passes over a round's rows."""

    @property
    def discrete(self) -> bool:
        """Whether actions are choices; otherwise they are vectors."""
        return self.environment.action.kind == "discrete"

    @property
    def rows(self) -> dict[str, Spec]:
        """The action; that is all it needs of a shard beside the environment's columns."""
        return {"action": self.environment.action.spec}

    @property
    def noise(self) -> NoiseSpec:
        """Gumbel noise picks among choices, normal noise displaces a mean; zero noise means greedy."""
        action = self.environment.action
        return NoiseSpec("gumbel", (action.n,)) if self.discrete else NoiseSpec("normal", action.shape)

    @property
    def losses(self) -> tuple[Loss, ...]:
        """In the order of the authors' code: critic and policy see the value that this minibatch has improved."""
        return (
            Loss("value", "value", self._value_loss),
            Loss("policy", "policy", self._policy_loss),
            Loss("critic", "critic", self._critic_loss),
        )

    @property
    def actor_groups(self) -> tuple[str, ...]:
        """Actors need the policy."""
        return ("policy",)

    def init(self, seed: int) -> State:
        """Orthogonal weights; the policy's last layer is small, so that it starts near uniform."""
        generator = torch.Generator().manual_seed(seed)
        action = self.environment.action
        inputs = math.prod(self.environment.seen.shape)
        width = action.n if self.discrete else math.prod(action.shape)
        policy = init_mlp((inputs, *self.hidden, width), 0.01, generator)
        if not self.discrete:
            policy["log_std"] = torch.zeros(width)
        sizes = (inputs, *self.hidden, width) if self.discrete else (inputs + width, *self.hidden, 1)
        critic = {f"{twin}.{name}": value for twin in _TWINS for name, value in init_mlp(sizes, 1.0, generator).items()}
        value = init_mlp((inputs, *self.hidden, 1), 1.0, generator)
        groups = {"value": value, "policy": policy, "critic": critic}
        params = {name: ParameterGroup(group) for name, group in groups.items()}
        return State(
            params=params,
            optimizer={name: init_adam(group.flat) for name, group in params.items()},
            targets={name: tensor.detach().clone() for name, tensor in params["critic"].items()},
        )

    def initial_carry(self, envs: int) -> None:  # noqa: ARG002
        """A perceptron has no memory."""
        return

    def act(
        self, params: Params, carry: Tensor | None, observation: Tensor, noise: Tensor
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """Sample from the policy; see `Algorithm.act`."""
        shown, allowed = self.environment.split(observation)
        output, log_std = self._policy(params["policy"], shown.flatten(1).float())
        if log_std is None:
            return {"action": choose(output, noise, allowed)[0]}, carry
        vector, _ = displace(output, log_std, noise.flatten(1))
        return {"action": vector.view(-1, *self.environment.action.shape)}, carry

    def post(self, params: Params, trajectory: Trajectory) -> Batch:  # noqa: ARG002
        """Transitions, a row a step: what was seen, done, gained and seen next, and whether anything follows."""
        columns = trajectory.columns
        shown, allowed = self.environment.split(columns["observation"].flatten(0, 1))
        observation = shown.flatten(1).float()
        following = observation.roll(-columns["reward"].shape[1], 0)
        final, _ = self.environment.split(trajectory.bootstrap_observation)
        following[trajectory.bootstrap_rows] = final.flatten(1).float()
        return {
            "observation": observation,
            "action": columns["action"].flatten(0, 1),
            "reward": columns["reward"].flatten().float() * self.reward_scale,
            "alive": (columns["terminated"].flatten() == 0).float(),
            "next_observation": following,
            **({} if allowed is None else {"allowed": allowed}),
        }

    def stats(self, batch: Batch) -> dict[str, Tensor]:
        """Nothing global but the number of rows."""
        return {"count": torch.tensor(float(batch["reward"].shape[0]), dtype=torch.float64)}

    def plan(self, generator: torch.Generator, window: Window) -> Iterator[Tensor]:
        """Every row once an epoch, in a fresh order, in minibatches of nearly equal size."""
        minibatches = -(-window.rows // self.minibatch_rows)
        for _ in range(self.epochs):
            yield from torch.randperm(window.rows, generator=generator).tensor_split(minibatches)

    def update(self, state: State, loss: Loss, gradient: Tensor) -> State:
        """Adam."""
        step_adam(state.params[loss.group].flat, gradient, state.optimizer[loss.group], self.learning_rate)
        return state

    def after_minibatch(self, state: State) -> State:
        """The target critic follows slowly."""
        for name, value in state.params["critic"].items():
            state.targets[name].lerp_(value.detach(), self.target_rate)
        return state

    def _policy(self, params: Mapping[str, Tensor], features: Tensor) -> tuple[Tensor, Tensor | None]:
        """Logits and None, or means and their log standard deviation."""
        if self.discrete:
            return mlp(params, features), None
        layers = {name: value for name, value in params.items() if name != "log_std"}
        return mlp(layers, features), params["log_std"].clamp(*_LOG_STD_RANGE)

    def _worth(self, critic: Mapping[str, Tensor], rows: Batch) -> Tensor:
        """What each of the twins says of the stored actions, `[rows, 2]`."""
        found = []
        for twin in _TWINS:
            layers = {name.removeprefix(f"{twin}."): value for name, value in critic.items() if name.startswith(twin)}
            if self.discrete:
                found.append(mlp(layers, rows["observation"]).gather(-1, rows["action"].unsqueeze(-1)))
            else:
                found.append(mlp(layers, torch.cat([rows["observation"], rows["action"].flatten(1)], -1)))
        return torch.cat(found, -1)

    def _advantage(self, params: Params, targets: Mapping[str, Tensor], rows: Batch) -> Tensor:
        """By how much the smaller of the target twins exceeds the value, `[rows]`."""
        with torch.no_grad():
            worth = self._worth(targets, rows).amin(-1)
        return worth - mlp(params["value"], rows["observation"]).squeeze(-1)

    def _value_loss(
        self,
        params: Params,
        targets: Mapping[str, Tensor],
        rows: Batch,
        noise: Tensor | None,  # noqa: ARG002
        stats: Mapping[str, float],  # noqa: ARG002
        count: int,
    ) -> LossResult:
        """Asymmetric squares: what is worth more than the value draws it by tau, the rest by 1 - tau."""
        advantage = self._advantage(params, targets, rows)
        loss = torch.where(advantage > 0, self.expectile, 1.0 - self.expectile) * advantage.square()
        return loss.sum() / count, {"value_loss": loss.detach(), "advantage": advantage.detach()}

    def _policy_loss(
        self,
        params: Params,
        targets: Mapping[str, Tensor],
        rows: Batch,
        noise: Tensor | None,  # noqa: ARG002
        stats: Mapping[str, float],  # noqa: ARG002
        count: int,
    ) -> LossResult:
        """Negative log-likelihood of the stored actions, each weighed by what it was worth."""
        with torch.no_grad():
            advantage = self._advantage(params, targets, rows)
            weight = (self.inverse_temperature * advantage).exp().clamp(max=self.weight_limit)
        output, log_std = self._policy(params["policy"], rows["observation"])
        if log_std is None:
            likelihood, _ = choice_probability(output, rows["action"], rows.get("allowed"))
        else:
            likelihood, _ = vector_probability(output, log_std, rows["action"].flatten(1))
        outputs = {"negative_log_likelihood": -likelihood.detach(), "advantage_weight": weight}
        return -(weight * likelihood).sum() / count, outputs

    def _critic_loss(
        self,
        params: Params,
        targets: Mapping[str, Tensor],  # noqa: ARG002
        rows: Batch,
        noise: Tensor | None,  # noqa: ARG002
        stats: Mapping[str, float],  # noqa: ARG002
        count: int,
    ) -> LossResult:
        """Both twins' squared error against the reward and the value of what followed."""
        with torch.no_grad():
            following = mlp(params["value"], rows["next_observation"]).squeeze(-1)
            target = rows["reward"] + self.discount * rows["alive"] * following
        square = (self._worth(params["critic"], rows) - target.unsqueeze(-1)).square().sum(-1)
        return square.sum() / count, {"critic_loss": square.detach()}
