"""Deep Q-learning (Mnih et al. 2015) for discrete actions: double, dueling, prioritised and n-step by settings.

Double: van Hasselt et al. 2016, arXiv 1509.06461. Dueling: Wang et al. 2016, arXiv 1511.06581. Prioritised replay:
Schaul et al. 2016, arXiv 1511.05952. Rewards over n steps are not corrected for the policy that acted, as in Rainbow
(Hessel et al. 2018, arXiv 1710.02298); they end at a round's end, unless `returns_across_rounds` continues them.

Acting is epsilon-greedy. Epsilon is a parameter group that no loss trains, so actors get it with each snapshot; it
falls with the number of minibatches.

The Huber loss suits rewards of -1 to 1. Where values are far larger than 1, the few rows at which episodes end count
too little under it to hold values down: on CartPole they grow without bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from penstock.tasks.model.algorithms.contract import Algorithm, Loss, WindowSpec
from penstock.tasks.model.nn.action_values import choice_error, dueling_values, epsilon_after, rows_of_choices
from penstock.tasks.model.nn.distributions import best, require_choice
from penstock.tasks.model.nn.layers import part
from penstock.tasks.model.nn.network import Network
from penstock.tasks.model.nn.optimizers import (
    annealed,
    clip_norm,
    corrections,
    init_adam,
    minibatches_before,
    step_adam,
)
from penstock.tasks.setup.config.off_policy import DQNSettings
from penstock.tasks.specs import EnvironmentSpec, NoiseSpec, ParameterGroup, Spec, State

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.tasks.model.algorithms.contract import Draw, Window
    from penstock.tasks.specs import Batch, LossInputs, LossResult, Params, Trajectory

_TARGET = "value/"
_UPDATES = "updates"


@dataclass(frozen=True, slots=True)
class DQN(Algorithm):
    """Q-learning with a target network, for one environment's spaces."""

    settings: DQNSettings
    environment: EnvironmentSpec

    @property
    def window(self) -> WindowSpec:
        """The newest rounds, drawn by priority if the exponent is not 0."""
        settings = self.settings
        steps_after = (settings.return_steps - 1) * settings.returns_across_rounds
        return WindowSpec(settings.window_rows, settings.priority_exponent, steps_after)

    @property
    def rows(self) -> dict[str, Spec]:
        """The choice, which is all that it stores."""
        return {"action": self.environment.action.spec}

    @property
    def noise(self) -> NoiseSpec:
        """One number that decides whether to explore, and one for each choice, of which the largest wins."""
        return NoiseSpec("uniform", (1 + self.environment.action.n,))

    @property
    def losses(self) -> tuple[Loss, ...]:
        """One loss, for the value."""
        return (Loss("value", "value", self._loss),)

    @property
    def actor_groups(self) -> tuple[str, ...]:
        """The values, and epsilon."""
        return ("value", "exploration")

    @property
    def _network(self) -> Network:
        settings, observed = self.settings, self.environment.policy_input
        return Network(settings.network, observed, settings.features, settings.hidden, relu=True)

    def init(self, seed: int) -> State:
        """Return orthogonal weights; the target network starts as a copy of the network."""
        outputs = self.environment.action.n + self.settings.dueling
        network = self._network.init(outputs, 1.0, torch.Generator().manual_seed(seed))
        params = {
            "value": ParameterGroup(network),
            "exploration": ParameterGroup({"epsilon": torch.tensor([self.settings.first_epsilon])}),
        }
        targets = {f"{_TARGET}{name}": value.clone() for name, value in network.items()}
        return State(
            params=params,
            optimizer={"value": init_adam(params["value"].flat)},
            targets={**targets, _UPDATES: torch.zeros((), dtype=torch.int64)},
        )

    def act(
        self, params: Params, carry: Tensor | None, observation: Tensor, noise: Tensor
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """Take a random choice with probability epsilon, otherwise the best one; zero noise never explores."""
        unmasked, allowed = self.environment.split(observation)
        require_choice(allowed)
        explores = noise[:, 0] > 1.0 - params["exploration"]["epsilon"]
        greedy = best(self._values(params["value"], self._network.prepared(unmasked)), allowed)
        return {"action": torch.where(explores, best(noise[:, 1:], allowed), greedy)}, carry

    def post(self, _params: Params, trajectory: Trajectory) -> Batch:
        """Return each row with its n-step return, the observation after these steps and the factor of its value."""
        settings = self.settings
        return rows_of_choices(self.environment, self._network, trajectory, settings.discount, settings.return_steps)

    def plan(self, generator: torch.Generator, window: Window) -> Iterator[Draw]:
        """Yield minibatches of the whole window, once it has `warm_up_rows`; weights correct for priorities."""
        settings, count = self.settings, self.settings.minibatches
        if window.rows >= settings.warm_up_rows:
            before = minibatches_before(window.rounds, window.round_rows, settings.warm_up_rows, count)
            for correction in corrections(settings.priority_correction, settings.correction_minibatches, before, count):
                yield window.draw(generator, settings.minibatch_rows, correction)

    def update(self, state: State, loss: Loss, gradient: Tensor) -> State:
        """Clip the gradient by its norm, then take a step of Adam with the annealed learning rate."""
        optimizer = state.optimizer[loss.group]
        over_steps = self.settings.anneal_rounds * self.settings.minibatches
        rate = annealed(self.settings.learning_rate, self.settings.final_learning_rate, optimizer, over_steps)
        step_adam(state.params[loss.group].flat, clip_norm(gradient, self.settings.gradient_norm), optimizer, rate)
        return state

    def after_minibatch(self, state: State) -> State:
        """Count the minibatch, copy the network to its target when that is due, and lower epsilon."""
        state.targets[_UPDATES] += 1
        updates = int(state.targets[_UPDATES])
        if updates % self.settings.target_minibatches == 0:
            for name, value in state.params["value"].items():
                state.targets[f"{_TARGET}{name}"].copy_(value)
        settings = self.settings
        epsilon = epsilon_after(updates, settings.first_epsilon, settings.last_epsilon, settings.epsilon_minibatches)
        state.params["exploration"].flat.fill_(epsilon)
        return state

    def _values(self, params: Mapping[str, Tensor], observation: Tensor) -> Tensor:
        """Compute the value of every choice, `[B, n]`; a dueling network's first output is the state's value."""
        output, _ = self._network.step(params, None, observation)
        return dueling_values(output) if self.settings.dueling else output

    def _loss(self, params: Params, batch: LossInputs) -> LossResult:
        """Half the squared temporal-difference error, or its Huber loss; its magnitude is the row's priority."""
        values = self._values(params["value"], batch["observation"])
        with torch.no_grad():
            target_values = self._values(part(batch.targets, _TARGET), batch["following"])
            judged = self._values(params["value"], batch["following"]) if self.settings.double else target_values
            choice = best(judged, batch.get("allowed")).unsqueeze(-1)
            target = batch["return"] + batch["factor"] * target_values.gather(-1, choice).squeeze(-1)
        error, half_square = choice_error(values, batch["action"], target, huber=self.settings.huber)
        with torch.no_grad():
            # A row with priority 0 would never be drawn again.
            outputs = {"priority": error.abs() + 1e-6, "value": error + target}
            outputs["value_loss"] = batch["weight"] * half_square
        return batch.weighted_mean((half_square, batch["weight"])), outputs
