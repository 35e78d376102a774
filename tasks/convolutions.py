"""Networks for images as pure functions of named parameters. Pure torch; an algorithm may import this.

Images are `[B, channels, height, width]`, bytes from 0 to 255, or the same numbers in another type. They may lie in
memory in any order; a CPU convolves about twice as fast where channels are the last (`torch.channels_last`), and keeps
that order from layer to layer. What comes out are features: put `tasks.networks.mlp` behind them.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import conv2d, max_pool2d, relu

from tasks.networks import linear

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_NATURE = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""Channels, width of the kernel, stride."""
_BLOCKS = 2
_BYTE = 1.0 / 255.0
"""A pixel's scale."""
_GAIN = math.sqrt(2.0)


def init_nature(shape: Sequence[int], features: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Orthogonal weights and zero biases of the convolutions of Mnih et al. 2015 (doi 10.1038/nature14236).

    Args:
        shape: channels, height and width of an image; 36 x 36 at least.
        features: numbers that come out; 512 in the paper.
        generator: the only source of randomness.

    Returns:
        float32 tensors `<layer>.weight` and `<layer>.bias`: layers 0 to 2 are convolutions, 3 is linear.

    Raises:
        ValueError: the image is too small for the three kernels.
    """
    channels, *size = shape
    params: dict[str, Tensor] = {}
    for layer, (out, kernel, stride) in enumerate(_NATURE):
        params |= _layer(f"{layer}", (out, channels, kernel, kernel), generator)
        channels, size = out, [(length - kernel) // stride + 1 for length in size]
    if min(size) < 1:
        raise ValueError(f"an image of {tuple(shape)} is too small: height and width must be 36 at least")
    return params | _layer("3", (features, channels * math.prod(size)), generator)


def nature(params: Mapping[str, Tensor], images: Tensor) -> Tensor:
    """Apply what `init_nature` made: `[B, C, H, W] -> [B, features]`, float32, none below 0."""
    hidden = images.float()
    for layer, (_, _, stride) in enumerate(_NATURE):
        hidden = relu(_convolve(params, f"{layer}", hidden, stride=stride, scale=1.0 if layer else _BYTE))
    return relu(linear(hidden.flatten(1), params["3.weight"], params["3.bias"]))


def init_residual(
    shape: Sequence[int], features: int, generator: torch.Generator, channels: Sequence[int] = (16, 32, 32)
) -> dict[str, Tensor]:
    """Orthogonal weights and zero biases of IMPALA's residual network (Espeholt et al. 2018, figure 3, right).

    Args:
        shape: channels, height and width of an image.
        features: numbers that come out; 256 in the paper.
        generator: the only source of randomness.
        channels: of each section, which halves height and width.

    Returns:
        float32 tensors: `<section>.entry.*`, `<section>.<block>.<0 or 1>.*`, all 3 x 3, and `output.*`.
    """
    before, *size = shape
    params: dict[str, Tensor] = {}
    for section, (fan_in, fan_out) in enumerate(pairwise((before, *channels))):
        params |= _layer(f"{section}.entry", (fan_out, fan_in, 3, 3), generator)
        for block in range(_BLOCKS):
            params |= _layer(f"{section}.{block}.0", (fan_out, fan_out, 3, 3), generator)
            params |= _layer(f"{section}.{block}.1", (fan_out, fan_out, 3, 3), generator)
        size = [(length + 1) // 2 for length in size]
    return params | _layer("output", (features, channels[-1] * math.prod(size)), generator)


def residual(params: Mapping[str, Tensor], images: Tensor) -> Tensor:
    """Apply what `init_residual` made: `[B, C, H, W] -> [B, features]`, float32, none below 0."""
    hidden = images.float()
    section = 0
    while f"{section}.entry.weight" in params:
        entered = _convolve(params, f"{section}.entry", hidden, padding=1, scale=1.0 if section else _BYTE)
        hidden = max_pool2d(entered, 3, stride=2, padding=1)
        for block in range(_BLOCKS):
            inner = _convolve(params, f"{section}.{block}.0", relu(hidden), padding=1)
            hidden = hidden + _convolve(params, f"{section}.{block}.1", relu(inner), padding=1)
        section += 1
    return relu(linear(relu(hidden).flatten(1), params["output.weight"], params["output.bias"]))


def _layer(name: str, shape: tuple[int, ...], generator: torch.Generator) -> dict[str, Tensor]:
    weight = torch.empty(shape)
    torch.nn.init.orthogonal_(weight, _GAIN, generator=generator)
    return {f"{name}.weight": weight, f"{name}.bias": torch.zeros(shape[0])}


def _convolve(
    params: Mapping[str, Tensor], name: str, inputs: Tensor, stride: int = 1, padding: int = 0, scale: float = 1.0
) -> Tensor:
    """Of `scale` times the inputs: kernels are scaled instead, which are far fewer numbers.

    A reduced snapshot may have wide kernels in bfloat16; on a CPU, convolving in that gains nothing.
    """
    weight = params[f"{name}.weight"].to(inputs.dtype)
    weight = weight if scale == 1.0 else weight * scale
    return conv2d(inputs, weight, params[f"{name}.bias"], stride=stride, padding=padding)
