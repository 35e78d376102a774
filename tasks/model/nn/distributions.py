"""Policies' distributions over actions, as functions of a network's outputs. Pure torch; an algorithm may import this.

Acting and learning compute a log-probability by the same operations, so that they agree to the last bit wherever the
kernels do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import Tensor

from penstock.tasks.model.nn import kernels
from penstock.tasks.specs import ActionSpec, NoiseSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

_LOG_2PI = math.log(2.0 * math.pi)


_FORBIDDEN = -1e30
"""The logit of a forbidden choice: so low that no noise lifts it, and finite, so that 0 times it is 0."""


def restrict(values: Tensor, allowed: Tensor | None) -> Tensor:
    """Mask logits or values of choices: forbidden ones become so low that they never win and have no probability.

    Args:
        values: `[..., n]`.
        allowed: bool `[..., n]`; None allows everything.

    Returns:
        `[..., n]`. Gradients of forbidden ones are exactly 0.
    """
    return values if allowed is None else torch.where(allowed, values, _FORBIDDEN)


def best(values: Tensor, allowed: Tensor | None = None) -> Tensor:
    """Return the allowed choice of the largest value, int64 `[...]`; any choice in rows that allow nothing."""
    return restrict(values, allowed).argmax(-1)


def choose(logits: Tensor, noise: Tensor, allowed: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Sample a choice: with Gumbel noise from the softmax (Gumbel-max), with zero noise the likeliest.

    Args:
        logits: `[..., n]`.
        noise: `[..., n]`.
        allowed: bool `[..., n]`, the only choices that are picked and that have a probability; None allows all.

    Returns:
        The choice, int64 `[...]`, and its log-probability `[...]`.

    Raises:
        ValueError: as `require_choice`.
    """
    if allowed is None and (found := kernels.sample(logits, noise)) is not None:
        return found
    require_choice(allowed)
    logits = restrict(logits, allowed)
    action = (logits + noise).argmax(-1)
    return action, torch.log_softmax(logits, -1).gather(-1, action.unsqueeze(-1)).squeeze(-1)


def require_choice(allowed: Tensor | None) -> None:
    """Refuse rows in which nothing is allowed. Tensors on an accelerator are not checked: that would wait for it.

    An exported policy does not check either: its graph has no errors.

    Raises:
        ValueError: names the rows of `allowed`, bool `[..., n]`.
    """
    if allowed is None or allowed.device.type != "cpu" or torch.compiler.is_compiling():
        return
    stuck = ~allowed.any(-1)
    if stuck.any():
        rows = stuck.nonzero().squeeze(-1).tolist()
        raise ValueError(
            f"the environment allows none of its {allowed.shape[-1]} choices in row(s) {rows} of this step, expected "
            f"one at least while an episode lasts: let its step end the episode where action_mask would be empty"
        )


def with_fixed_choice(allowed: Tensor) -> Tensor:
    """Let agents that have left take choice 0 alone: masks `[..., agents, n]` that allow an agent nothing say that.

    Such an agent's action is 0, with a log-probability and an entropy of exactly 0, and no gradient.

    Args:
        allowed: bool `[..., agents, n]`.

    Returns:
        bool `[..., agents, n]`, in which every agent has a choice.
    """
    first = torch.arange(allowed.shape[-1], device=allowed.device) == 0
    return allowed | (first & ~allowed.any(-1, keepdim=True))


def choice_probability(logits: Tensor, action: Tensor, allowed: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Compute the log-probability `[...]` of the choice `action` under `logits` `[..., n]`, and the entropy `[...]`.

    Both are over the choices that `allowed` (bool `[..., n]`) allows; None allows all.
    """
    if allowed is None and (found := kernels.choice(logits, action)) is not None:
        return found
    log_probabilities = torch.log_softmax(restrict(logits, allowed), -1)
    log_probability = log_probabilities.gather(-1, action.unsqueeze(-1)).squeeze(-1)
    return log_probability, -(log_probabilities.exp() * log_probabilities).sum(-1)


def displace(mean: Tensor, log_std: Tensor, noise: Tensor, taken: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Displace a mean by normal noise; zero noise gives the mean.

    Args:
        mean: `[..., n]`.
        log_std: `[n]`, of a normal distribution whose numbers are independent.
        noise: `[..., n]`.
        taken: bool `[..., n]`; other numbers are 0, with a log-density of 0. None takes all.

    Returns:
        The vector `[..., n]` and its log-density `[...]`.
    """
    action = torch.addcmul(mean, noise, log_std.exp())
    log_density = -0.5 * noise.square() - log_std - 0.5 * _LOG_2PI
    if taken is not None:
        action, log_density = (torch.where(taken, values, 0.0) for values in (action, log_density))
    return action, log_density.sum(-1)


def clipped_within(vector: Tensor, low: Sequence[float], high: Sequence[float]) -> Tensor:
    """Return the vectors `[..., n]` with every number between its bounds, `[n]`."""
    return vector.clamp(_like(vector, low), _like(vector, high))


def squashed_within(vector: Tensor, low: Sequence[float], high: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Map vectors to a box by tanh: appendix C of Haarnoja et al. 2018 (arXiv 1812.05905), with bounds.

    Args:
        vector: `[..., n]`.
        low: lower bounds, `[n]`; -1 becomes this.
        high: upper bounds; 1 becomes this.

    Returns:
        Vectors within the bounds `[..., n]`, and the logarithm of the map's derivative `[...]`: subtract it from the
        log-density of the vector for that of the result.
    """
    lowest = _like(vector, low)
    half = 0.5 * _like(vector, widths(tuple(low), tuple(high)))
    # log(1 - tanh(u) ** 2), in a form that is finite where tanh(u) rounds to 1.
    slope = 2.0 * (math.log(2.0) - vector - torch.nn.functional.softplus(-2.0 * vector))
    return lowest + half * (vector.tanh() + 1.0), (slope + half.log()).sum(-1)


@cache
def widths(low: tuple[float, ...], high: tuple[float, ...]) -> tuple[float, ...]:
    """Return the widths of a box in float32, such that a lower bound and its width add up to the upper one at most.

    Their difference may be more than that by rounding, and tanh is often exactly 1.

    Args:
        low: lower bounds, `[n]`.
        high: upper bounds.
    """
    lowest, highest = np.asarray(low, dtype=np.float32), np.asarray(high, dtype=np.float32)
    found = highest - lowest
    while (above := lowest + found > highest).any():
        found[above] = np.nextafter(found[above], np.float32(0.0))
    return tuple(found.tolist())


def _like(vector: Tensor, values: Sequence[float]) -> Tensor:
    """Return numbers `[n]` on the vector's device; where they are one number, by work that a CUDA graph can contain."""
    if len({*values}) == 1:
        return vector.new_full((len(values),), values[0])
    return constants(values, vector.device, vector.dtype)


def constants(values: Sequence[float], device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return numbers `[n]` on a device: on a GPU always the same tensor, as a CUDA graph can't copy from the host."""
    if device.type == "cuda":
        return _kept(tuple(values), device, dtype)
    return torch.tensor(values, dtype=dtype, device=device)


@cache
def _kept(values: tuple[float, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    with torch.inference_mode(mode=False):  # acting may come first, and learning differentiates
        return torch.tensor(values, dtype=dtype, device=device)


def vector_probability(
    mean: Tensor, log_std: Tensor, action: Tensor, taken: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute the log-density of the vector `action` `[..., n]`, and the distribution's entropy: `[...]` each.

    Both are over the numbers that `taken` (bool `[..., n]`) has; None has all.
    """
    if taken is None and (found := kernels.density(mean, log_std, action)) is not None:
        return found
    standardised = (action - mean) * (-log_std).exp()
    log_density = -0.5 * standardised.square() - log_std - 0.5 * _LOG_2PI
    of_each = log_std + 0.5 * (1.0 + _LOG_2PI)
    if taken is not None:
        return torch.where(taken, log_density, 0.0).sum(-1), torch.where(taken, of_each, 0.0).sum(-1)
    log_probability = log_density.sum(-1)
    return log_probability, of_each.sum().expand_as(log_probability)


@dataclass(frozen=True, slots=True)
class _Run:
    """Neighbours in a structured action's vector that are choices among as many, or numbers of boxes."""

    first: int
    count: int
    size: int
    """Choices; 0 for numbers."""
    output: int
    """The first of the network's outputs for it: logits of one choice after the other, or means."""
    number: int
    """For numbers the place of the first among all numbers."""

    @property
    def outputs(self) -> int:
        return self.count * (self.size or 1)

    def part_of(self, allowed: Tensor | None) -> Tensor | None:
        """Take its own of `[..., outputs]`: `[..., count]` of numbers, `[..., count, size]` of choices."""
        if allowed is None:
            return None
        own = allowed.narrow(-1, self.output, self.outputs)
        return own.unflatten(-1, (self.count, self.size)) if self.size else own


@lru_cache(maxsize=64)
def _runs(action: ActionSpec) -> tuple[_Run, ...]:
    found, first, output, number = [], 0, 0, 0
    for size, group in groupby(action.sizes):
        run = _Run(first, len([*group]), size, output, number)
        found.append(run)
        first, output, number = first + run.count, output + run.outputs, number + (0 if size else run.count)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class ActionDistribution:
    """A policy's distribution over the actions of an environment without an agent axis, whatever their kind.

    A choice has a softmax over its logits, a vector a normal distribution whose numbers are independent. All
    choices and numbers of a structured action are independent, so that log-probabilities and entropies add up.
    """

    action: ActionSpec

    @property
    def outputs(self) -> int:
        """Outputs of the network: logits of choices and means of numbers; for a structured action in its order."""
        if self.action.kind == "structured":
            return sum(run.outputs for run in _runs(self.action))
        return self.action.n if self.action.kind == "discrete" else math.prod(self.action.shape)

    @property
    def numbers(self) -> int:
        """Numbers with a deviation: the length of `log_std`; 0 where there are choices alone."""
        if self.action.kind == "structured":
            return self.action.sizes.count(0)
        return 0 if self.action.kind == "discrete" else self.outputs

    @property
    def noise(self) -> NoiseSpec:
        """Random numbers of a row: Gumbel noise samples a choice (Gumbel-max), normal noise displaces a mean.

        A structured action has normal noise, one number for each output, which becomes Gumbel noise for its choices.
        Zero noise is greedy.
        """
        if self.action.kind == "structured":
            return NoiseSpec("normal", (self.outputs,))
        return NoiseSpec("gumbel", (self.action.n,)) if self.action.kind == "discrete" else self._normal

    @property
    def _normal(self) -> NoiseSpec:
        return NoiseSpec("normal", self.action.shape)

    def sample(
        self, output: Tensor, log_std: Tensor | None, noise: Tensor, allowed: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Sample actions; zero noise gives the likeliest.

        Args:
            output: `[B, outputs]`, of the network.
            log_std: `[numbers]`; None if there are none.
            noise: `[B, ...]`, as `noise` declares it.
            allowed: bool `[B, n]` of a single choice, or `[B, outputs]` of a structured action: its choices, and for
                each number whether it is taken, or else 0. None allows all.

        Returns:
            Actions as columns store them, `[B, ...]`, and their log-probabilities or log-densities `[B]`.

        Raises:
            ValueError: as `require_choice`.
        """
        if self.action.kind == "discrete":
            return choose(output, noise, allowed)
        if self.action.kind == "box":
            vector, log_probability = displace(output, _given(log_std), noise.flatten(1))
            return vector.view(-1, *self.action.shape), log_probability
        pieces, log_probabilities = [], []
        for run in _runs(self.action):
            own, drawn = (values.narrow(-1, run.output, run.outputs) for values in (output, noise))
            taken = run.part_of(allowed)
            if run.size:
                each = (run.count, run.size)
                chosen, of_each = choose(own.unflatten(-1, each), gumbel_noise(drawn).unflatten(-1, each), taken)
                pieces.append(chosen.to(output.dtype))
                log_probabilities.append(of_each.sum(-1))
            else:
                vector, of_run = displace(own, _given(log_std).narrow(0, run.number, run.count), drawn, taken)
                pieces.append(vector)
                log_probabilities.append(of_run)
        return torch.cat(pieces, -1), _total(log_probabilities)

    def probability(
        self, output: Tensor, log_std: Tensor | None, action: Tensor, allowed: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Compute the log-probability or log-density `[...]` of actions, and the entropy `[...]`.

        Args:
            output: `[..., outputs]`, of the network.
            log_std: `[numbers]`; None if there are none.
            action: `[..., *shape]`, as columns store it.
            allowed: bool `[..., n]` of a single choice, or `[..., outputs]`, as `sample` takes it; None allows all.
        """
        if self.action.kind == "discrete":
            return choice_probability(output, action, allowed)
        if self.action.kind == "box":
            return vector_probability(output, _given(log_std), action.flatten(output.dim() - 1))
        log_probabilities, entropies = [], []
        for run in _runs(self.action):
            own, value = output.narrow(-1, run.output, run.outputs), action.narrow(-1, run.first, run.count)
            taken = run.part_of(allowed)
            if run.size:
                of_each, entropy_of_each = choice_probability(
                    own.unflatten(-1, (run.count, run.size)), value.long(), taken
                )
                found = of_each.sum(-1), entropy_of_each.sum(-1)
            else:
                numbers = _given(log_std).narrow(0, run.number, run.count)
                found = vector_probability(own, numbers, value.contiguous(), taken)
            log_probabilities.append(found[0])
            entropies.append(found[1])
        return _total(log_probabilities), _total(entropies)

    def with_fixed_choices(self, allowed: Tensor) -> Tensor:
        """Let each choice of a structured action be 0 alone where `allowed`, `[..., outputs]`, allows it nothing."""
        pieces = []
        for run in _runs(self.action):
            own = cast("Tensor", run.part_of(allowed))
            pieces.append(with_fixed_choice(own).flatten(-2) if run.size else own)
        return torch.cat(pieces, -1)

    def parts(self, action: Tensor) -> tuple[Tensor, Tensor]:
        """Split structured actions `[..., count]` into choices `[..., c]`, int64, and numbers `[..., numbers]`."""
        runs = _runs(self.action)
        found = []
        for is_choice in (True, False):
            pieces = [action.narrow(-1, run.first, run.count) for run in runs if bool(run.size) == is_choice]
            found.append(torch.cat(pieces, -1) if pieces else action[..., :0])
        return found[0].long(), found[1]

    def features(self, action: Tensor) -> Tensor:
        """Return what a critic gets of actions `[..., *shape]` that are no single choice: `[..., outputs]`.

        Numbers are themselves, choices of a structured action one-hot.
        """
        if self.action.kind != "structured":
            return action.flatten(1)
        pieces = []
        for run in _runs(self.action):
            taken = action.narrow(-1, run.first, run.count)
            one_hot = torch.nn.functional.one_hot(taken.long(), run.size).flatten(-2) if run.size else taken
            pieces.append(one_hot.to(action.dtype))
        return torch.cat(pieces, -1)


_ROOT_HALF = math.sqrt(0.5)
_LARGEST = 30.0
"""The exponential number of normal noise below -7.7, which is beyond what is drawn."""


def gumbel_noise(normal: Tensor) -> Tensor:
    """Turn normal noise into Gumbel noise: -log(-log(Phi(z))), of which equal numbers stay equal.

    -log(Phi(z)) is -log1p(-erfc(z / sqrt(2)) / 2), which keeps its digits in the upper tail, where the largest are.
    """
    exponential = -torch.log1p(-0.5 * torch.erfc(normal * _ROOT_HALF))
    return -exponential.clamp(1e-30, _LARGEST).log()


def _total(values: Sequence[Tensor]) -> Tensor:
    first, *others = values
    return sum(others, first)


def _given(log_std: Tensor | None) -> Tensor:
    if log_std is None:
        raise ValueError("log_std is None, expected the logarithms of the numbers' deviations [numbers]")
    return log_std
