"""Behaviour cloning (Pomerleau 1991, doi 10.1162/neco.1991.3.1.88): maximum likelihood of the stored actions.

It learns from observations and actions alone, so from shards of any algorithm. The replay's selection of rows decides
which of them are imitated.

With a recurrent network a row is a sequence of steps. Memories that shards may hold are another policy's: a sequence
begins with an empty one, which `burn_in_steps` steps before it fill.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from penstock.tasks.model.algorithms.contract import Algorithm, Loss
from penstock.tasks.model.nn.distributions import ActionDistribution, best, restrict
from penstock.tasks.model.nn.network import Network, rowwise
from penstock.tasks.model.nn.optimizers import clip_norm, init_adam, step_adam
from penstock.tasks.model.nn.squashed import bounded, within_bounds
from penstock.tasks.setup.config.offline import BehaviourCloningSettings, IQLSettings
from penstock.tasks.specs import EnvironmentSpec, NoiseSpec, ParameterGroup, Spec, State

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.tasks.model.algorithms.contract import Window
    from penstock.tasks.specs import Batch, LossInputs, LossResult, Params, Trajectory

_LOG_2PI = math.log(2.0 * math.pi)
_LOG_STD_RANGE = (-5.0, 2.0)
"""Deterministic stored actions would draw the deviation to zero, and the likelihood to infinity."""


@dataclass(frozen=True, slots=True)
class LikelihoodAlgorithm(Algorithm):
    """The parts that BehaviourCloning and IQL have in common: a policy that gives stored actions a likelihood."""

    settings: BehaviourCloningSettings | IQLSettings
    environment: EnvironmentSpec

    @property
    def rows(self) -> dict[str, Spec]:
        """The action: it needs no other column of a shard but the environment's."""
        return {"action": self.environment.action.spec}

    @property
    def noise(self) -> NoiseSpec:
        """Gumbel noise samples a choice (Gumbel-max), normal noise displaces a mean; zero noise is greedy."""
        return self._distribution.noise

    @property
    def actor_groups(self) -> tuple[str, ...]:
        """The policy alone."""
        return ("policy",)

    @property
    def _distribution(self) -> ActionDistribution:
        return ActionDistribution(self.environment.action)

    @property
    def _network(self) -> Network:
        settings, environment = self.settings, self.environment
        return Network(
            settings.network,
            environment.policy_input,
            settings.features,
            settings.hidden,
            environment.facts,
            relu=settings.activation == "relu",
            channels=settings.channels,
            cells=settings.cells,
        )

    def _new_policy(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Return orthogonal weights of the policy by name; the last layer is small, so that it starts near uniform."""
        policy = self._network.init(self._distribution.outputs, 0.01, generator)
        if numbers := self._distribution.numbers:
            policy["log_std"] = torch.zeros(numbers)
        return policy

    def initial_carry(self, envs: int) -> Tensor | None:
        """Return empty memories `[envs, features]`; None for a network without one."""
        return torch.zeros(envs, self.settings.features) if self._network.recurrent else None

    def act(
        self, params: Params, carry: Tensor | None, observation: Tensor, noise: Tensor
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """Sample from the policy; see `Algorithm.act`."""
        unmasked, allowed = self.environment.split(observation)
        policy = params["policy"]
        output, memory = self._network.step(policy, carry, self._network.prepared(unmasked))
        return {"action": self._distribution.sample(*self._spread(policy, output), noise, allowed)[0]}, memory

    def stats(self, batch: Batch) -> dict[str, Tensor]:
        """Return the number of rows."""
        return {"count": torch.tensor(float(batch["action"].shape[0]), dtype=torch.float64)}

    def plan(self, generator: torch.Generator, window: Window) -> Iterator[Tensor]:
        """Yield every row once an epoch, in a fresh order, in minibatches of nearly equal size."""
        minibatches = -(-window.rows * self.settings.row_steps // self.settings.minibatch_rows)
        minibatches = min(minibatches, window.rows)  # a sequence may have more steps than a minibatch should
        for _ in range(self.settings.epochs):
            yield from torch.randperm(window.rows, generator=generator).tensor_split(minibatches)

    def _rows(self, columns: Batch, observation: Tensor, learned: Batch, allowed: Tensor | None) -> Batch:
        """Make training rows of a tile's round, a row a step, or with a memory a row a sequence.

        Args:
            columns: of the round, `[T, B, ...]`.
            observation: its prepared observations, `[T * B, ...]`.
            learned: further columns, `[T * B, ...]`.
            allowed: the masks of its steps, `[T * B, n]`; None without masks.
        """
        learned = {**learned, **({} if allowed is None else {"allowed": allowed})}
        if not self._network.recurrent:
            return {"observation": observation, **learned}
        shape = columns["action"].shape[:2]
        by_step = {name: column.unflatten(0, shape) for name, column in learned.items()}
        cut = self.settings.sequence_steps, self.settings.burn_in_steps
        return self._network.replayed_rows(columns, observation, by_step, *cut)

    def _flat(self, column: Tensor) -> Tensor:
        """Return a column of the rows' steps one after the other, `[steps, ...]`; without a memory rows are steps."""
        return column.flatten(0, 1) if self._network.recurrent else column

    def _over(self, params: Mapping[str, Tensor], batch: LossInputs) -> Tensor:
        """Compute outputs of the rows' steps, `[steps, outputs]`; with a memory, after a burn-in from an empty one."""
        if not self._network.recurrent:
            return self._network.step(params, None, batch["observation"])[0]
        return self._flat(self._network.over_replayed(params, batch, self.settings.burn_in_steps)[0])

    def _result(self, batch: LossInputs, loss: Tensor, outputs: dict[str, Tensor]) -> LossResult:
        """Return the mean of a loss `[steps]`, and outputs of rows: of sequences the means over their steps."""
        if not self._network.recurrent:
            return batch.mean(loss), outputs
        shape = -1, self.settings.sequence_steps
        return batch.mean(loss.view(shape)), {name: rowwise(value.view(shape)) for name, value in outputs.items()}

    def _spread(self, params: Mapping[str, Tensor], output: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the distribution's outputs `[steps, outputs]`, and the log deviation of numbers if there are any."""
        if "log_std" not in params:
            return output, None
        if self.settings.bounded_mean:
            output = within_bounds(self.environment.action, bounded(output)).flatten(1)
        return output, params["log_std"].clamp(*_LOG_STD_RANGE)


@dataclass(frozen=True, slots=True)
class BehaviourCloning(LikelihoodAlgorithm):
    """A policy that imitates stored actions, for one environment's spaces."""

    settings: BehaviourCloningSettings

    @property
    def losses(self) -> tuple[Loss, ...]:
        """Negative log-likelihood of the stored actions."""
        return (Loss("policy", "policy", self._loss),)

    def init(self, seed: int) -> State:
        """Return the policy's first weights, and no moments."""
        params = {"policy": ParameterGroup(self._new_policy(torch.Generator().manual_seed(seed)))}
        return State(params=params, optimizer={"policy": init_adam(params["policy"].flat)})

    def post(self, _params: Params, trajectory: Trajectory) -> Batch:
        """Return observations and actions, a row a step, or with a memory a row a sequence."""
        columns = trajectory.columns
        unmasked, allowed = self.environment.split(columns["observation"].flatten(0, 1))
        learned = {"action": columns["action"].flatten(0, 1)}
        return self._rows(columns, self._network.packed(unmasked), learned, allowed)

    def update(self, state: State, loss: Loss, gradient: Tensor) -> State:
        """Clip the gradient by its norm, then take a step of Adam."""
        settings, moments = self.settings, state.optimizer[loss.group]
        clipped = clip_norm(gradient, settings.gradient_norm)
        step_adam(state.params[loss.group].flat, clipped, moments, settings.learning_rate, settings.adam_epsilon)
        return state

    def _loss(self, params: Params, batch: LossInputs) -> LossResult:
        """Return the mean negative log-likelihood; for choices also how often the likeliest one is the stored one."""
        policy, allowed = params["policy"], batch.get("allowed")
        loss, outputs = self._likelihood(
            *self._spread(policy, self._over(policy, batch)),
            self._flat(batch["action"]),
            None if allowed is None else self._flat(allowed),
        )
        return self._result(batch, loss, outputs)

    def _likelihood(
        self, output: Tensor, log_std: Tensor | None, action: Tensor, allowed: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the negative log-likelihood of each step, `[steps]`, and diagnostics."""
        if self.environment.action.kind == "structured":
            return self._structured_likelihood(output, log_std, action, allowed)
        if log_std is None:
            loss = torch.nn.functional.cross_entropy(restrict(output, allowed), action, reduction="none")
            agreement = (best(output.detach(), allowed) == action).float()
            return loss, {"negative_log_likelihood": loss.detach(), "agreement": agreement}
        error = action.flatten(1) - output
        loss = (0.5 * (error * (-log_std).exp()).square() + log_std + 0.5 * _LOG_2PI).sum(-1)
        square = error.detach().square().mean(-1)
        return loss, {"negative_log_likelihood": loss.detach(), "square_error": square}

    def _structured_likelihood(
        self, output: Tensor, log_std: Tensor | None, action: Tensor, allowed: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the same of all parts of an action, with the agreement of its choices and the error of its numbers."""
        distribution = self._distribution
        likelihood, _ = distribution.probability(output, log_std, action, allowed)
        outputs = {"negative_log_likelihood": -likelihood.detach()}
        with torch.no_grad():
            greedy, _ = distribution.sample(output, log_std, torch.zeros_like(output), allowed)
            (likeliest, means), (chosen, numbers) = distribution.parts(greedy), distribution.parts(action)
            if chosen.shape[-1]:
                outputs["agreement"] = (likeliest == chosen).float().mean(-1)
            if numbers.shape[-1]:
                outputs["square_error"] = (numbers - means).square().mean(-1)
        return -likelihood, outputs
