"""Policies' distributions over actions, as functions of what a network gives. Pure torch; an algorithm may import this.

Acting and learning compute a log-probability by the same operations, so that they agree on it to the last bit wherever
the kernels do.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_LOG_2PI = math.log(2.0 * math.pi)


def choose(logits: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Pick among choices: with Gumbel noise a sample of the softmax (Gumbel-max), with zero noise the likeliest.

    Args:
        logits: `[..., n]`.
        noise: `[..., n]`.

    Returns:
        The choice, int64 `[...]`, and its log-probability `[...]`.
    """
    action = (logits + noise).argmax(-1)
    return action, torch.log_softmax(logits, -1).gather(-1, action.unsqueeze(-1)).squeeze(-1)


def choice_probability(logits: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probability of the choice `action` `[...]` under `logits` `[..., n]`, and the softmax's entropy: `[...]`."""
    log_probabilities = torch.log_softmax(logits, -1)
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


def vector_probability(mean: Tensor, log_std: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Log-density of the vector `action` `[..., n]`, and the distribution's entropy: `[...]` each."""
    standardised = (action - mean) * (-log_std).exp()
    log_probability = (-0.5 * standardised.square() - log_std - 0.5 * _LOG_2PI).sum(-1)
    return log_probability, (log_std + 0.5 * (1.0 + _LOG_2PI)).sum().expand_as(log_probability)
