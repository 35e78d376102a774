"""Deep Q-learning (Mnih et al. 2015) for discrete actions: double, dueling, prioritised and n-step by settings.

Double: van Hasselt et al. 2016, arXiv 1509.06461. Dueling: Wang et al. 2016, arXiv 1511.06581. Prioritised replay:
Schaul et al. 2016, arXiv 1511.05952. Rewards over n steps are not corrected for the policy that acted, as in Rainbow
(Hessel et al. 2018, arXiv 1710.02298); they end at a round's end, unless `returns_across_rounds` continues them.

With a recurrent network it is R2D2 (Kapturowski et al. 2019, openreview.net/forum?id=r1lyTjAqYX): rows are sequences
that begin with the memory that was stored when they were acted, `burn_in_steps` steps before them renew it, and a
sequence's priority mixes its largest and its mean error. `value_rescaling` is Pohlen et al.'s (2018, arXiv 1805.11593).

Acting is epsilon-greedy. Epsilon is a parameter group that no loss trains, so actors get it with each snapshot; it
falls with the number of minibatches.

The Huber loss suits rewards of -1 to 1. Where values are far larger than 1, the few rows at which episodes end count
too little under it to hold values down: on CartPole they grow without bound.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from penstock.tasks.model.algorithms.contract import Algorithm, Loss, WindowSpec
from penstock.tasks.model.nn.action_values import (
    by_step,
    choice_error,
    dueling_values,
    epsilon_after,
    explored,
    priorities,
    rescaled,
    restored,
    rows_of_choices,
    sequences_of_choices,
)
from penstock.tasks.model.nn.distributions import best, require_choice
from penstock.tasks.model.nn.layers import part
from penstock.tasks.model.nn.network import Network, rowwise
from penstock.tasks.model.nn.optimizers import (
    annealed,
    clip_norm,
    corrections,
    init_adam,
    minibatches_before,
    step_adam,
)
from penstock.tasks.setup.config.off_policy import ChoiceSettings, DQNSettings
from penstock.tasks.specs import EnvironmentSpec, NoiseSpec, ParameterGroup, Spec, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.tasks.model.algorithms.contract import Draw, Window
    from penstock.tasks.specs import Batch, LossInputs, LossResult, Params, Trajectory

TARGET = "value/"
"""Prefix of the target network among the targets."""
_UPDATES = "updates"


@dataclass(frozen=True, slots=True)
class ChoiceAlgorithm(Algorithm):
    """The parts that DQN and QR-DQN have in common: window, epsilon, target network, sequences and schedules."""

    settings: ChoiceSettings
    environment: EnvironmentSpec

    @property
    @abstractmethod
    def _network(self) -> Network:
        """Return the network of the values."""

    @property
    @abstractmethod
    def _outputs(self) -> int:
        """Return the number of outputs of the network."""

    @property
    def _has_epsilon(self) -> bool:
        """Return whether it explores by epsilon."""
        return True

    @property
    def window(self) -> WindowSpec:
        """The newest rounds, drawn by priority if the exponent is not 0."""
        settings = self.settings
        steps_after = (settings.return_steps - 1) * settings.returns_across_rounds
        sequences = settings.window_rows // settings.row_steps
        return WindowSpec(sequences, settings.priority_exponent, steps_after, settings.row_steps)

    @property
    def rows(self) -> dict[str, Spec]:
        """The choice, and with a recurrent network the `memory` before the step."""
        memory = {"memory": Spec("float32", (self.settings.features,))} if self._network.recurrent else {}
        return {"action": self.environment.action.spec, **memory}

    @property
    def noise(self) -> NoiseSpec:
        """One number that decides whether to explore, and one for each choice, of which the largest wins."""
        return NoiseSpec("uniform", (1 + self.environment.action.n,))

    @property
    def actor_groups(self) -> tuple[str, ...]:
        """The network, and epsilon if it explores by that."""
        return ("value", "exploration") if self._has_epsilon else ("value",)

    def init(self, seed: int) -> State:
        """Return orthogonal weights; the target network starts as a copy of the network."""
        network = self._network.init(self._outputs, 1.0, torch.Generator().manual_seed(seed))
        params = {"value": ParameterGroup(network)}
        if self._has_epsilon:
            params["exploration"] = ParameterGroup({"epsilon": torch.tensor([self.settings.first_epsilon])})
        targets = {f"{TARGET}{name}": value.clone() for name, value in network.items()}
        return State(
            params=params,
            optimizer={"value": init_adam(params["value"].flat)},
            targets={**targets, _UPDATES: torch.zeros((), dtype=torch.int64)},
        )

    def initial_carry(self, envs: int) -> Tensor | None:
        """Return empty memories `[envs, features]`; None for a network without one."""
        return torch.zeros(envs, self.settings.features) if self._network.recurrent else None

    def _explored(
        self, params: Params, values: Tensor, allowed: Tensor | None, noise: Tensor, carry: Tensor | None
    ) -> dict[str, Tensor]:
        """Return the rows of a step: a random choice with probability epsilon, otherwise the best one."""
        rows = {"action": explored(values, noise, params["exploration"]["epsilon"], allowed)}
        return rows if carry is None else {**rows, "memory": carry}

    def post(self, _params: Params, trajectory: Trajectory) -> Batch:
        """Return each row with its n-step return, the observation after these steps and the factor of its value."""
        settings, returns = self.settings, (self.settings.discount, self.settings.return_steps)
        if self._network.recurrent:
            cut = settings.sequence_steps, settings.burn_in_steps
            return sequences_of_choices(self.environment, self._network, trajectory, *returns, *cut)
        return rows_of_choices(self.environment, self._network, trajectory, *returns)

    def plan(self, generator: torch.Generator, window: Window) -> Iterator[Draw]:
        """Yield minibatches of the whole window, once it has `warm_up_rows`; weights correct for priorities."""
        settings, count = self.settings, self.settings.minibatches
        least = settings.training_rows(settings.warm_up_rows)
        if window.rows >= least:
            before = minibatches_before(window.rounds, window.round_rows, least, count)
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
                state.targets[f"{TARGET}{name}"].copy_(value)
        if self._has_epsilon:
            settings = self.settings
            epsilon = epsilon_after(
                updates, settings.first_epsilon, settings.last_epsilon, settings.epsilon_minibatches
            )
            state.params["exploration"].flat.fill_(epsilon)
        return state


@dataclass(frozen=True, slots=True)
class DQN(ChoiceAlgorithm):
    """Q-learning with a target network, for one environment's spaces."""

    settings: DQNSettings

    @property
    def losses(self) -> tuple[Loss, ...]:
        """One loss, for the value."""
        return (Loss("value", "value", self._loss),)

    @property
    def _network(self) -> Network:
        settings, observed = self.settings, self.environment.policy_input
        sizes, channels, cells = (settings.features, settings.hidden), settings.channels, settings.cells
        return Network(settings.network, observed, *sizes, relu=True, channels=channels, cells=cells)

    @property
    def _outputs(self) -> int:
        return self.environment.action.n + self.settings.dueling

    def act(
        self, params: Params, carry: Tensor | None, observation: Tensor, noise: Tensor
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """Take a random choice with probability epsilon, otherwise the best one; zero noise never explores."""
        unmasked, allowed = self.environment.split(observation)
        require_choice(allowed)
        outputs, memory = self._network.step(params["value"], carry, self._network.prepared(unmasked))
        return self._explored(params, self._values(outputs), allowed, noise, carry), memory

    def _values(self, outputs: Tensor) -> Tensor:
        """Compute the value of every choice, `[..., n]`; a dueling network's first output is the state's value."""
        return dueling_values(outputs) if self.settings.dueling else outputs

    def _of_rows(self, params: Params, batch: LossInputs) -> tuple[Tensor, Tensor, Tensor]:
        """Compute values of the choices, of the target network's next ones, and of what chooses among these."""
        values = self._values(self._network.step(params["value"], None, batch["observation"])[0])
        with torch.no_grad():
            target = part(batch.targets, TARGET)
            target_values = self._values(self._network.step(target, None, batch["following"])[0])
            judged = target_values
            if self.settings.double:
                judged = self._values(self._network.step(params["value"], None, batch["following"])[0])
        return values, target_values, judged

    def _of_sequences(self, params: Params, batch: LossInputs) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the same of sequences, `[rows, steps, n]`: each network runs them, after its own burn-in."""
        network, burn_in_steps = self._network, self.settings.burn_in_steps
        outputs, memories = network.over_replayed(params["value"], batch, burn_in_steps)
        with torch.no_grad():
            target = part(batch.targets, TARGET)
            _, target_memories = network.over_replayed(target, batch, burn_in_steps)
            target_values = self._values(network.after_replayed(target, batch, target_memories))
            judged = target_values
            if self.settings.double:
                judged = self._values(network.after_replayed(params["value"], batch, memories))
        return self._values(outputs), target_values, judged

    def _loss(self, params: Params, batch: LossInputs) -> LossResult:
        """Return half the squared temporal-difference error, or its Huber loss; its magnitude is the row's priority."""
        values, target_values, judged = (self._of_sequences if self._network.recurrent else self._of_rows)(
            params, batch
        )
        with torch.no_grad():
            choice = best(judged, batch.get("allowed")).unsqueeze(-1)
            following = target_values.gather(-1, choice).squeeze(-1)
            if self.settings.value_rescaling:
                target = rescaled(batch["return"] + batch["factor"] * restored(following))
            else:
                target = batch["return"] + batch["factor"] * following
        error, half_square = choice_error(values, batch["action"], target, huber=self.settings.huber)
        with torch.no_grad():
            weight, value = by_step(batch["weight"], half_square), error + target
            outputs = {
                "priority": priorities(error.abs()),
                "value": rowwise(restored(value) if self.settings.value_rescaling else value),
                "value_loss": rowwise(weight * half_square),
            }
        return batch.weighted_mean((half_square, weight)), outputs
