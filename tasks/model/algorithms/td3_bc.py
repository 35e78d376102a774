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

from penstock.tasks.model.algorithms.contract import Algorithm, Loss
from penstock.tasks.model.nn.layers import part
from penstock.tasks.model.nn.network import Network
from penstock.tasks.model.nn.normalizers import Normalizers
from penstock.tasks.model.nn.optimizers import init_adam, step_adam
from penstock.tasks.model.nn.returns import transitions_of
from penstock.tasks.model.nn.squashed import (
    bounded,
    from_bounds,
    jittered,
    multiplied,
    repeated_exp,
    smaller,
    within_bounds,
)
from penstock.tasks.model.nn.surrogate import value_error
from penstock.tasks.setup.config.offline import TD3BCSettings
from penstock.tasks.specs import EnvironmentSpec, NoiseSpec, ParameterGroup, Spec, State

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.tasks.model.algorithms.contract import Window
    from penstock.tasks.specs import Batch, LossInputs, LossResult, Params, Trajectory

_CRITICS = ("first/", "second/")
_ACTOR = "actor/"
_UPDATES = "updates"
_LEAST_MAGNITUDE = 1e-6
"""Critics that are 0 everywhere would make lambda infinite."""


@dataclass(frozen=True, slots=True)
class TD3BC(Algorithm):
    """TD3 with a behaviour-cloning term, for one environment's spaces."""

    settings: TD3BCSettings
    environment: EnvironmentSpec

    @property
    def rows(self) -> dict[str, Spec]:
        """The action: it needs no other column of a shard but the environment's."""
        return {"action": self.environment.action.spec}

    @property
    def noise(self) -> NoiseSpec:
        """Normal noise displaces the actor's action."""
        return NoiseSpec("normal", self.environment.action.shape)

    @property
    def losses(self) -> tuple[Loss, ...]:
        """Critics, with noise for the target policy's actions; then lambda and the actor by the updated first one."""
        return (
            Loss("critic", "critic", self._critic_loss, NoiseSpec("normal", (self._numbers,))),
            Loss("balance", "balance", self._balance_loss),
            Loss("actor", "actor", self._actor_loss),
        )

    @property
    def actor_groups(self) -> tuple[str, ...]:
        """The actor and the observation's normaliser."""
        return ("actor", *self._normalizers.actor_groups)

    @property
    def _normalizers(self) -> Normalizers:
        numbers = math.prod(self.environment.observation.shape) * self.settings.normalize_observation
        return Normalizers(observation=numbers, limit=math.inf, offset=1e-3)

    @property
    def _numbers(self) -> int:
        return math.prod(self.environment.action.shape)

    @property
    def _network(self) -> Network:
        settings, relu = self.settings, self.settings.activation == "relu"
        sizes, channels, cells = (settings.features, settings.hidden), settings.channels, settings.cells
        observed = self.environment.observation
        return Network(settings.network, observed, *sizes, relu=relu, channels=channels, cells=cells)

    def init(self, seed: int) -> State:
        """Return orthogonal weights; the targets start as copies of actor and critics, lambda as alpha."""
        generator = torch.Generator().manual_seed(seed)
        actor = self._network.init(self._numbers, 0.01, generator)
        critics = {
            f"{name}{layer}": value
            for name in _CRITICS
            for layer, value in self._network.init(1, 1.0, generator, joined=self._numbers).items()
        }
        groups = {"critic": critics, "balance": {"log": torch.tensor([math.log(self.settings.alpha)])}, "actor": actor}
        params = {name: ParameterGroup(group) for name, group in groups.items()}
        followed = {**critics, **{f"{_ACTOR}{name}": value for name, value in actor.items()}}
        state = State(
            params=params,
            optimizer={name: init_adam(params[name].flat) for name in ("critic", "actor")},
            targets={name: value.clone() for name, value in followed.items()}
            | {_UPDATES: torch.zeros((), dtype=torch.int64)},
        )
        self._normalizers.init(state)
        return state

    def act(
        self, params: Params, carry: Tensor | None, observation: Tensor, noise: Tensor
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """Displace the actor's action by noise; zero noise, as evaluations have, gives the actor's action."""
        inputs = self._normalizers.normalized(params, self._network.prepared(observation))
        action = jittered(self._action(params["actor"], inputs), noise.flatten(1), self.settings.exploration_noise)
        return {"action": within_bounds(self.environment.action, action)}, carry

    def post(self, _params: Params, trajectory: Trajectory) -> Batch:
        """Return each row with the observation that followed it, and the action in the range from -1 to 1."""
        followed = transitions_of(trajectory, self.settings.discount, reward_scale=self.settings.reward_scale)
        return {
            "observation": self._network.packed(trajectory.columns["observation"].flatten(0, 1)),
            "action": from_bounds(self.environment.action, trajectory.columns["action"].flatten(0, 1)),
            "reward": followed.returns.flatten(),
            "following": self._network.packed(followed.following),
            "factor": followed.factors.flatten(),
        }

    def stats(self, batch: Batch) -> dict[str, Tensor]:
        """Return the normaliser's sums over the round's rows."""
        return self._normalizers.sums(batch)

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
        """Take a step of Adam, for which the actor waits for its turn; the step of lambda sets it."""
        group = state.params[loss.group].flat
        if loss.group == "balance":
            group.copy_(math.log(self.settings.alpha) - (-gradient).clamp(min=_LEAST_MAGNITUDE).log())
        elif self.is_due(loss, state):
            step_adam(group, gradient, state.optimizer[loss.group], self.settings.learning_rate, epsilon=1e-8)
        return state

    def after_minibatch(self, state: State) -> State:
        """Count the minibatch; if it was the actor's turn, move all targets a small share towards their networks."""
        if self._is_actors_turn(state):
            for prefix, group in (("", "critic"), (_ACTOR, "actor")):
                for name, value in state.params[group].items():
                    state.targets[f"{prefix}{name}"].lerp_(value, self.settings.target_share)
        state.targets[_UPDATES] += 1
        return state

    def after_round(self, state: State, stats: Mapping[str, Tensor]) -> State:
        """Update the normaliser, unless only the first rounds give moments and these are over."""
        if not self.settings.moment_rounds or int(state.targets[_UPDATES]) == 0:
            self._normalizers.update(state, stats)
        return state

    def is_due(self, loss: Loss, state: State) -> bool:
        """Return whether a loss takes a step: the actor's when it is its turn, the others' in every minibatch.

        Lambda is set in every minibatch, so that a checkpoint between two turns has the newest one.
        """
        return loss.group != "actor" or self._is_actors_turn(state)

    def _is_actors_turn(self, state: State) -> bool:
        """Return whether the actor takes a step in this minibatch: in the first one, and in each one delay later."""
        return int(state.targets[_UPDATES]) % self.settings.policy_delay == 0

    def _action(self, actor: Mapping[str, Tensor], observation: Tensor) -> Tensor:
        """Compute the actor's actions, `[B, n]`."""
        return bounded(self._network.step(actor, None, observation)[0])

    def _value(self, critics: Mapping[str, Tensor], name: str, observation: Tensor, action: Tensor) -> Tensor:
        """Compute one critic's values, `[B, 1]`."""
        return self._network.over_pairs(part(critics, name), observation, action)

    def _critic_loss(self, params: Params, batch: LossInputs) -> LossResult:
        """Return both critics' squared error against the smaller target value of the smoothed action, as in TD3."""
        settings = self.settings
        if batch.noise is None:
            raise TypeError("the loss of TD3+BC's critics needs noise, as it declares")
        observation, following = (
            self._normalizers.normalized(params, batch[name]) for name in ("observation", "following")
        )
        with torch.no_grad():
            action = self._action(part(batch.targets, _ACTOR), following)
            action = jittered(action, batch.noise, settings.smoothing_noise, settings.smoothing_limit)
            target_value = smaller(*(self._value(batch.targets, name, following, action) for name in _CRITICS))
            target = batch["reward"] + batch["factor"] * target_value
        values = [self._value(params["critic"], name, observation, batch["action"]) for name in _CRITICS]
        first, second = (value_error(value, target) for value in values)
        outputs = {"critic_loss": first.detach() + second.detach(), "value": values[0].detach().squeeze(-1)}
        return batch.weighted_mean((first, 1.0), (second, 1.0)), outputs

    def _balance_loss(self, params: Params, batch: LossInputs) -> LossResult:
        """Return a product whose gradient is minus the mean magnitude of the first critic's values of actions."""
        with torch.no_grad():
            observation = self._normalizers.normalized(params, batch["observation"])
            action = self._action(params["actor"], observation)
            value = self._value(params["critic"], _CRITICS[0], observation, action).squeeze(-1)
            magnitude = value.abs()
        return batch.mean(multiplied(params["balance"]["log"], -magnitude)), {"magnitude": magnitude}

    def _actor_loss(self, params: Params, batch: LossInputs) -> LossResult:
        """Return equation 3: the squared distance to the stored action, minus lambda times the first critic's value."""
        observation = self._normalizers.normalized(params, batch["observation"])
        action = self._action(params["actor"], observation)
        value = self._value(params["critic"], _CRITICS[0], observation, action)
        balance = repeated_exp(params["balance"]["log"], len(value))
        half_square = value_error(action.unsqueeze(-1), batch["action"])
        outputs = {"actor_value": value.detach().squeeze(-1), "balance": balance}
        return batch.weighted_mean((value, -balance.unsqueeze(-1)), (half_square, 2.0)), outputs
