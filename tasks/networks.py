"""Perceptrons as pure functions of named parameters. Pure torch; an algorithm may import this."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


def init_mlp(
    sizes: Sequence[int], output_gain: float, generator: torch.Generator, hidden_gain: float = math.sqrt(2.0)
) -> dict[str, Tensor]:
    """Orthogonal weights and zero biases for a multi-layer perceptron.

    Args:
        sizes: input, hidden and output widths.
        output_gain: scale of the last layer; 0.01 starts a policy near uniform, 1.0 suits a value.
        generator: the only source of randomness.
        hidden_gain: scale of the hidden layers.

    Returns:
        float32 tensors `<layer>.weight` `[out, in]` and `<layer>.bias` `[out]`.
    """
    params: dict[str, Tensor] = {}
    last = len(sizes) - 2
    for layer, (fan_in, fan_out) in enumerate(pairwise(sizes)):
        weight = torch.empty(fan_out, fan_in)
        torch.nn.init.orthogonal_(weight, output_gain if layer == last else hidden_gain, generator=generator)
        params[f"{layer}.weight"] = weight
        params[f"{layer}.bias"] = torch.zeros(fan_out)
    return params


def mlp(params: Mapping[str, Tensor], inputs: Tensor, activation: Callable[[Tensor], Tensor] = torch.tanh) -> Tensor:
    """Apply a perceptron made by `init_mlp`: `[B, in] -> [B, out]`, float32.

    A weight may be bfloat16, as `linear` takes it.
    """
    layers = len(params) // 2
    hidden = inputs
    for layer in range(layers):
        hidden = linear(hidden, params[f"{layer}.weight"], params[f"{layer}.bias"])
        if layer < layers - 1:
            hidden = activation(hidden)
    return hidden


def part(params: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Of several networks' tensors those of one, whose names begin with `prefix`, without it."""
    return {name.removeprefix(prefix): value for name, value in params.items() if name.startswith(prefix)}


def linear(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`[B, in] -> [B, out]`, float32, with a weight of `[out, in]`.

    A weight may be bfloat16, as wide ones of a reduced snapshot are: then it multiplies in that, and adds in float32.
    """
    if weight.dtype == inputs.dtype:
        return torch.nn.functional.linear(inputs, weight, bias)
    return torch.nn.functional.linear(inputs.to(weight.dtype), weight).to(bias.dtype) + bias
