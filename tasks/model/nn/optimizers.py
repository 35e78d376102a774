"""Optimizer steps on parameter vectors, and schedules: learning rates, entropy bonuses, random starts, corrections.

Pure torch; an algorithm may import this.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.optim.adam import adam

from penstock.tasks.model.nn import kernels
from penstock.tasks.specs import ParameterGroup

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.tasks.specs import Batch, Params, State

ROUNDS = "rounds"
"""The counter of learned rounds in `State.targets`, of algorithms with a schedule that needs it."""
_GROUP = "exploration"
_STEPS = f"{_GROUP}/steps"
_DECAYS = (0.9, 0.999)
"""Decays of the two moments, as in the paper."""


def init_adam(params: Tensor) -> dict[str, Tensor]:
    """Return Adam's state for a parameter vector `[P]`: zero moments `[P]` and a float32 step counter."""
    return {
        "mean": torch.zeros_like(params),
        "square": torch.zeros_like(params),
        "step": torch.zeros((), dtype=torch.float32),
    }


def clip_norm(gradient: Tensor, limit: float) -> Tensor:
    """Scale the gradient `[P]` down if its Euclidean norm exceeds `limit`; otherwise return it, maybe itself."""
    norm = kernels.norm(gradient)
    if norm is not None:
        return gradient if norm + 1e-6 <= limit else gradient * (limit / (norm + 1e-6))
    return gradient * torch.clamp(limit / (torch.linalg.vector_norm(gradient) + 1e-6), max=1.0)


def annealed(first: float, last: float, state: Mapping[str, Tensor], over_steps: int) -> float | Tensor:
    """Return Adam's next learning rate: linear from `first` to `last` over some steps, then `last`; over 0 `first`.

    On a device it is a float32 tensor `[]` there, so that nothing waits for the counter of steps.
    """
    if not over_steps:
        return first
    if not state["step"].is_cpu:
        return first + (state["step"] / over_steps).clamp(max=1.0) * (last - first)
    return first + min(1.0, float(state["step"]) / over_steps) * (last - first)


def cosine_annealed(first: float, state: Mapping[str, Tensor], over_steps: int) -> float | Tensor:
    """Return Adam's next learning rate: from `first` to 0 by half a cosine, then 0; over 0 steps `first`.

    It is equation 5 of Loshchilov and Hutter 2017 (arXiv 1608.03983) without restarts. On a device it is as `annealed`.
    """
    if not over_steps:
        return first
    if not state["step"].is_cpu:
        return (0.5 * first) * (1.0 + (math.pi * (state["step"] / over_steps).clamp(max=1.0)).cos())
    return 0.5 * first * (1.0 + math.cos(math.pi * min(1.0, float(state["step"]) / over_steps)))


def step_adam(
    params: Tensor, gradient: Tensor, state: Mapping[str, Tensor], learning_rate: float | Tensor, epsilon: float = 1e-5
) -> None:
    """Take one step of Adam (Kingma and Ba 2015, arXiv 1412.6980, algorithm 1), in place on `params` and `state`.

    A rate that is a tensor is on their device. A CUDA graph can contain the step: its counter is on the device too.
    """
    if not isinstance(learning_rate, Tensor) and kernels.adam(params, gradient, state, learning_rate, _DECAYS, epsilon):
        return
    adam(
        [params],
        [gradient],
        [state["mean"]],
        [state["square"]],
        [],
        [state["step"]],
        foreach=False,
        capturable=False,
        differentiable=False,
        fused=True,
        amsgrad=False,
        beta1=_DECAYS[0],
        beta2=_DECAYS[1],
        lr=learning_rate,
        weight_decay=0.0,
        eps=epsilon,
        maximize=False,
    )


@dataclass(frozen=True, slots=True)
class EntropyBonus:
    """The weight of an entropy bonus, which may change linearly from round to round; holds no state itself.

    The rounds are counted in `State.targets`, which losses read. The weight is the same throughout a round.
    """

    first: float
    last: float | None
    """The weight after `over_rounds` rounds; None if it does not change."""
    over_rounds: int

    def init(self, state: State) -> None:
        """Add the counter to a fresh state, if the weight changes."""
        if self.last is not None:
            init_rounds(state)

    def weight(self, targets: Mapping[str, Tensor]) -> float | Tensor:
        """Return the round's weight; where the targets are on a device, a float32 tensor `[]` there."""
        if self.last is None:
            return self.first
        return annealed(self.first, self.last, {"step": targets[ROUNDS]}, self.over_rounds)


def init_rounds(state: State) -> None:
    """Add a counter of learned rounds to a fresh state."""
    # A whole number: a run that starts with another one's parameters counts its own rounds.
    state.targets[ROUNDS] = torch.zeros((), dtype=torch.int64)


def count_round(state: State) -> None:
    """Count a round in place, if the state has a counter; for `Algorithm.after_round`."""
    if ROUNDS in state.targets:
        state.targets[ROUNDS] += 1


@dataclass(frozen=True, slots=True)
class RandomStart:
    """Vectors of actions are uniform until the run has taken so many steps; holds no state itself.

    The steps are counted in `State.targets`, once a round, by the sums of `stats`. Whether actors still act at random
    is a parameter group that no loss trains, so they get it with each snapshot: all steps of one version are of one
    kind, on any actor.
    """

    steps: int
    """Steps of all environments; the round in which they are reached is random to its end. 0 never acts at random."""

    @property
    def actor_groups(self) -> tuple[str, ...]:
        """The parameter groups that acting needs."""
        return (_GROUP,) if self.steps else ()

    def init(self, state: State) -> None:
        """Add the counter to a fresh state."""
        if self.steps:
            state.params[_GROUP] = ParameterGroup({"random": torch.ones(1)})
            state.targets[_STEPS] = torch.zeros((), dtype=torch.float64)

    def acted(self, params: Params, action: Tensor, noise: Tensor) -> Tensor:
        """Return the policy's vectors from -1 to 1, `[rows, n]`, or at the start uniform ones made of normal noise.

        Args:
            params: of the actors.
            action: of the policy.
            noise: `[rows, n]`; rows of zeros stay the policy's, so that evaluation is greedy at any time.
        """
        if not self.steps:
            return action
        # The distribution function of a normal number is uniform from 0 to 1, so this is from -1 to 1.
        uniform = torch.erf(noise * math.sqrt(0.5))
        explores = (params[_GROUP]["random"] > 0.0) & (noise != 0.0).any(-1, keepdim=True)
        return torch.where(explores, uniform, action)

    def sums(self, batch: Batch) -> dict[str, Tensor]:
        """Return the sums for `Algorithm.stats`: the number of rows."""
        if not self.steps:
            return {}
        action = batch["action"]
        return {_STEPS: torch.full((), float(len(action)), dtype=torch.float64, device=action.device)}

    def update(self, state: State, stats: Mapping[str, Tensor]) -> None:
        """Count a round's rows, in place; for `Algorithm.after_round`."""
        if self.steps:
            state.targets[_STEPS] += stats[_STEPS].to(state.targets[_STEPS])
            state.params[_GROUP].flat.copy_((state.targets[_STEPS] < self.steps).float())


def corrections(first: float, over_minibatches: int, before: int, minibatches: int) -> list[float]:
    """Return the exponents of importance weights, beta of Schaul et al. 2016 (arXiv 1511.05952), a number a minibatch.

    They rise linearly from `first` to 1 over so many minibatches of the run (section 3.4); over 0 they stay.

    Args:
        first: in the run's first minibatch.
        over_minibatches: after which they are 1.
        before: minibatches that were learned before this round.
        minibatches: of this round.
    """
    if not over_minibatches:
        return [first] * minibatches
    fractions = (min(1.0, (before + number) / over_minibatches) for number in range(minibatches))
    return [first + fraction * (1.0 - first) for fraction in fractions]


def minibatches_before(rounds: range, round_rows: int, warm_up_rows: int, minibatches: int) -> int:
    """Return the minibatches that an off-policy algorithm has learned before the newest round of its window.

    Args:
        rounds: in the window.
        round_rows: of each.
        warm_up_rows: of the window before the first minibatch.
        minibatches: of each round from then on.
    """
    return max(0, rounds.stop - max(1, -(-warm_up_rows // round_rows))) * minibatches
