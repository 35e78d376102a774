"""Noisy linear layers (Fortunato et al. 2017, arXiv 1706.10295), factorised. Pure torch; an algorithm may import this.

A layer with m inputs and n outputs has a mean and a scale of each weight, and its random weights are
`weight + weight_noise * f(e_n) f(e_m)^T` (equations 10 and 11), with f(x) = sgn(x) sqrt(|x|). So its output is the
layer's of the means, plus `f(e_n)` times the output of a layer of the scales for the inputs times `f(e_m)`.

Every row has noise of its own: m + n numbers a layer. The paper draws one for a minibatch, which has the same mean
gradient and a larger variance. With its own, a row's result is a function of the row, wherever it is computed.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

import torch

from penstock.tasks.model.nn.layers import linear

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor


def noise_numbers(sizes: Sequence[int]) -> int:
    """Return the number of random numbers a row of a noisy perceptron with these widths."""
    return sum(fan_in + fan_out for fan_in, fan_out in pairwise(sizes))


def init_noise(sizes: Sequence[int], scale: float) -> dict[str, Tensor]:
    """Return the scales `<layer>.weight_noise` `[out, in]` and `<layer>.bias_noise` `[out]` of a perceptron's layers.

    All are `scale` divided by the root of the layer's inputs; the paper has 0.5 (section 3.2).
    """
    scales: dict[str, Tensor] = {}
    for layer, (fan_in, fan_out) in enumerate(pairwise(sizes)):
        value = scale / math.sqrt(fan_in)
        scales[f"{layer}.weight_noise"] = torch.full((fan_out, fan_in), value)
        scales[f"{layer}.bias_noise"] = torch.full((fan_out,), value)
    return scales


def noisy_mlp(
    params: Mapping[str, Tensor],
    inputs: Tensor,
    noise: Tensor,
    activation: Callable[[Tensor], Tensor],
    layers: int,
) -> Tensor:
    """Apply a perceptron with noisy layers: `[B, in] -> [B, out]`; zero noise gives the one of the means.

    Args:
        params: as `init_mlp` and `init_noise` make them.
        inputs: `[B, in]`.
        noise: normal, `[B, noise_numbers]`.
        activation: between layers.
        layers: number of layers.
    """
    factors, hidden, start = noise.sign() * noise.abs().sqrt(), inputs, 0
    for layer in range(layers):
        fan_out, fan_in = params[f"{layer}.weight"].shape
        on_inputs, on_outputs = factors[:, start : start + fan_in + fan_out].split((fan_in, fan_out), 1)
        start += fan_in + fan_out
        mean = linear(hidden, params[f"{layer}.weight"], params[f"{layer}.bias"])
        noisy = linear(hidden * on_inputs, params[f"{layer}.weight_noise"], params[f"{layer}.bias_noise"])
        hidden = torch.addcmul(mean, on_outputs, noisy)
        if layer < layers - 1:
            hidden = activation(hidden)
    return hidden
