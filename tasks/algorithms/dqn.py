"""Deep Q-learning (Mnih et al. 2015) for discrete actions: double, dueling, prioritised, over n steps, as wanted.

Double: van Hasselt et al. 2016, arXiv 1509.06461. Dueling: Wang et al. 2016, arXiv 1511.06581. Prioritised replay:
Schaul et al. 2016, arXiv 1511.05952. Rewards over n steps are not corrected for the policy that acted, as in Rainbow
(Hessel et al. 2018, arXiv 1710.02298); they end with a round, so rounds should be much longer.

Acting is epsilon-greedy. Epsilon is a parameter group of its own that no loss is for, so actors get it with each
snapshot; it falls with the number of minibatches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tasks.algorithm import Loss, WindowSpec
from tasks.distributions import best, require_choice
from tasks.networks import init_mlp, mlp, part
from tasks.optimizers import annealed, clip_norm, init_adam, step_adam
from tasks.returns import transitions
from tasks.specs import EnvironmentSpec, NoiseSpec, ParameterGroup, Spec, State

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tasks.algorithm import Draw, LossResult, Params, Window
    from tasks.specs import Batch, Trajectory

_TARGET = "value/"
_UPDATES = "updates"


@dataclass(frozen=True, slots=True, kw_only=True)
class DQN:
    """Q-learning with a target network, for one environment's spaces."""

    environment: EnvironmentSpec
    hidden: tuple[int, ...] = (120, 84)
    learning_rate: float = 2.5e-4
    final_learning_rate: float = 0.0
    """Reached linearly after `anneal_rounds` rounds of learning and kept from then on."""
    anneal_rounds: int = 0
    """0: the learning rate stays as it is. Rounds of warm-up do not count."""
    discount: float = 0.99
    window_rows: int = 10_000
    warm_up_rows: int = 1_000
    """Learning begins when the window has so many."""
    minibatch_rows: int = 128
    minibatches: int = 10
    """Minibatches a round."""
    target_minibatches: int = 50
    """The target network becomes the network after so many."""
    return_steps: int = 1
    double: bool = True
    dueling: bool = True
    huber: bool = False
    """Errors beyond 1 count linearly. Where values are far larger than 1, the few rows at which episodes end then count
    too little to hold values down: on CartPole they grow without end."""
    priority_exponent: float = 0.0
    priority_correction: float = 0.4
    first_epsilon: float = 1.0
    last_epsilon: float = 0.05
    epsilon_minibatches: int = 25_000
    """Epsilon falls linearly over so many."""
    gradient_norm: float = 10.0

    @property
    def window(self) -> WindowSpec:
        """The newest rounds."""
        return WindowSpec(self.window_rows, self.priority_exponent)

    @property
    def rows(self) -> dict[str, Spec]:
        """The choice."""
        return {"action": self.environment.action.spec}

    @property
    def noise(self) -> NoiseSpec:
        """Of each row, whether to explore, and then a number for each choice, of which the largest wins."""
        return NoiseSpec("uniform", (1 + self.environment.action.n,))

    @property
    def losses(self) -> tuple[Loss, ...]:
        """One."""
        return (Loss("value", "value", self._loss),)

    @property
    def actor_groups(self) -> tuple[str, ...]:
        """Values, and how often not to follow them."""
        return ("value", "exploration")

    def init(self, seed: int) -> State:
        """Orthogonal weights; the target network is the network."""
        generator = torch.Generator().manual_seed(seed)
        inputs, choices = math.prod(self.environment.seen.shape), self.environment.action.n
        network = init_mlp((inputs, *self.hidden, choices + self.dueling), 1.0, generator)
        params = {
            "value": ParameterGroup(network),
            "exploration": ParameterGroup({"epsilon": torch.tensor([self.first_epsilon])}),
        }
        targets = {f"{_TARGET}{name}": value.clone() for name, value in network.items()}
        return State(
            params=params,
            optimizer={"value": init_adam(params["value"].flat)},
            targets={**targets, _UPDATES: torch.zeros((), dtype=torch.int64)},
        )

    def initial_carry(self, envs: int) -> None:  # noqa: ARG002
        """A perceptron has no memory."""
        return

    def act(
        self, params: Params, carry: Tensor | None, observation: Tensor, noise: Tensor
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """Any choice with the chance epsilon, otherwise the best one; never the former without noise."""
        shown, allowed = self.environment.split(observation)
        require_choice(allowed)
        explores = noise[:, 0] > 1.0 - params["exploration"]["epsilon"]
        greedy = best(self._values(params["value"], _features(shown)), allowed)
        return {"action": torch.where(explores, best(noise[:, 1:], allowed), greedy)}, carry

    def post(self, params: Params, trajectory: Trajectory) -> Batch:  # noqa: ARG002
        """Each row with what followed it after `return_steps`."""
        columns = trajectory.columns
        followed = transitions(
            columns["reward"],
            columns["observation"],
            trajectory.bootstrap_rows,
            trajectory.bootstrap_observation,
            columns["terminated"],
            self.discount,
            self.return_steps,
        )
        following, allowed = self.environment.split(followed.following)
        return {
            "observation": _features(self.environment.split(columns["observation"].flatten(0, 1))[0]),
            "action": columns["action"].flatten(),
            "return": followed.returns.flatten(),
            "following": _features(following),
            "factor": followed.factors.flatten(),
            **({} if allowed is None else {"allowed": allowed}),
        }

    def stats(self, batch: Batch) -> dict[str, Tensor]:  # noqa: ARG002
        """Nothing global."""
        return {}

    def plan(self, generator: torch.Generator, window: Window) -> Iterator[Draw]:
        """Minibatches of the whole window, once it is filled."""
        if window.rows >= self.warm_up_rows:
            for _ in range(self.minibatches):
                yield window.draw(generator, self.minibatch_rows, self.priority_correction)

    def update(self, state: State, loss: Loss, gradient: Tensor) -> State:
        """Clip by the norm, then Adam."""
        optimizer = state.optimizer[loss.group]
        over_steps = self.anneal_rounds * self.minibatches
        rate = annealed(self.learning_rate, self.final_learning_rate, optimizer, over_steps)
        step_adam(state.params[loss.group].flat, clip_norm(gradient, self.gradient_norm), optimizer, rate)
        return state

    def after_minibatch(self, state: State) -> State:
        """Count; renew the target network when it is due; explore less."""
        state.targets[_UPDATES] += 1
        updates = int(state.targets[_UPDATES])
        if updates % self.target_minibatches == 0:
            for name, value in state.params["value"].items():
                state.targets[f"{_TARGET}{name}"].copy_(value)
        fraction = min(1.0, updates / self.epsilon_minibatches)
        epsilon = self.first_epsilon + fraction * (self.last_epsilon - self.first_epsilon)
        state.params["exploration"].flat.fill_(epsilon)
        return state

    def _values(self, params: Mapping[str, Tensor], features: Tensor) -> Tensor:
        """Of every choice, `[B, n]`; a dueling network's first output is the state's value."""
        output = mlp(params, features, torch.relu)
        if not self.dueling:
            return output
        advantage = output[:, 1:]
        return output[:, :1] + advantage - advantage.mean(-1, keepdim=True)

    def _loss(
        self,
        params: Params,
        targets: Mapping[str, Tensor],
        rows: Batch,
        noise: Tensor | None,  # noqa: ARG002
        stats: Mapping[str, float],  # noqa: ARG002
        count: int,
    ) -> LossResult:
        """Half the squared temporal-difference error, or its Huber loss; its size is the row's priority."""
        values = self._values(params["value"], rows["observation"])
        value = values.gather(-1, rows["action"].unsqueeze(-1)).squeeze(-1)
        with torch.no_grad():
            following = self._values(part(targets, _TARGET), rows["following"])
            judged = self._values(params["value"], rows["following"]) if self.double else following
            choice = best(judged, rows.get("allowed")).unsqueeze(-1)
            target = rows["return"] + rows["factor"] * following.gather(-1, choice).squeeze(-1)
        error = value - target
        half_square = torch.nn.functional.huber_loss(value, target, reduction="none") if self.huber else 0.5 * error**2
        loss = rows["weight"] * half_square
        with torch.no_grad():
            # A row without error would never be drawn again.
            outputs = {"priority": error.abs() + 1e-6, "value": value.detach(), "value_loss": loss.detach()}
        return loss.sum() / count, outputs


def _features(observation: Tensor) -> Tensor:
    """`[rows, ...]` of any number type as float32 `[rows, inputs]`."""
    return observation.flatten(1).float()
