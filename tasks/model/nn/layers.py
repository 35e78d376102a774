"""Layers as pure functions of named parameters: perceptrons (noisy ones too), convolutions, a recurrent core.

Pure torch; an algorithm may import this.
"""

from __future__ import annotations

import math
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import conv2d, max_pool2d, relu

from penstock.tasks.model.nn import kernels

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray


def init_mlp(
    sizes: Sequence[int], output_gain: float, generator: torch.Generator, hidden_gain: float = math.sqrt(2.0)
) -> dict[str, Tensor]:
    """Return orthogonal weights and zero biases for a multi-layer perceptron.

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


def mlp(
    params: Mapping[str, Tensor],
    inputs: Tensor,
    activation: Callable[[Tensor], Tensor] = torch.tanh,
    layers: int | None = None,
) -> Tensor:
    """Apply a perceptron made by `init_mlp`: `[B, in] -> [B, out]`, float32.

    With `layers` given, other names in `params` are ignored.

    On a CPU, kernels compute it if the activation is tanh or ReLU (`kernels.perceptron`), otherwise torch. A weight may
    be bfloat16, as `linear` takes it.
    """
    layers = layers or len(params) // 2
    if activation is torch.tanh or activation is torch.relu:
        tensors = [params[f"{layer}.{kind}"] for layer in range(layers) for kind in ("weight", "bias")]
        outputs = kernels.perceptron(inputs, tensors, relu=activation is torch.relu)
        if outputs is not None:
            return outputs
    hidden = inputs
    for layer in range(layers):
        hidden = linear(hidden, params[f"{layer}.weight"], params[f"{layer}.bias"])
        if layer < layers - 1:
            hidden = activation(hidden)
    return hidden


def part(params: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Select the tensors whose names begin with `prefix`, and strip it."""
    return {name.removeprefix(prefix): value for name, value in params.items() if name.startswith(prefix)}


def linear(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Apply a linear layer, `[B, in] -> [B, out]`, float32, with a weight of `[out, in]`.

    A weight may be bfloat16, as wide ones of a reduced snapshot are: it multiplies in bfloat16 and adds in float32.
    """
    if weight.dtype == inputs.dtype:
        return torch.nn.functional.linear(inputs, weight, bias)
    if torch.compiler.is_exporting():
        # onnxruntime multiplies no bfloat16, and refuses the file: the same products, summed in float32.
        product = torch.nn.functional.linear(inputs.to(weight.dtype).float(), weight.float())
        return product.to(weight.dtype).float() + bias
    return torch.nn.functional.linear(inputs.to(weight.dtype), weight).to(bias.dtype) + bias


_NATURE = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""Channels, width of the kernel, stride."""
_BLOCKS = 2
_SMALL_CHANNELS, _CELLS = 16, 3
"""Channels of the small network's convolution, and the width of its kernel."""
_IN_LINE, _LINE_NUMBERS, _CELL_NUMBERS = 4, 8, 4
"""Cells of a line, its hidden numbers, and the numbers of a cell."""
_MOST_CELLS = 400
_BYTE = 1.0 / 255.0
"""A pixel's scale."""
_GAIN = math.sqrt(2.0)


def init_nature(shape: Sequence[int], features: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Return orthogonal weights and zero biases of the convolutions of Mnih et al. 2015 (doi 10.1038/nature14236).

    Args:
        shape: channels, height and width of an image; 36 x 36 at least.
        features: width of the output; 512 in the paper.
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
    """Apply the convolutions of `init_nature`: `[B, C, H, W] -> [B, features]`, float32, none below 0."""
    hidden = images.float()
    for layer, (_, _, stride) in enumerate(_NATURE):
        hidden = relu(_convolve(params, f"{layer}", hidden, stride=stride, scale=1.0 if layer else _BYTE))
    return relu(linear(hidden.flatten(1), params["3.weight"], params["3.bias"]))


def init_small(shape: Sequence[int], features: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Return orthogonal weights and zero biases of MinAtar's network (Young and Tian 2019, arXiv 1903.03176).

    Args:
        shape: channels, height and width of a grid of cells; 3 x 3 at least.
        features: width of the output; 128 in the paper.
        generator: the only source of randomness.

    Returns:
        float32 tensors `0.*` of a 3 x 3 convolution with 16 channels, and `1.*`, which are linear.

    Raises:
        ValueError: the grid is too small for the kernel.
    """
    channels, height, width = shape
    if min(height, width) < _CELLS:
        raise ValueError(f"a grid of {tuple(shape)} is too small: height and width must be {_CELLS} at least")
    sized = _SMALL_CHANNELS * (height - _CELLS + 1) * (width - _CELLS + 1)
    params = _layer("0", (_SMALL_CHANNELS, channels, _CELLS, _CELLS), generator)
    return params | _layer("1", (features, sized), generator)


def small(params: Mapping[str, Tensor], grids: Tensor) -> Tensor:
    """Apply the network of `init_small`: `[B, C, H, W] -> [B, features]`, float32, none below 0.

    Cells are taken as they are, in place of pixels from 0 to 255.
    """
    hidden = relu(_convolve(params, "0", grids.float()))
    return relu(linear(hidden.flatten(1), params["1.weight"], params["1.bias"]))


def init_lines(shape: Sequence[int], features: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Return orthogonal weights and zero biases of a network for games whose players fill lines of four cells.

    Each line of four, in the four directions, gets 8 hidden numbers by the same weights; each cell 4 numbers, sums over
    the lines that it is in, by weights that depend on the cell's place in its line alone. So what makes a cell worth
    filling is learned from all lines at once. A linear layer sees these and the grid.

    Args:
        shape: channels, height and width of a grid of cells; 4 x 4 at least, and 400 cells at most.
        features: width of the output.
        generator: the only source of randomness.

    Returns:
        float32 tensors `0.*` from a line's cells to its hidden numbers, `1.*` from these to cells, and `2.*`.

    Raises:
        ValueError: the grid is too small for a line, or too large for matrices of all cells and lines.
    """
    channels, height, width = shape
    if min(height, width) < _IN_LINE or height * width > _MOST_CELLS:
        raise ValueError(
            f"found a grid of {tuple(shape)}, expected height and width of {_IN_LINE} at least, and {_MOST_CELLS} "
            f"cells at most; choose small"
        )
    params = _layer("0", (_LINE_NUMBERS, _IN_LINE * channels), generator)
    params |= _layer("1", (_IN_LINE * _CELL_NUMBERS, _LINE_NUMBERS), generator)
    params["1.bias"] = torch.zeros(_CELL_NUMBERS)
    return params | _layer("2", (features, (_CELL_NUMBERS + channels) * height * width), generator)


def lines(params: Mapping[str, Tensor], grids: Tensor) -> Tensor:
    """Apply the network of `init_lines`: `[B, C, H, W] -> [B, features]`, float32, none below 0.

    Weights that lines share are spread over matrices of the whole grid first: a product of those takes less time than
    many small ones.
    """
    channels, height, width = grids.shape[1:]
    to_lines, to_cells = _line_places_on(channels, height, width, grids.device)
    cells = grids.movedim(1, -1).flatten(1).float()
    count = len(to_lines)
    first = _spread(params["0.weight"], to_lines, count * _LINE_NUMBERS, cells.shape[1])
    by_place = params["1.weight"].unflatten(0, (_IN_LINE, _CELL_NUMBERS))
    second = _spread(by_place, to_cells, height * width * _CELL_NUMBERS, count * _LINE_NUMBERS)
    hidden = relu(linear(cells, first, params["0.bias"].repeat(count)))
    threats = relu(linear(hidden, second, params["1.bias"].repeat(height * width)))
    return relu(linear(torch.cat([threats, cells], 1), params["2.weight"], params["2.bias"]))


def _line_places_on(channels: int, height: int, width: int, device: torch.device) -> tuple[Tensor, ...]:
    """Return `_line_places` on a device: on a GPU the same tensors each time, since a CUDA graph can't copy them."""
    if device.type == "cuda":
        return _kept_line_places(channels, height, width, device)
    # Arrays are cached: a tensor would be of inference, or of an export's trace, if that came first.
    return tuple(torch.from_numpy(places).to(device) for places in _line_places(channels, height, width))


@cache
def _kept_line_places(channels: int, height: int, width: int, device: torch.device) -> tuple[Tensor, ...]:
    with torch.inference_mode(mode=False):
        return tuple(torch.from_numpy(places).to(device) for places in _line_places(channels, height, width))


@cache
def _line_places(channels: int, height: int, width: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where the weights of every line belong: in a matrix from the grid to lines, and in one to cells.

    Both are int64 and count a matrix's numbers row by row: `[lines, 8, 4 * channels]` in one of
    `[lines * 8, cells * channels]`, and `[lines, 4, 4, 8]` in one of `[cells * 4, lines * 8]`.
    """
    corners = [(row, column) for row in range(height) for column in range(width)]
    along = [
        [(row + step * down) * width + column + step * right for step in range(_IN_LINE)]
        for row, column in corners
        for down, right in ((0, 1), (1, 0), (1, 1), (1, -1))
        if row + (_IN_LINE - 1) * down < height and 0 <= column + (_IN_LINE - 1) * right < width
    ]
    cells = np.array(along)
    hidden = np.arange(cells.size // _IN_LINE * _LINE_NUMBERS).reshape(-1, _LINE_NUMBERS)
    inputs = (cells[..., None] * channels + np.arange(channels)).reshape(len(cells), -1)
    outputs = cells[..., None] * _CELL_NUMBERS + np.arange(_CELL_NUMBERS)
    return (
        hidden[:, :, None] * (height * width * channels) + inputs[:, None],
        outputs[..., None] * hidden.size + hidden[:, None, None],
    )


def _spread(weights: Tensor, places: Tensor, rows: int, columns: int) -> Tensor:
    """Return a matrix `[rows, columns]` with a copy of the weights for each line at these places, and 0 elsewhere."""
    copies = weights.expand(places.shape).flatten()
    return weights.new_zeros(rows * columns).index_put((places.flatten(),), copies).view(rows, columns)


def init_residual(
    shape: Sequence[int], features: int, generator: torch.Generator, channels: Sequence[int] = (16, 32, 32)
) -> dict[str, Tensor]:
    """Return orthogonal weights and zero biases of IMPALA's residual network (Espeholt et al. 2018, figure 3, right).

    Args:
        shape: channels, height and width of an image.
        features: width of the output; 256 in the paper.
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
    """Apply the network of `init_residual`: `[B, C, H, W] -> [B, features]`, float32, none below 0."""
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
    """Convolve `scale` times the inputs; the kernel is scaled instead, which has far fewer numbers.

    A reduced snapshot may have wide kernels in bfloat16; on a CPU, convolving in that gains nothing.
    """
    weight = params[f"{name}.weight"].to(inputs.dtype)
    weight = weight if scale == 1.0 else weight * scale
    return conv2d(inputs, weight, params[f"{name}.bias"], stride=stride, padding=padding)


def init_gru(inputs: int, width: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Return orthogonal weights, gate by gate, and zero biases.

    Args:
        inputs: width of a step's input.
        width: width of the memory, which is the output.
        generator: the only source of randomness.

    Returns:
        float32 `input.weight` `[3 * width, inputs]`, `memory.weight` `[3 * width, width]`, and a bias of each. Gates in
        the order of torch's own: reset, update, new.
    """
    params: dict[str, Tensor] = {}
    for name, fan_in in (("input", inputs), ("memory", width)):
        gates = [torch.nn.init.orthogonal_(torch.empty(width, fan_in), generator=generator) for _ in range(3)]
        params[f"{name}.weight"] = torch.cat(gates)
        params[f"{name}.bias"] = torch.zeros(3 * width)
    return params


def gru(params: Mapping[str, Tensor], carry: Tensor, inputs: Tensor) -> Tensor:
    """Take one step: memory `[B, width]` and inputs `[B, inputs]` give the next memory, `[B, width]`."""
    from_inputs = linear(inputs, params["input.weight"], params["input.bias"])
    return _step(params, carry, from_inputs)


def gru_sequence(params: Mapping[str, Tensor], carry: Tensor, inputs: Tensor, fresh: Tensor) -> tuple[Tensor, Tensor]:
    """Take several steps, with the memory reset where an episode begins.

    Args:
        params: as `init_gru` makes them.
        carry: `[B, width]`, the memory before the first step.
        inputs: `[T, B, inputs]`.
        fresh: `[T, B]`, nonzero where the row is an episode's first.

    Returns:
        The output of every step, `[T, B, width]`, and the memory after the last, `[B, width]`.
    """
    from_inputs = linear(inputs.flatten(0, 1), params["input.weight"], params["input.bias"]).unflatten(0, fresh.shape)
    kept = (fresh == 0).to(carry.dtype).unsqueeze(-1)
    outputs = []
    for step in range(fresh.shape[0]):
        carry = _step(params, carry * kept[step], from_inputs[step])
        outputs.append(carry)
    return torch.stack(outputs), carry


def _step(params: Mapping[str, Tensor], carry: Tensor, from_inputs: Tensor) -> Tensor:
    reset, update, new = from_inputs.chunk(3, -1)
    memory_reset, memory_update, memory_new = linear(carry, params["memory.weight"], params["memory.bias"]).chunk(3, -1)
    candidate = torch.tanh(new + torch.sigmoid(reset + memory_reset) * memory_new)
    return torch.lerp(candidate, carry, torch.sigmoid(update + memory_update))


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

    Noise is factorised (Fortunato et al. 2017, arXiv 1706.10295). A layer with m inputs and n outputs has a mean and a
    scale of each weight, and its random weights are `weight + weight_noise * f(e_n) f(e_m)^T` (equations 10 and 11),
    with f(x) = sgn(x) sqrt(|x|). So its output is the layer's of the means, plus `f(e_n)` times the output of a layer
    of the scales for the inputs times `f(e_m)`.

    Every row has noise of its own: m + n numbers a layer. The paper draws one for a minibatch, which has the same mean
    gradient and a larger variance. With its own, a row's result is a function of the row, wherever it is computed.

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
