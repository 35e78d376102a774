"""Policies' distributions over actions, as functions of a network's outputs. Pure torch; an algorithm may import this.

Acting and learning compute a log-probability by the same operations, so that they agree to the last bit wherever the
kernels do.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from penstock.tasks.model.nn import kernels

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


def displace(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Displace a mean by normal noise; zero noise gives the mean.

    Args:
        mean: `[..., n]`.
        log_std: `[n]`, of a normal distribution whose numbers are independent.
        noise: `[..., n]`.

    Returns:
        The vector `[..., n]` and its log-density `[...]`.
    """
    action = torch.addcmul(mean, noise, log_std.exp())
    return action, (-0.5 * noise.square() - log_std - 0.5 * _LOG_2PI).sum(-1)


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
    lowest, highest = _like(vector, low), _like(vector, high)
    half = 0.5 * (highest - lowest)
    # log(1 - tanh(u) ** 2), in a form that is finite where tanh(u) rounds to 1.
    slope = 2.0 * (math.log(2.0) - vector - torch.nn.functional.softplus(-2.0 * vector))
    return lowest + half * (vector.tanh() + 1.0), (slope + half.log()).sum(-1)


def _like(vector: Tensor, values: Sequence[float]) -> Tensor:
    """Return numbers `[n]` on the vector's device; where they are one number, by work that a CUDA graph can contain."""
    if len({*values}) == 1:
        return vector.new_full((len(values),), values[0])
    return torch.tensor(values, dtype=vector.dtype, device=vector.device)


def vector_probability(mean: Tensor, log_std: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the log-density of the vector `action` `[..., n]`, and the distribution's entropy: `[...]` each."""
    found = kernels.density(mean, log_std, action)
    if found is not None:
        return found
    standardised = (action - mean) * (-log_std).exp()
    log_probability = (-0.5 * standardised.square() - log_std - 0.5 * _LOG_2PI).sum(-1)
    return log_probability, (log_std + 0.5 * (1.0 + _LOG_2PI)).sum().expand_as(log_probability)
