"""TD3+BC (Fujimoto and Gu 2021, arXiv 2106.06860): TD3 on stored rows, whose actor also clones the stored actions.

The actor maximises `lambda * Q(s, pi(s)) - (pi(s) - a)^2` (equation 3 of the paper), where lambda is alpha divided by
the mean magnitude of Q over the minibatch (equation 5; of the actor's own actions, as in the authors' code). That mean
is over rows that several learners may share. A group of one number keeps lambda: the loss `balance` is the number times
-|Q|, so its gradient is minus the mean, over all learners, and the group's step sets lambda by it.

Observations are normalised, `(s - mean) / (deviation + 1e-3)` as in equation 6, by the rows that were learned so far:
after one pass these are all, and the first round is learned as it is. With `moment_rounds`, the first rounds give the
moments and nothing is learned from them, so that all of learning has the same ones: the paper's, if those rounds are
one pass over the data set. Critics and the delay are those of `td3`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from penstock.tasks.model.algorithms.contract import Loss
from penstock.tasks.model.algorithms.td3 import UPDATES, DelayedAlgorithm
from penstock.tasks.model.nn.normalizers import Normalizers
from penstock.tasks.model.nn.squashed import multiplied, repeated_exp
from penstock.tasks.model.nn.surrogate import value_error
from penstock.tasks.setup.config.offline import TD3BCSettings
from penstock.tasks.specs import ParameterGroup, State

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.tasks.model.algorithms.contract import Window
    from penstock.tasks.specs import LossInputs, LossResult, Params

_LEAST_MAGNITUDE = 1e-6
"""Critics that are 0 everywhere would make lambda infinite."""


@dataclass(frozen=True, slots=True)
class TD3BC(DelayedAlgorithm):
    """TD3 with a behaviour-cloning term, for one environment's spaces."""

    settings: TD3BCSettings

    @property
    def losses(self) -> tuple[Loss, ...]:
        """Critics, with noise for the target policy's actions; then lambda and the actor by the updated first one."""
        return (
            Loss("critic", "critic", self._critic_loss, self._loss_noise),
            Loss("balance", "balance", self._balance_loss),
            Loss("actor", "actor", self._actor_loss),
        )

    @property
    def _normalizers(self) -> Normalizers:
        numbers = math.prod(self.environment.observation.shape) * self.settings.normalize_observation
        return Normalizers(observation=numbers, limit=math.inf, offset=1e-3)

    def _further_groups(self) -> dict[str, ParameterGroup]:
        """Return lambda's logarithm, which starts as that of alpha."""
        return {"balance": ParameterGroup({"log": torch.tensor([math.log(self.settings.alpha)])})}

    def plan(self, generator: torch.Generator, window: Window) -> Iterator[Tensor]:
        """Yield every row once an epoch, in a fresh order, in minibatches of nearly equal size; first none.

        Rounds that only give moments have none.
        """
        if window.rounds.stop <= self.settings.moment_rounds:
            return
        minibatches = -(-window.rows // self.settings.minibatch_rows)
        for _ in range(self.settings.epochs):
            yield from torch.randperm(window.rows, generator=generator).tensor_split(minibatches)

    def update(self, state: State, loss: Loss, gradient: Tensor) -> State:
        """Take a step, as TD3 does; that of lambda sets it, in every minibatch.

        So a checkpoint between two of the actor's turns has the newest one.
        """
        if loss.group != "balance":
            return DelayedAlgorithm.update(self, state, loss, gradient)
        magnitude = (-gradient).clamp(min=_LEAST_MAGNITUDE)
        state.params["balance"].flat.copy_(math.log(self.settings.alpha) - magnitude.log())
        return state

    def after_round(self, state: State, stats: Mapping[str, Tensor]) -> State:
        """Update the normaliser, unless only the first rounds give moments and these are over."""
        if not self.settings.moment_rounds or int(state.targets[UPDATES]) == 0:
            self._normalizers.update(state, stats)
        return state

    def _balance_loss(self, params: Params, batch: LossInputs) -> LossResult:
        """Return a product whose gradient is minus the mean magnitude of the first critic's values of actions."""
        with torch.no_grad():
            magnitude = self._judged(params, batch)[1].squeeze(-1).abs()
        return batch.mean(multiplied(params["balance"]["log"], -magnitude)), {"magnitude": magnitude}

    def _actor_loss(self, params: Params, batch: LossInputs) -> LossResult:
        """Return equation 3: the squared distance to the stored action, minus lambda times the first critic's value."""
        action, value = self._judged(params, batch)
        balance = repeated_exp(params["balance"]["log"], len(value))
        half_square = value_error(action.unsqueeze(-1), batch["action"])
        outputs = {"actor_value": value.detach().squeeze(-1), "balance": balance}
        return batch.weighted_mean((value, -balance.unsqueeze(-1)), (half_square, 2.0)), outputs
