"""The clipped surrogate of proximal policy optimisation. Pure torch; an algorithm may import this."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping


def advantage_sums(advantage: Tensor) -> dict[str, Tensor]:
    """What mean and variance of a round's advantages are made of, in float64: differences of large sums follow."""
    advantage = advantage.double()
    return {
        "count": torch.tensor(float(advantage.numel()), dtype=torch.float64, device=advantage.device),
        "advantage": advantage.sum(),
        "advantage_square": advantage.square().sum(),
    }


def normalised(advantage: Tensor, sums: Mapping[str, float]) -> Tensor:
    """Advantages with the mean 0 and variance 1 of the whole round, whose `advantage_sums` these are."""
    mean = sums["advantage"] / sums["count"]
    variance = max(0.0, sums["advantage_square"] / sums["count"] - mean * mean)
    return (advantage - mean) * (1.0 / (math.sqrt(variance) + 1e-8))


def clipped_surrogate(
    log_probability: Tensor, behaviour: Tensor, advantage: Tensor, clip_range: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """Equation 7 of Schulman et al. 2017 (arXiv 1707.06347), before the mean is taken.

    Args:
        log_probability: `[...]`, of the actions under the policy that learns.
        behaviour: `[...]`, under the one that acted.
        advantage: `[...]`, normalised.
        clip_range: how far the ratio of the two may move from 1 before nothing is gained by it.

    Returns:
        The surrogate `[...]`, to be made large, and of each action `kl` and `clip_fraction`, detached.
    """
    log_ratio = log_probability - behaviour
    ratio = log_ratio.exp()
    clipped = ratio.detach().clamp(1.0 - clip_range, 1.0 + clip_range)
    # The smaller of ratio * advantage and clipped * advantage, written so that backward has one product to undo.
    pessimistic = torch.where(ratio * advantage <= clipped * advantage, ratio, clipped)
    with torch.no_grad():
        # The estimator (r - 1) - log r of the divergence is unbiased and never negative
        # (Schulman, "Approximating KL Divergence", 2020, http://joschu.net/blog/kl-approx.html).
        outputs = {"kl": ratio - 1.0 - log_ratio, "clip_fraction": (ratio != clipped).float()}
    return pessimistic * advantage, outputs
