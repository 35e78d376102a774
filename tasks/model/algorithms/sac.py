"""Soft actor-critic (Haarnoja et al. 2018, arXiv 1812.05905) for vectors of actions within bounds.

It has twin critics, a normal distribution squashed by tanh, and a temperature that keeps the entropy near a target. All
actions but the stored ones are in the range from -1 to 1, and log-probabilities are of these. Actor and critics have
an encoder of images each.

With a recurrent network they have a memory each, and rows are sequences, as R2D2 replays them (Kapturowski et al. 2019,
openreview.net/forum?id=r1lyTjAqYX): they begin with the memories that were stored when they were acted, and
`burn_in_steps` steps before them renew these.

The window keeps raw observations: with `normalize_observation`, older rows are normalised by the newest statistics.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from penstock.tasks.model.algorithms.contract import Algorithm, Loss, WindowSpec
from penstock.tasks.model.nn.layers import part
from penstock.tasks.model.nn.network import Network, rowwise
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
from penstock.tasks.setup.config.offline import TD3BCSettings
from penstock.tasks.specs import EnvironmentSpec, NoiseSpec, ParameterGroup, Spec, State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from penstock.tasks.model.algorithms.contract import Draw, Window
    from penstock.tasks.specs import Batch, LossInputs, LossResult, Params, Trajectory

CRITICS = ("first/", "second/")
"""Prefixes of the twin critics in the group `critic` and among the targets."""
_NETWORKS = 1 + len(CRITICS)
_LOG_STD_RANGE = (-20.0, 2.0)

Seen: TypeAlias = "Callable[[Mapping[str, Tensor], int], Tensor]"
"""Computes what a network's perceptron gets of each step, `[B, width]`, by the network's parameters and its number: the
actor's is 0, and the critics' are 1 and 2."""


@dataclass(frozen=True, slots=True)
class VectorAlgorithm(Algorithm):
    """The parts that SAC, TD3 and TD3+BC have in common: normaliser, random start, twin critics and rows."""

    settings: SACSettings | TD3Settings | TD3BCSettings
    environment: EnvironmentSpec

    @property
    def rows(self) -> dict[str, Spec]:
        """The action, as the environment takes it, and of recurrent networks the `memory` before the step: one each."""
        memory = {"memory": Spec("float32", (_NETWORKS, self.settings.features))} if self._network.recurrent else {}
        return {"action": self.environment.action.spec, **memory}

    @property
    def actor_groups(self) -> tuple[str, ...]:
        """The actor, the critics if actors carry their memory, the normaliser, and whether to act at random."""
        critics = ("critic",) if self._network.recurrent else ()
        return ("actor", *critics, *self._normalizers.actor_groups, *self._start.actor_groups)

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
        sizes, channels, cells = (settings.features, settings.hidden), settings.channels, settings.cells
        relu = settings.activation == "relu"
        return Network(settings.network, observed, *sizes, relu=relu, channels=channels, cells=cells)

    def _new_critics(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Return orthogonal weights of both critics, by name."""
        return {
            f"{name}{layer}": value
            for name in CRITICS
            for layer, value in self._network.init(1, 1.0, generator, joined=self._numbers).items()
        }

    def initial_carry(self, envs: int) -> Tensor | None:
        """Return empty memories `[envs, networks, features]`, of the actor and both critics; None without any."""
        return torch.zeros(envs, _NETWORKS, self.settings.features) if self._network.recurrent else None

    def _acting(self, params: Params, carry: Tensor | None, observation: Tensor) -> tuple[Tensor, Tensor | None]:
        """Compute what the actor's perceptron gets of observations `[B, ...]`, and the next memories."""
        network = self._network
        inputs = self._normalizers.normalized(params, network.prepared(observation))
        if carry is None:
            return network.encoded(params["actor"], inputs), None
        weights = params["actor"], *(part(params["critic"], name) for name in CRITICS)
        memories = [network.remembered(each, carry[:, number], inputs) for number, each in enumerate(weights)]
        return memories[0], torch.stack(memories, 1)

    def _stored(self, squashed: Tensor, carry: Tensor | None) -> dict[str, Tensor]:
        """Return the columns of a step, of an action from -1 to 1."""
        action = within_bounds(self.environment.action, squashed)
        return {"action": action} if carry is None else {"action": action, "memory": carry}

    def post(self, _params: Params, trajectory: Trajectory) -> Batch:
        """Return each row with the observation that followed it, and the action in the range from -1 to 1.

        With memories a row is a sequence (`Network.replayed_rows`).
        """
        settings, columns = self.settings, trajectory.columns
        followed = transitions_of(trajectory, settings.discount, reward_scale=settings.reward_scale)
        observation = self._network.packed(columns["observation"].flatten(0, 1))
        learned = {
            "action": from_bounds(self.environment.action, columns["action"].flatten(0, 1)),
            "reward": followed.returns.flatten(),
            "following": self._network.packed(followed.following),
            "factor": followed.factors.flatten(),
        }
        if not self._network.recurrent:
            return {"observation": observation, **learned}
        by_step = {name: column.unflatten(0, columns["reward"].shape) for name, column in learned.items()}
        cut = settings.row_steps, settings.burn_in_steps
        return self._network.replayed_rows(columns, observation, by_step, *cut, columns["memory"])

    def stats(self, batch: Batch) -> dict[str, Tensor]:
        """Return the normaliser's sums over the newest round, and its steps while actions are random at the start."""
        if self._network.recurrent:
            own = batch["observation"][:, self.settings.burn_in_steps :]
            batch = {"observation": own.flatten(0, 1), "action": batch["action"].flatten(0, 1)}
        return {**self._normalizers.sums(batch), **self._start.sums(batch)}

    def after_round(self, state: State, stats: Mapping[str, Tensor]) -> State:
        """Update the normaliser, and count the steps that are acted at random."""
        self._normalizers.update(state, stats)
        self._start.update(state, stats)
        return state

    def _now(self, params: Params, batch: LossInputs) -> Seen:
        """Return what networks see at each step of the rows."""
        network, observation = self._network, self._normalizers.normalized(params, batch["observation"])
        if not network.recurrent:
            return lambda weights, _: network.encoded(weights, observation)

        def of_sequences(weights: Mapping[str, Tensor], number: int) -> Tensor:
            memory, burn_in_steps = batch["memory"][:, number], self.settings.burn_in_steps
            return network.replayed_memories(weights, batch, observation, memory, burn_in_steps).flatten(0, 1)

        return of_sequences

    def _after(self, params: Params, batch: LossInputs) -> Seen:
        """Return what networks see after each step of the rows."""
        network, following = self._network, self._normalizers.normalized(params, batch["following"])
        if not network.recurrent:
            return lambda weights, _: network.encoded(weights, following)
        now, observation = self._now(params, batch), self._steps(following)
        return lambda weights, number: network.remembered(weights, now(weights, number), observation)

    def _value(
        self, critics: Mapping[str, Tensor], name: str, seen: Seen, action: Tensor, *, trained: bool = False
    ) -> Tensor:
        """Compute one critic's values of each step, `[B, 1]`.

        A gradient reaches what is before the perceptron only if it is `trained`.
        """
        weights = part(critics, name)
        with torch.set_grad_enabled(trained and torch.is_grad_enabled()):
            encoded = seen(weights, 1 + CRITICS.index(name))
        return self._network.over_encoded(weights, encoded, action)

    @property
    def _loss_noise(self) -> NoiseSpec:
        """Return the random numbers of a training row."""
        steps = (self.settings.row_steps,) if self._network.recurrent else ()
        return NoiseSpec("normal", (*steps, self._numbers))

    def _noise_of(self, batch: LossInputs) -> Tensor:
        """Return a loss's random numbers by step, `[B, n]`."""
        if batch.noise is None:
            raise TypeError(f"the loss of {type(self).__name__} needs noise, as it declares")
        return self._steps(batch.noise)

    def _steps(self, column: Tensor) -> Tensor:
        """Return a column of training rows by step, `[B, ...]`: with memories of all steps of all sequences."""
        return column.flatten(0, 1) if self._network.recurrent else column

    def _rows(self, values: Tensor) -> Tensor:
        """Return values of steps `[B, ...]` by row: with memories `[rows, steps, ...]`."""
        return values.unflatten(0, (-1, self.settings.row_steps)) if self._network.recurrent else values

    def _mean(self, batch: LossInputs, *terms: tuple[Tensor, float | Tensor]) -> Tensor:
        """Return `weighted_mean` of terms whose values and weights are by step."""
        return batch.weighted_mean(
            *(
                (self._rows(values), self._rows(weight) if isinstance(weight, Tensor) else weight)
                for values, weight in terms
            )
        )

    def _outputs(self, outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return diagnostics of steps `[B]` as those of rows."""
        return {name: rowwise(self._rows(values)) for name, values in outputs.items()}


@dataclass(frozen=True, slots=True)
class WindowAlgorithm(VectorAlgorithm):
    """The parts that SAC and TD3 alone have in common: rows are drawn from a window of the newest rounds."""

    settings: SACSettings | TD3Settings

    @property
    def window(self) -> WindowSpec:
        """The newest rounds, drawn uniformly."""
        row_steps = self.settings.row_steps
        return WindowSpec(self.settings.window_rows // row_steps, row_steps=row_steps)

    def plan(self, generator: torch.Generator, window: Window) -> Iterator[Draw]:
        """Yield minibatches of the whole window, once it has `warm_up_rows`."""
        if window.rows >= self.settings.training_rows(self.settings.warm_up_rows):
            for _ in range(self.settings.minibatches):
                yield window.draw(generator, self.settings.minibatch_rows)


@dataclass(frozen=True, slots=True)
class SAC(WindowAlgorithm):
    """SAC with an automatic temperature, for one environment's spaces."""

    settings: SACSettings

    @property
    def noise(self) -> NoiseSpec:
        """Normal noise displaces the mean, before it is squashed."""
        return NoiseSpec("normal", self.environment.action.shape)

    @property
    def losses(self) -> tuple[Loss, ...]:
        """Critics, then the actor against them, then the temperature against the updated actor."""
        noise = self._loss_noise
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
        encoded, memory = self._acting(params, carry, observation)
        squashed, _ = self._sample(params["actor"], encoded, noise.flatten(1))
        return self._stored(self._start.acted(params, squashed, noise.flatten(1)), carry), memory

    def update(self, state: State, loss: Loss, gradient: Tensor) -> State:
        """Take a step of Adam."""
        step_adam(state.params[loss.group].flat, gradient, state.optimizer[loss.group], self.settings.learning_rate)
        return state

    def after_minibatch(self, state: State) -> State:
        """Move the targets a small share towards the critics."""
        for name, value in state.params["critic"].items():
            state.targets[name].lerp_(value, self.settings.target_share)
        return state

    def _sample(self, actor: Mapping[str, Tensor], encoded: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Sample actions from -1 to 1, `[B, n]`, and compute their log-probabilities `[B]`."""
        return squashed_sample(self._network.over_encoded(actor, encoded), noise, _LOG_STD_RANGE)

    def _temperature(self, params: Params, log_probability: Tensor) -> Tensor:
        """Compute the temperature for each step, `[B]`, as a constant."""
        return repeated_exp(params["temperature"]["log"], len(log_probability))

    def _critic_loss(self, params: Params, batch: LossInputs) -> LossResult:
        """Return both critics' squared error against the smaller target value with its entropy term (equation 5)."""
        now, after, noise = self._now(params, batch), self._after(params, batch), self._noise_of(batch)
        reward, factor, acted = (self._steps(batch[name]) for name in ("reward", "factor", "action"))
        with torch.no_grad():
            action, log_probability = self._sample(params["actor"], after(params["actor"], 0), noise)
            target_value = smaller(*(self._value(batch.targets, name, after, action) for name in CRITICS))
            soft_value = target_value - self._temperature(params, log_probability) * log_probability
            target = reward + factor * soft_value
        values = [self._value(params["critic"], name, now, acted, trained=True) for name in CRITICS]
        first, second = (value_error(value, target) for value in values)
        outputs = {"critic_loss": first.detach() + second.detach(), "value": values[0].detach().squeeze(-1)}
        return self._mean(batch, (first, 1.0), (second, 1.0)), self._outputs(outputs)

    def _actor_loss(self, params: Params, batch: LossInputs) -> LossResult:
        """Return minus the smaller value and the entropy (equation 9)."""
        now = self._now(params, batch)
        action, log_probability = self._sample(params["actor"], now(params["actor"], 0), self._noise_of(batch))
        value = smaller(*(self._value(params["critic"], name, now, action) for name in CRITICS))
        temperature = self._temperature(params, log_probability)
        loss = self._mean(batch, (log_probability, temperature), (value, -1.0))
        return loss, self._outputs({"entropy": -log_probability.detach()})

    def _temperature_loss(self, params: Params, batch: LossInputs) -> LossResult:
        """Raise the temperature where the entropy is below its target (equation 18, by the logarithm as is usual)."""
        target_entropy = self.settings.target_entropy
        wanted = -float(self._numbers) if target_entropy is None else target_entropy
        with torch.no_grad():
            encoded = self._now(params, batch)(params["actor"], 0)
            _, log_probability = self._sample(params["actor"], encoded, self._noise_of(batch))
            missing = -(log_probability + wanted)
        loss = multiplied(params["temperature"]["log"], missing)
        outputs = {"temperature": self._temperature(params, log_probability)}
        return self._mean(batch, (loss, 1.0)), self._outputs(outputs)
