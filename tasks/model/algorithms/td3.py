"""TD3 (Fujimoto et al. 2018, arXiv 1802.09477) for vectors of actions within bounds: twin delayed DDPG.

Three changes of deep deterministic policy gradients hold values down: twin critics, of which the smaller one is the
target (section 4.2 of the paper), noise on the target policy's actions (target policy smoothing, section 5.3), and an
actor that takes a step in every `policy_delay`-th minibatch alone, as do all target networks (section 5.2).

The actor is deterministic. Actors add normal noise to its actions, and act at random at the start. All actions but the
stored ones are in the range from -1 to 1.

The window keeps raw observations: with `normalize_observation`, older rows are normalised by the newest statistics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from penstock.tasks.model.algorithms.contract import Loss
from penstock.tasks.model.algorithms.sac import CRITICS, VectorAlgorithm, WindowAlgorithm
from penstock.tasks.model.nn.layers import part
from penstock.tasks.model.nn.optimizers import init_adam, step_adam
from penstock.tasks.model.nn.squashed import bounded, jittered, smaller
from penstock.tasks.model.nn.surrogate import value_error
from penstock.tasks.setup.config.off_policy import TD3Settings
from penstock.tasks.setup.config.offline import TD3BCSettings
from penstock.tasks.specs import NoiseSpec, ParameterGroup, State

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.tasks.specs import LossInputs, LossResult, Params

_ACTOR = "actor/"
UPDATES = "updates"


@dataclass(frozen=True, slots=True)
class DelayedAlgorithm(VectorAlgorithm):
    """The parts that TD3 and TD3+BC have in common: a deterministic actor that waits, and smoothed targets."""

    settings: TD3Settings | TD3BCSettings

    @property
    def noise(self) -> NoiseSpec:
        """Normal noise displaces the actor's action, or makes a random one."""
        return NoiseSpec("normal", self.environment.action.shape)

    def init(self, seed: int) -> State:
        """Return orthogonal weights; the targets start as copies of actor and critics."""
        generator = torch.Generator().manual_seed(seed)
        actor = self._network.init(self._numbers, 0.01, generator)
        critics = self._new_critics(generator)
        params = {"critic": ParameterGroup(critics), **self._further_groups(), "actor": ParameterGroup(actor)}
        followed = {**critics, **{f"{_ACTOR}{name}": value for name, value in actor.items()}}
        state = State(
            params=params,
            optimizer={name: init_adam(params[name].flat) for name in ("critic", "actor")},
            targets={name: value.clone() for name, value in followed.items()}
            | {UPDATES: torch.zeros((), dtype=torch.int64)},
        )
        self._normalizers.init(state)
        self._start.init(state)
        return state

    def _further_groups(self) -> dict[str, ParameterGroup]:
        """Return parameter groups that take no step of Adam."""
        return {}

    def act(
        self, params: Params, carry: Tensor | None, observation: Tensor, noise: Tensor
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """Displace the actor's action by noise, or act at random at the start; zero noise gives the actor's action."""
        encoded, memory = self._acting(params, carry, observation)
        noise = noise.flatten(1)
        displaced = jittered(self._action(params["actor"], encoded), noise, self.settings.exploration_noise)
        return self._stored(self._start.acted(params, displaced, noise), carry), memory

    def update(self, state: State, loss: Loss, gradient: Tensor) -> State:
        """Take a step of Adam; the actor waits for its turn."""
        if self.is_due(loss, state):
            optimizer, rate = state.optimizer[loss.group], self.settings.learning_rate
            step_adam(state.params[loss.group].flat, gradient, optimizer, rate, epsilon=1e-8)
        return state

    def after_minibatch(self, state: State) -> State:
        """Count the minibatch; if it was the actor's turn, move all targets a small share towards their networks."""
        if self._is_actors_turn(state):
            for prefix, group in (("", "critic"), (_ACTOR, "actor")):
                for name, value in state.params[group].items():
                    state.targets[f"{prefix}{name}"].lerp_(value, self.settings.target_share)
        state.targets[UPDATES] += 1
        return state

    def is_due(self, loss: Loss, state: State) -> bool:
        """Return whether a loss takes a step: the actor's when it is its turn, the others' in every minibatch."""
        return loss.group != "actor" or self._is_actors_turn(state)

    def _is_actors_turn(self, state: State) -> bool:
        """Return whether the actor takes a step in this minibatch: in the first one, and in each one delay later."""
        return int(state.targets[UPDATES]) % self.settings.policy_delay == 0

    def _action(self, actor: Mapping[str, Tensor], encoded: Tensor) -> Tensor:
        """Compute the actor's actions, `[B, n]`."""
        return bounded(self._network.over_encoded(actor, encoded))

    def _critic_loss(self, params: Params, batch: LossInputs) -> LossResult:
        """Return both critics' squared error against the smaller target value of the smoothed action (algorithm 1)."""
        settings, actor = self.settings, part(batch.targets, _ACTOR)
        now, after, noise = self._now(params, batch), self._after(params, batch), self._noise_of(batch)
        reward, factor, acted = (self._steps(batch[name]) for name in ("reward", "factor", "action"))
        with torch.no_grad():
            action = self._action(actor, after(actor, 0))
            action = jittered(action, noise, settings.smoothing_noise, settings.smoothing_limit)
            target_value = smaller(*(self._value(batch.targets, name, after, action) for name in CRITICS))
            target = reward + factor * target_value
        values = [self._value(params["critic"], name, now, acted, trained=True) for name in CRITICS]
        first, second = (value_error(value, target) for value in values)
        outputs = {"critic_loss": first.detach() + second.detach(), "value": values[0].detach().squeeze(-1)}
        return self._mean(batch, (first, 1.0), (second, 1.0)), self._outputs(outputs)

    def _judged(self, params: Params, batch: LossInputs) -> tuple[Tensor, Tensor]:
        """Compute the actor's actions, `[B, n]`, and the first critic's values of them, `[B, 1]`."""
        now = self._now(params, batch)
        action = self._action(params["actor"], now(params["actor"], 0))
        return action, self._value(params["critic"], CRITICS[0], now, action)


@dataclass(frozen=True, slots=True)
class TD3(DelayedAlgorithm, WindowAlgorithm):
    """Twin delayed deterministic policy gradients, for one environment's spaces."""

    settings: TD3Settings

    @property
    def losses(self) -> tuple[Loss, ...]:
        """Critics, with noise for the target policy's actions, then the actor against the updated first critic."""
        return (
            Loss("critic", "critic", self._critic_loss, self._loss_noise),
            Loss("actor", "actor", self._actor_loss),
        )

    def _actor_loss(self, params: Params, batch: LossInputs) -> LossResult:
        """Return minus the first critic's value of the actor's action: the deterministic policy gradient."""
        _, value = self._judged(params, batch)
        outputs = {"actor_loss": -value.detach().squeeze(-1)}
        return self._mean(batch, (value, -1.0)), self._outputs(outputs)
