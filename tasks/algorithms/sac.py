"""Soft actor-critic (Haarnoja et al. 2018, arXiv 1812.05905) for vectors of actions within bounds.

Twin critics, a normal distribution squashed by tanh, and a temperature that keeps the entropy near a target. Everything
but the stored action is in the range from -1 to 1; log-probabilities too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tasks.algorithm import Loss, WindowSpec
from tasks.networks import init_mlp, mlp, part
from tasks.normalizers import Normalizers
from tasks.optimizers import init_adam, step_adam
from tasks.returns import transitions
from tasks.specs import EnvironmentSpec, NoiseSpec, ParameterGroup, Spec, State

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tasks.algorithm import Draw, LossResult, Params, Window
    from tasks.specs import Batch, Trajectory

_CRITICS = ("first/", "second/")
_LOG_STD_RANGE = (-20.0, 2.0)
_LOG_2PI = math.log(2.0 * math.pi)


@dataclass(frozen=True, slots=True, kw_only=True)
class SAC:
    """SAC with an automatic temperature, for one environment's spaces."""

    environment: EnvironmentSpec
    hidden: tuple[int, ...] = (256, 256)
    learning_rate: float = 3e-4
    discount: float = 0.99
    window_rows: int = 1_000_000
    warm_up_rows: int = 1_000
    """Learning begins when the window has so many."""
    minibatch_rows: int = 256
    minibatches: int = 64
    """Minibatches a round."""
    target_share: float = 0.005
    """Of the critics, that moves into their targets after each minibatch."""
    initial_temperature: float = 1.0
    target_entropy: float | None = None
    """In nats; None is one less for every number of an action."""
    normalize_observation: bool = False
    """By the running mean and deviation of each number over all rounds so far, limited to 10 deviations. The window
    keeps raw observations, so older rows are seen through the newest numbers too."""

    @property
    def window(self) -> WindowSpec:
        """The newest rounds, drawn uniformly."""
        return WindowSpec(self.window_rows)

    @property
    def rows(self) -> dict[str, Spec]:
        """The action as the environment takes it."""
        return {"action": self.environment.action.spec}

    @property
    def noise(self) -> NoiseSpec:
        """Displaces the mean, before it is squashed."""
        return NoiseSpec("normal", self.environment.action.shape)

    @property
    def losses(self) -> tuple[Loss, ...]:
        """Critics, then the actor against them, then the temperature by what the actor became."""
        noise = NoiseSpec("normal", (self._numbers,))
        return (
            Loss("critic", "critic", self._critic_loss, noise),
            Loss("actor", "actor", self._actor_loss, noise),
            Loss("temperature", "temperature", self._temperature_loss, noise),
        )

    @property
    def actor_groups(self) -> tuple[str, ...]:
        """Actors need no critic, but what they see observations through."""
        return ("actor", *self._normalizers.actor_groups)

    @property
    def _normalizers(self) -> Normalizers:
        return Normalizers(observation=math.prod(self.environment.observation.shape) * self.normalize_observation)

    @property
    def _numbers(self) -> int:
        return math.prod(self.environment.action.shape)

    def init(self, seed: int) -> State:
        """Orthogonal weights; the targets are the critics."""
        generator = torch.Generator().manual_seed(seed)
        inputs = math.prod(self.environment.observation.shape)
        actor = init_mlp((inputs, *self.hidden, 2 * self._numbers), 0.01, generator)
        critics = {
            f"{name}{layer}": value
            for name in _CRITICS
            for layer, value in init_mlp((inputs + self._numbers, *self.hidden, 1), 1.0, generator).items()
        }
        params = {
            "critic": ParameterGroup(critics),
            "actor": ParameterGroup(actor),
            "temperature": ParameterGroup({"log": torch.tensor([math.log(self.initial_temperature)])}),
        }
        state = State(
            params=params,
            optimizer={name: init_adam(group.flat) for name, group in params.items()},
            targets={name: value.clone() for name, value in critics.items()},
        )
        self._normalizers.init(state)
        return state

    def initial_carry(self, envs: int) -> None:  # noqa: ARG002
        """A perceptron has no memory."""
        return

    def act(
        self, params: Params, carry: Tensor | None, observation: Tensor, noise: Tensor
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """Sample; without noise, the squashed mean."""
        seen = self._normalizers.seen(params, observation.flatten(1).float())
        squashed, _ = self._sample(params["actor"], seen, noise.flatten(1))
        low, high = self._bounds(squashed.device)
        action = low + 0.5 * (squashed + 1.0) * (high - low)
        return {"action": action.view(-1, *self.environment.action.shape)}, carry

    def post(self, params: Params, trajectory: Trajectory) -> Batch:  # noqa: ARG002
        """Each row with what followed it, the action as it was squashed."""
        columns = trajectory.columns
        followed = transitions(
            columns["reward"],
            columns["observation"],
            trajectory.bootstrap_rows,
            trajectory.bootstrap_observation,
            columns["terminated"],
            self.discount,
        )
        action = columns["action"].flatten(0, 1).flatten(1)
        low, high = self._bounds(action.device)
        return {
            "observation": columns["observation"].flatten(0, 1).flatten(1).float(),
            "action": 2.0 * (action - low) / (high - low) - 1.0,
            "reward": followed.returns.flatten(),
            "following": followed.following.flatten(1).float(),
            "factor": followed.factors.flatten(),
        }

    def stats(self, batch: Batch) -> dict[str, Tensor]:
        """What the normaliser learns of the newest round, if there is one."""
        return self._normalizers.sums(batch)

    def plan(self, generator: torch.Generator, window: Window) -> Iterator[Draw]:
        """Minibatches of the whole window, once it is filled."""
        if window.rows >= self.warm_up_rows:
            for _ in range(self.minibatches):
                yield window.draw(generator, self.minibatch_rows)

    def update(self, state: State, loss: Loss, gradient: Tensor) -> State:
        """Adam."""
        step_adam(state.params[loss.group].flat, gradient, state.optimizer[loss.group], self.learning_rate)
        return state

    def after_minibatch(self, state: State) -> State:
        """Targets follow the critics slowly."""
        for name, value in state.params["critic"].items():
            state.targets[name].lerp_(value, self.target_share)
        return state

    def after_round(self, state: State, stats: Mapping[str, Tensor]) -> State:
        """The normaliser takes the round in; without it, nothing to do."""
        self._normalizers.update(state, stats)
        return state

    def _bounds(self, device: torch.device) -> tuple[Tensor, Tensor]:
        action = self.environment.action
        return torch.tensor(action.low, device=device), torch.tensor(action.high, device=device)

    def _sample(self, params: Mapping[str, Tensor], features: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions from -1 to 1, `[B, n]`, and their log-probabilities `[B]`."""
        mean, log_std = mlp(params, features, torch.relu).chunk(2, -1)
        log_std = log_std.clamp(*_LOG_STD_RANGE)
        free = torch.addcmul(mean, noise, log_std.exp())
        # log(1 - tanh(u) ** 2), as it can be computed where tanh(u) rounds to 1.
        slope = 2.0 * (math.log(2.0) - free - torch.nn.functional.softplus(-2.0 * free))
        log_probability = (-0.5 * noise.square() - log_std - 0.5 * _LOG_2PI - slope).sum(-1)
        return free.tanh(), log_probability

    def _value(self, critics: Mapping[str, Tensor], observation: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """What both critics say, `[B]` each."""
        inputs = torch.cat((observation, action), -1)
        first, second = (mlp(part(critics, name), inputs, torch.relu).squeeze(-1) for name in _CRITICS)
        return first, second

    def _critic_loss(
        self,
        params: Params,
        targets: Mapping[str, Tensor],
        rows: Batch,
        noise: Tensor | None,
        stats: Mapping[str, float],  # noqa: ARG002
        count: int,
    ) -> LossResult:
        """Squared error of both against the smaller target value less what the entropy is worth (equation 5)."""
        seen, after = (self._normalizers.seen(params, rows[name]) for name in ("observation", "following"))
        with torch.no_grad():
            action, log_probability = self._sample(params["actor"], after, _given(noise))
            following = torch.minimum(*self._value(targets, after, action))
            soft = following - params["temperature"]["log"].exp() * log_probability
            target = rows["reward"] + rows["factor"] * soft
        first, second = self._value(params["critic"], seen, rows["action"])
        square = 0.5 * ((first - target).square() + (second - target).square())
        return square.sum() / count, {"critic_loss": square.detach(), "value": first.detach()}

    def _actor_loss(
        self,
        params: Params,
        targets: Mapping[str, Tensor],  # noqa: ARG002
        rows: Batch,
        noise: Tensor | None,
        stats: Mapping[str, float],  # noqa: ARG002
        count: int,
    ) -> LossResult:
        """The smaller value and the entropy, both as large as can be (equation 9)."""
        seen = self._normalizers.seen(params, rows["observation"])
        action, log_probability = self._sample(params["actor"], seen, _given(noise))
        value = torch.minimum(*self._value(params["critic"], seen, action))
        loss = params["temperature"]["log"].detach().exp() * log_probability - value
        return loss.sum() / count, {"entropy": -log_probability.detach()}

    def _temperature_loss(
        self,
        params: Params,
        targets: Mapping[str, Tensor],  # noqa: ARG002
        rows: Batch,
        noise: Tensor | None,
        stats: Mapping[str, float],  # noqa: ARG002
        count: int,
    ) -> LossResult:
        """Higher where the entropy is below its target (equation 18, by the logarithm as is usual)."""
        wanted = -float(self._numbers) if self.target_entropy is None else self.target_entropy
        with torch.no_grad():
            seen = self._normalizers.seen(params, rows["observation"])
            _, log_probability = self._sample(params["actor"], seen, _given(noise))
        log_temperature = params["temperature"]["log"]
        loss = -log_temperature * (log_probability + wanted)
        temperature = log_temperature.detach().exp().expand_as(log_probability)
        return loss.sum() / count, {"temperature": temperature}


def _given(noise: Tensor | None) -> Tensor:
    if noise is None:
        raise TypeError("the losses of SAC need noise, as they declare")
    return noise
