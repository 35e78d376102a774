"""Behaviour cloning (Pomerleau 1991, doi 10.1162/neco.1991.3.1.88): maximum likelihood of the stored actions.

It learns from observations and actions alone, so from shards of any algorithm. Which of them are worth to be imitated
is decided where they are selected.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tasks.algorithm import Loss
from tasks.distributions import best, choose, restrict
from tasks.networks import init_mlp, mlp
from tasks.optimizers import clip_norm, init_adam, step_adam
from tasks.specs import EnvironmentSpec, NoiseSpec, ParameterGroup, Spec, State

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tasks.algorithm import LossResult, Params, Window
    from tasks.specs import Batch, Trajectory

_LOG_2PI = math.log(2.0 * math.pi)
_LOG_STD_RANGE = (-5.0, 2.0)
"""Actions that follow from observations exactly would draw the deviation to zero, and the likelihood to infinity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BehaviourCloning:
    """A policy that does what was done, for one environment's spaces."""

    environment: EnvironmentSpec
    hidden: tuple[int, ...] = (64, 64)
    learning_rate: float = 1e-3
    minibatch_rows: int = 512
    epochs: int = 1
    """Passes over a round's rows."""
    gradient_norm: float = 1.0

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
        """Negative log-likelihood."""
        return (Loss("policy", "policy", self._loss),)

    @property
    def actor_groups(self) -> tuple[str, ...]:
        """There is one."""
        return ("policy",)

    def init(self, seed: int) -> State:
        """Orthogonal weights; the last layer is small, so that it starts near uniform."""
        generator = torch.Generator().manual_seed(seed)
        action = self.environment.action
        inputs = math.prod(self.environment.seen.shape)
        outputs = action.n if self.discrete else math.prod(action.shape)
        policy = init_mlp((inputs, *self.hidden, outputs), 0.01, generator)
        if not self.discrete:
            policy["log_std"] = torch.zeros(outputs)
        params = {"policy": ParameterGroup(policy)}
        return State(params=params, optimizer={"policy": init_adam(params["policy"].flat)})

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
        flat = torch.addcmul(output, noise.flatten(1), log_std.exp())
        return {"action": flat.view(-1, *self.environment.action.shape)}, carry

    def post(self, params: Params, trajectory: Trajectory) -> Batch:  # noqa: ARG002
        """Observations and actions, a row a step."""
        shown, allowed = self.environment.split(trajectory.columns["observation"].flatten(0, 1))
        return {
            "observation": shown.flatten(1).float(),
            "action": trajectory.columns["action"].flatten(0, 1),
            **({} if allowed is None else {"allowed": allowed}),
        }

    def stats(self, batch: Batch) -> dict[str, Tensor]:
        """Nothing global but the number of rows."""
        return {"count": torch.tensor(float(batch["action"].shape[0]), dtype=torch.float64)}

    def plan(self, generator: torch.Generator, window: Window) -> Iterator[Tensor]:
        """Every row once an epoch, in a fresh order, in minibatches of nearly equal size."""
        minibatches = -(-window.rows // self.minibatch_rows)
        for _ in range(self.epochs):
            yield from torch.randperm(window.rows, generator=generator).tensor_split(minibatches)

    def update(self, state: State, loss: Loss, gradient: Tensor) -> State:
        """Clip by the norm, then Adam."""
        clipped = clip_norm(gradient, self.gradient_norm)
        step_adam(state.params[loss.group].flat, clipped, state.optimizer[loss.group], self.learning_rate)
        return state

    def after_minibatch(self, state: State) -> State:
        """Nothing to do."""
        return state

    def _policy(self, params: Mapping[str, Tensor], features: Tensor) -> tuple[Tensor, Tensor | None]:
        """Logits and None, or means and their log standard deviation."""
        if self.discrete:
            return mlp(params, features), None
        layers = {name: value for name, value in params.items() if name != "log_std"}
        return mlp(layers, features), params["log_std"].clamp(*_LOG_STD_RANGE)

    def _loss(
        self,
        params: Params,
        targets: Mapping[str, Tensor],  # noqa: ARG002
        rows: Batch,
        noise: Tensor | None,  # noqa: ARG002
        stats: Mapping[str, float],  # noqa: ARG002
        count: int,
    ) -> LossResult:
        """Mean negative log-likelihood; for choices, how often the likeliest one is the stored one, too."""
        output, log_std = self._policy(params["policy"], rows["observation"])
        if log_std is None:
            allowed = rows.get("allowed")
            loss = torch.nn.functional.cross_entropy(restrict(output, allowed), rows["action"], reduction="none")
            agreement = (best(output.detach(), allowed) == rows["action"]).float()
            return loss.sum() / count, {"negative_log_likelihood": loss.detach(), "agreement": agreement}
        error = rows["action"].flatten(1) - output
        loss = (0.5 * (error * (-log_std).exp()).square() + log_std + 0.5 * _LOG_2PI).sum(-1)
        square = error.detach().square().mean(-1)
        return loss.sum() / count, {"negative_log_likelihood": loss.detach(), "square_error": square}
