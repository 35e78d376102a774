"""Soft actor-critic (Haarnoja et al. 2018, arXiv 1812.05905) for vectors of actions within bounds.

It has twin critics, a normal distribution squashed by tanh, and a temperature that keeps the entropy near a target. All
actions but the stored ones are in the range from -1 to 1, and log-probabilities are of these. Actor and critics have
an encoder of images each.

The window keeps raw observations: with `normalize_observation`, older rows are normalised by the newest statistics.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from penstock.tasks.model.algorithms.contract import Algorithm, Loss, WindowSpec
from penstock.tasks.model.nn.layers import part
from penstock.tasks.model.nn.network import Network
from penstock.tasks.model.nn.normalizers import Normalizers
from penstock.tasks.model.nn.optimizers import RandomStart, init_adam, step_adam
from penstock.tasks.model.nn.returns import transitions_of
from penstock.tasks.model.nn.squashed import (
    from_bounds,
    multiplied,
    repeated_exp,
    smaller,
    squashed_sample,
    within_bounds,
)
from penstock.tasks.model.nn.surrogate import value_error
from penstock.tasks.setup.config.off_policy import SACSettings, TD3Settings
from penstock.tasks.specs import EnvironmentSpec, NoiseSpec, ParameterGroup, Spec, State

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.tasks.model.algorithms.contract import Draw, Window
    from penstock.tasks.specs import Batch, LossInputs, LossResult, Params, Trajectory

CRITICS = ("first/", "second/")
"""Prefixes of the twin critics in the group `critic` and among the targets."""
_LOG_STD_RANGE = (-20.0, 2.0)


@dataclass(frozen=True, slots=True)
class VectorAlgorithm(Algorithm):
    """The parts that SAC and TD3 have in common: window, normaliser, random start, twin critics and rows."""

    settings: SACSettings | TD3Settings
    environment: EnvironmentSpec

    @property
    def window(self) -> WindowSpec:
        """The newest rounds, drawn uniformly."""
        return WindowSpec(self.settings.window_rows)

    @property
    def rows(self) -> dict[str, Spec]:
        """The action, as the environment takes it."""
        return {"action": self.environment.action.spec}

    @property
    def actor_groups(self) -> tuple[str, ...]:
        """The actor, the observation's normaliser, and whether to act at random."""
        return ("actor", *self._normalizers.actor_groups, *self._start.actor_groups)

    @property
    def _normalizers(self) -> Normalizers:
        return Normalizers(
            observation=math.prod(self.environment.observation.shape) * self.settings.normalize_observation
        )

    @property
    def _start(self) -> RandomStart:
        return RandomStart(self.settings.random_steps)

    @property
    def _numbers(self) -> int:
        return math.prod(self.environment.action.shape)

    @property
    def _network(self) -> Network:
        settings, observed = self.settings, self.environment.observation
        sizes = settings.features, settings.hidden
        return Network(settings.network, observed, *sizes, relu=True, channels=settings.channels)

    def _new_critics(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Return orthogonal weights of both critics, by name."""
        return {
            f"{name}{layer}": value
            for name in CRITICS
            for layer, value in self._network.init(1, 1.0, generator, joined=self._numbers).items()
        }

    def post(self, _params: Params, trajectory: Trajectory) -> Batch:
        """Return each row with the observation that followed it, and the action in the range from -1 to 1."""
        followed = transitions_of(trajectory, self.settings.discount)
        return {
            "observation": self._network.packed(trajectory.columns["observation"].flatten(0, 1)),
            "action": from_bounds(self.environment.action, trajectory.columns["action"].flatten(0, 1)),
            "reward": followed.returns.flatten(),
            "following": self._network.packed(followed.following),
            "factor": followed.factors.flatten(),
        }

    def stats(self, batch: Batch) -> dict[str, Tensor]:
        """Return the normaliser's sums over the newest round, and its rows while actions are random at the start."""
        return {**self._normalizers.sums(batch), **self._start.sums(batch)}

    def plan(self, generator: torch.Generator, window: Window) -> Iterator[Draw]:
        """Yield minibatches of the whole window, once it has `warm_up_rows`."""
        if window.rows >= self.settings.warm_up_rows:
            for _ in range(self.settings.minibatches):
                yield window.draw(generator, self.settings.minibatch_rows)

    def after_round(self, state: State, stats: Mapping[str, Tensor]) -> State:
        """Update the normaliser, and count the steps that are acted at random."""
        self._normalizers.update(state, stats)
        self._start.update(state, stats)
        return state

    def _value(self, critics: Mapping[str, Tensor], name: str, observation: Tensor, action: Tensor) -> Tensor:
        """Compute one critic's values, `[B, 1]`."""
        return self._network.over_pairs(part(critics, name), observation, action)


@dataclass(frozen=True, slots=True)
class SAC(VectorAlgorithm):
    """SAC with an automatic temperature, for one environment's spaces."""

    settings: SACSettings

    @property
    def noise(self) -> NoiseSpec:
        """Normal noise displaces the mean, before it is squashed."""
        return NoiseSpec("normal", self.environment.action.shape)

    @property
    def losses(self) -> tuple[Loss, ...]:
        """Critics, then the actor against them, then the temperature against the updated actor."""
        noise = NoiseSpec("normal", (self._numbers,))
        return (
            Loss("critic", "critic", self._critic_loss, noise),
            Loss("actor", "actor", self._actor_loss, noise),
            Loss("temperature", "temperature", self._temperature_loss, noise),
        )

    def init(self, seed: int) -> State:
        """Return orthogonal weights; the targets start as copies of the critics."""
        generator = torch.Generator().manual_seed(seed)
        actor = self._network.init(2 * self._numbers, 0.01, generator)
        critics = self._new_critics(generator)
        params = {
            "critic": ParameterGroup(critics),
            "actor": ParameterGroup(actor),
            "temperature": ParameterGroup({"log": torch.tensor([math.log(self.settings.initial_temperature)])}),
        }
        state = State(
            params=params,
            optimizer={name: init_adam(group.flat) for name, group in params.items()},
            targets={name: value.clone() for name, value in critics.items()},
        )
        self._normalizers.init(state)
        self._start.init(state)
        return state

    def act(
        self, params: Params, carry: Tensor | None, observation: Tensor, noise: Tensor
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """Sample an action, at the start a random one; zero noise gives the squashed mean."""
        inputs = self._normalizers.normalized(params, self._network.prepared(observation))
        squashed, _ = self._sample(params["actor"], inputs, noise.flatten(1))
        squashed = self._start.acted(params, squashed, noise.flatten(1))
        return {"action": within_bounds(self.environment.action, squashed)}, carry

    def update(self, state: State, loss: Loss, gradient: Tensor) -> State:
        """Take a step of Adam."""
        step_adam(state.params[loss.group].flat, gradient, state.optimizer[loss.group], self.settings.learning_rate)
        return state

    def after_minibatch(self, state: State) -> State:
        """Move the targets a small share towards the critics."""
        for name, value in state.params["critic"].items():
            state.targets[name].lerp_(value, self.settings.target_share)
        return state

    def _sample(self, actor: Mapping[str, Tensor], observation: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Sample actions from -1 to 1, `[B, n]`, and compute their log-probabilities `[B]`."""
        return squashed_sample(self._network.step(actor, None, observation)[0], noise, _LOG_STD_RANGE)

    def _temperature(self, params: Params, log_probability: Tensor) -> Tensor:
        """Compute the temperature for each row, `[B]`, as a constant."""
        return repeated_exp(params["temperature"]["log"], len(log_probability))

    def _values(self, critics: Mapping[str, Tensor], observation: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Compute both critics' values, `[B, 1]` each."""
        first, second = (self._value(critics, name, observation, action) for name in CRITICS)
        return first, second

    def _critic_loss(self, params: Params, batch: LossInputs) -> LossResult:
        """Return both critics' squared error against the smaller target value with its entropy term (equation 5)."""
        observation, following = (
            self._normalizers.normalized(params, batch[name]) for name in ("observation", "following")
        )
        with torch.no_grad():
            action, log_probability = self._sample(params["actor"], following, _noise_of(batch))
            target_value = smaller(*self._values(batch.targets, following, action))
            soft_value = target_value - self._temperature(params, log_probability) * log_probability
            target = batch["reward"] + batch["factor"] * soft_value
        values = self._values(params["critic"], observation, batch["action"])
        first, second = (value_error(value, target) for value in values)
        outputs = {"critic_loss": first.detach() + second.detach(), "value": values[0].detach().squeeze(-1)}
        return batch.weighted_mean((first, 1.0), (second, 1.0)), outputs

    def _actor_loss(self, params: Params, batch: LossInputs) -> LossResult:
        """Return minus the smaller value and the entropy (equation 9)."""
        observation = self._normalizers.normalized(params, batch["observation"])
        action, log_probability = self._sample(params["actor"], observation, _noise_of(batch))
        value = smaller(*self._values(params["critic"], observation, action))
        temperature = self._temperature(params, log_probability)
        loss = batch.weighted_mean((log_probability, temperature), (value, -1.0))
        return loss, {"entropy": -log_probability.detach()}

    def _temperature_loss(self, params: Params, batch: LossInputs) -> LossResult:
        """Raise the temperature where the entropy is below its target (equation 18, by the logarithm as is usual)."""
        target_entropy = self.settings.target_entropy
        wanted = -float(self._numbers) if target_entropy is None else target_entropy
        with torch.no_grad():
            observation = self._normalizers.normalized(params, batch["observation"])
            _, log_probability = self._sample(params["actor"], observation, _noise_of(batch))
            missing = -(log_probability + wanted)
        loss = multiplied(params["temperature"]["log"], missing)
        return batch.mean(loss), {"temperature": self._temperature(params, log_probability)}


def _noise_of(batch: LossInputs) -> Tensor:
    if batch.noise is None:
        raise TypeError("the losses of SAC need noise, as they declare")
    return batch.noise
