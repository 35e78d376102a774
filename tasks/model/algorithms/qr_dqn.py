"""QR-DQN (Dabney et al. 2017, arXiv 1710.10044) for discrete actions: the distribution of returns, by its quantiles.

With quantiles in place of its categories, the other parts of Rainbow (Hessel et al. 2018, arXiv 1710.02298) are
settings: double (arXiv 1509.06461), dueling (1511.06581), prioritised (1511.05952), n-step, and noisy layers
(Fortunato et al. 2017, 1706.10295). A row's priority is its loss, as in Rainbow.

With a recurrent network, rows are sequences that begin with a stored memory, as in `dqn`.

Acting is epsilon-greedy in the mean of the quantiles, with epsilon as in `dqn`; or, with `noisy_scale`, greedy under
noisy weights, and there is no epsilon. A loss draws them three times: for the values, for their targets, and for the
choice of which these are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from penstock.tasks.model.algorithms.contract import Loss
from penstock.tasks.model.algorithms.dqn import TARGET, ChoiceAlgorithm
from penstock.tasks.model.nn.action_values import (
    by_step,
    dueling_quantiles,
    priorities,
    quantile_error,
    quantile_means,
    quantile_targets,
    rescaled,
    restored,
)
from penstock.tasks.model.nn.distributions import best, require_choice
from penstock.tasks.model.nn.layers import part
from penstock.tasks.model.nn.network import Network, rowwise
from penstock.tasks.setup.config.off_policy import QRDQNSettings
from penstock.tasks.specs import NoiseSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.tasks.specs import LossInputs, LossResult, Params


@dataclass(frozen=True, slots=True)
class QRDQN(ChoiceAlgorithm):
    """Quantile regression with a target network, for one environment's spaces."""

    settings: QRDQNSettings

    @property
    def noise(self) -> NoiseSpec:
        """The noise of the weights; or one number that decides whether to explore, and one for each choice."""
        if self._is_noisy:
            return NoiseSpec("normal", (self._noise_numbers,))
        return NoiseSpec("uniform", (1 + self.environment.action.n,))

    @property
    def losses(self) -> tuple[Loss, ...]:
        """One loss, for the quantiles; noisy weights are drawn for each network that it applies."""
        passes = 3 if self.settings.double else 2
        noise = NoiseSpec("normal", (passes, self._noise_numbers)) if self._is_noisy else None
        return (Loss("value", "value", self._loss, noise),)

    @property
    def _is_noisy(self) -> bool:
        return self.settings.noisy_scale > 0.0

    @property
    def _has_epsilon(self) -> bool:
        return not self._is_noisy

    @property
    def _network(self) -> Network:
        settings = self.settings
        observed = self.environment.policy_input
        return Network(
            settings.network,
            observed,
            settings.features,
            settings.hidden,
            relu=True,
            noisy_scale=settings.noisy_scale,
            channels=settings.channels,
            cells=settings.cells,
        )

    @property
    def _outputs(self) -> int:
        return (self.environment.action.n + self.settings.dueling) * self.settings.quantiles

    @property
    def _noise_numbers(self) -> int:
        return self._network.noise_numbers(self._outputs)

    def act(
        self, params: Params, carry: Tensor | None, observation: Tensor, noise: Tensor
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """Take the choice of the largest mean, or explore; zero noise never explores."""
        unmasked, allowed = self.environment.split(observation)
        require_choice(allowed)
        observed = self._network.prepared(unmasked)
        if self._is_noisy:
            return {"action": best(self._means(self._quantiles(params["value"], observed, noise)), allowed)}, carry
        outputs, memory = self._network.step(params["value"], carry, observed)
        return self._explored(params, self._means(self._by_choice(outputs)), allowed, noise, carry), memory

    def _means(self, quantiles: Tensor) -> Tensor:
        """Return the mean return of every choice, `[..., n]`: h is not linear, so quantiles are restored before."""
        return quantile_means(restored(quantiles) if self.settings.value_rescaling else quantiles)

    def _by_choice(self, outputs: Tensor) -> Tensor:
        """Return the quantiles of every choice, `[B, n, quantiles]`, that a network's outputs `[B, ...]` are."""
        return dueling_quantiles(outputs, self.settings.quantiles, dueling=self.settings.dueling)

    def _quantiles(self, params: Mapping[str, Tensor], observation: Tensor, noise: Tensor | None) -> Tensor:
        """Compute the quantiles of every choice; `noise` is of the weights, if these are noisy."""
        if self._is_noisy and noise is not None:
            return self._by_choice(self._network.noisy_step(params, observation, noise))
        return self._by_choice(self._network.step(params, None, observation)[0])

    def _of_rows(self, params: Params, batch: LossInputs) -> tuple[Tensor, Tensor, Tensor]:
        """Compute quantiles of the choices, of the target network's next ones, and of what chooses among these."""
        noise = [None] * 3 if batch.noise is None else list(batch.noise.unbind(1))
        quantiles = self._quantiles(params["value"], batch["observation"], noise[0])
        with torch.no_grad():
            following = self._quantiles(part(batch.targets, TARGET), batch["following"], noise[1])
            judged = following
            if self.settings.double:
                judged = self._quantiles(params["value"], batch["following"], noise[2])
        return quantiles, following, judged

    def _of_sequences(self, params: Params, batch: LossInputs) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the same of all steps of sequences, one after the other: each network runs its own burn-in."""
        network, burn_in_steps = self._network, self.settings.burn_in_steps
        outputs, memories = network.over_replayed(params["value"], batch, burn_in_steps)
        with torch.no_grad():
            target = part(batch.targets, TARGET)
            _, target_memories = network.over_replayed(target, batch, burn_in_steps)
            following = self._by_choice(network.after_replayed(target, batch, target_memories).flatten(0, 1))
            judged = following
            if self.settings.double:
                judged = self._by_choice(network.after_replayed(params["value"], batch, memories).flatten(0, 1))
        return self._by_choice(outputs.flatten(0, 1)), following, judged

    def _loss(self, params: Params, batch: LossInputs) -> LossResult:
        """Return the quantile Huber loss of the row's choice against the target's quantiles of the best next choice."""
        recurrent, shape = self._network.recurrent, batch["action"].shape
        quantiles, following, judged = (self._of_sequences if recurrent else self._of_rows)(params, batch)
        action, returns, factor = (batch[name].flatten() for name in ("action", "return", "factor"))
        allowed = batch.get("allowed")
        if allowed is not None and recurrent:
            allowed = allowed.flatten(0, 1)
        with torch.no_grad():
            choice = best(self._means(judged), allowed)
            if self.settings.value_rescaling:
                target = rescaled(quantile_targets(restored(following), choice, returns, factor))
            else:
                target = quantile_targets(following, choice, returns, factor)
        value, error = quantile_error(quantiles, action, target, self.settings.huber_limit)
        if recurrent:
            value, error = value.unflatten(0, shape), error.unflatten(0, shape)
        with torch.no_grad():
            if self.settings.value_rescaling:
                value = self._means(quantiles).gather(-1, action.unsqueeze(-1)).view(shape)
            weight = by_step(batch["weight"], error)
            outputs = {
                "priority": priorities(error),
                "value": rowwise(value),
                "value_loss": rowwise(weight * error),
            }
        return batch.weighted_mean((error, weight)), outputs
