"""The clipped surrogate of proximal policy optimisation. Pure torch; an algorithm may import this."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from penstock.tasks.model.nn import kernels
from penstock.tasks.tape.operations import call
from penstock.tasks.tape.totals import RoundTotals

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def advantage_sums(advantage: Tensor, counted: Tensor | None = None) -> dict[str, Tensor]:
    """Return the sums that give mean and variance of advantages, in float64, since large sums are subtracted later.

    Args:
        advantage: `[...]`.
        counted: `[...]`, 1 for those that count and 0 for others; None counts all.

    Returns:
        float64 `[]` each: `count`, `advantage` and `advantage_square`.
    """
    advantage = advantage.double()
    count = torch.full((), float(advantage.numel()), dtype=torch.float64, device=advantage.device)
    if counted is not None:
        count, advantage = counted.double().sum(), advantage * counted
    return {"count": count, "advantage": advantage.sum(), "advantage_square": advantage.square().sum()}


def normalised(advantage: Tensor, sums: Mapping[str, float | Tensor]) -> Tensor:
    """Normalise advantages to mean 0 and variance 1 over the whole round, by its `advantage_sums`."""
    if isinstance(sums, RoundTotals):
        names = ("count", "advantage", "advantage_square")
        found = kernels.standardise(advantage, *(sums.place(name) for name in names))
        if found is not None:
            return found
    mean = sums["advantage"] / sums["count"]
    variance = sums["advantage_square"] / sums["count"] - mean * mean
    if isinstance(variance, Tensor):
        deviation: float | Tensor = variance.clamp(min=0.0).sqrt()
    else:
        deviation = math.sqrt(max(0.0, variance))
    return (advantage - mean) * (1.0 / (deviation + 1e-8))


def clipped_surrogate(
    log_probability: Tensor, behaviour: Tensor, advantage: Tensor, clip_range: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """Compute equation 7 of Schulman et al. 2017 (arXiv 1707.06347), before the mean is taken.

    Args:
        log_probability: `[...]`, of the actions under the policy that learns.
        behaviour: `[...]`, under the policy that acted.
        advantage: `[...]`, normalised.
        clip_range: the distance of the ratio of the two from 1 beyond which it has no gradient.

    Returns:
        The surrogate `[...]`, to be maximised, and for each action `kl` and `clip_fraction`, detached.
    """
    found = kernels.surrogate(log_probability, behaviour, advantage, clip_range)
    if found is not None:
        return found[0], {"kl": found[1], "clip_fraction": found[2]}
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


def value_error(outputs: Tensor, target: Tensor) -> Tensor:
    """Return half the squared error `[...]` of a network's last output, the value, of `[..., n]`."""
    tape, number = kernels.tape_for(outputs), kernels.level_number(outputs)
    is_plain = kernels.plain(outputs) and kernels.constant(target) and target.shape == outputs.shape[:-1]
    if tape is None or number is None or not is_plain:
        return 0.5 * (outputs[..., -1] - target).square()
    error, found, n = torch.empty(target.shape), torch.empty(target.shape), outputs.shape[-1]
    call(number, "half_square", (outputs, target, error, found), (target.numel(), n))

    def back(gradients: Sequence[Tensor | None]) -> Sequence[Tensor]:
        to_outputs = torch.empty(outputs.shape)
        tensors = (kernels.contiguous_or_none(gradients[0]), error, to_outputs)
        call(number, "half_square_back", tensors, (target.numel(), n))
        return (to_outputs,)

    tape.record((outputs,), (found,), back)
    return found
