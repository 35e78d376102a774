"""A network for macro placement: from the netlist and the placed macros to a number for each cell. Pure torch.

An algorithm may import this. The netlist is in the environment's facts (documented at
`native.floorplan.load_environment`) and is processed once: soft macros, which are placed last, are eliminated, so that
their neighbours are tied directly, as springs through a free point are (the Schur complement of the graph's Laplacian).
The macros that the agent places and the fixed points remain.

For each state, messages pass over that graph; and maps hold, for each cell, the length of the current macro's ties
from there (Lai et al. 2022, arXiv 2211.13382, have such a map of wirelength), the neighbours' positions, the covered
area and the distance to the canvas's edge. The number for each cell is a sum of its maps, initially a rule that
floorplanners know (macros at the edge, near their neighbours), and of convolutions over the maps, shifted by the
current macro's message; pooled over the whole grid, these give the other outputs, such as a value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import conv2d, one_hot, relu

from penstock.tasks.model.nn.layers import init_mlp, linear, mlp, part

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from penstock.tasks.specs import Facts

_MAPS = 7
_SCALED_LENGTH, _EDGE = 0, 6
_FIRST_LENGTH_WEIGHT, _FIRST_EDGE_WEIGHT = -2.0, 20.0
"""Initial weights of the maps: macros near the canvas's edge, where ties are short. On Ariane133 this
alone costs 1.00 on average, where uniform choices cost 1.45 and the shortest ties 1.59; twice as much of it costs 0.98,
and explores so little that nothing is learned in 70,000 steps."""
_NODE_NUMBERS = 7
_PASSES = 2
_UNPLACED = 255
_HEAD = 3
"""Bytes before the positions: the block's number, and the number of placed macros."""


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """One block's graph. Lengths are relative to the canvas's sides."""

    ties: Tensor
    """`[macros, macros]`, of macros with each other; the mean of a macro's is 1 with those below."""
    mixing: Tensor
    """The same, each row adding up to 1 at most."""
    sizes: Tensor
    """`[macros, 4]`: width, height, root of the area, total ties, each 1 for the largest."""
    across: Tensor
    """`[macros, columns, columns]`: share of column c that the macro covers from column k."""
    up: Tensor
    """`[macros, rows, rows]`, likewise."""
    fixed: Tensor
    """`[macros, rows * columns]`: ties of each macro with fixed points, by their cell."""


def graphs_of(facts: Facts, device: torch.device | None = None) -> tuple[Graph, ...]:
    """Return the graphs of an environment's blocks, on a device; by default the CPU."""
    if device is not None and device.type != "cpu":
        return _graphs_on(facts, device)
    # Arrays are cached: a tensor would be of inference, or of an export's trace, if that came first.
    found = _arrays_of(facts)
    return tuple(Graph(**{name: torch.from_numpy(each) for name, each in arrays.items()}) for arrays in found)


@lru_cache(maxsize=8)
def _graphs_on(facts: Facts, device: torch.device) -> tuple[Graph, ...]:
    with torch.inference_mode(mode=False):  # acting may come first, and learning differentiates through the graph
        return tuple(
            Graph(**{field.name: getattr(graph, field.name).to(device) for field in fields(Graph)})
            for graph in graphs_of(facts)
        )


@lru_cache(maxsize=8)
def _arrays_of(facts: Facts) -> tuple[dict[str, NDArray[np.float32]], ...]:
    columns, rows = (int(number) for number in facts["grid"])
    blocks = range(int(facts["nodes"][:, 0].max()) + 1)
    return tuple(
        _block_arrays(
            facts["nodes"][facts["nodes"][:, 0] == block], facts["edges"][facts["edges"][:, 0] == block], columns, rows
        )
        for block in blocks
    )


def _block_arrays(
    nodes: NDArray[np.float64], edges: NDArray[np.float64], columns: int, rows: int
) -> dict[str, NDArray[np.float32]]:
    """Return the fields of a block's `Graph`."""
    kind, sizes, at = nodes[:, 1], nodes[:, 2:4], nodes[:, 4:6]
    weights = np.zeros((len(nodes), len(nodes)))
    one, two = edges[:, 1].astype(int), edges[:, 2].astype(int)
    weights[one, two] = weights[two, one] = edges[:, 3]
    soft, kept = np.flatnonzero(kind == 1), np.flatnonzero(kind != 1)
    reduced = weights[np.ix_(kept, kept)]
    if len(soft):
        # A soft macro without ties has no equilibrium position: a little weight keeps the system solvable.
        inner = np.diag(weights[soft].sum(1) + 1e-6) - weights[np.ix_(soft, soft)]
        reduced = reduced + weights[np.ix_(kept, soft)] @ np.linalg.solve(inner, weights[np.ix_(soft, kept)])
    np.fill_diagonal(reduced, 0.0)
    macros = int((kind == 0).sum())  # they come first
    reduced = np.maximum(reduced[:macros], 0.0)
    total = reduced.sum(1)
    reduced /= max(total.mean(), 1e-9)
    points = at[kept[macros:]]
    cells = np.minimum((points * (columns, rows)).astype(int), (columns - 1, rows - 1))
    fixed = np.zeros((macros, rows * columns))
    np.add.at(fixed.T, cells[:, 1] * columns + cells[:, 0], reduced[:, macros:].T)
    size = sizes[:macros]
    numbers = np.column_stack([size, np.sqrt(size.prod(1)), total])
    ties = reduced[:, :macros]
    found = {
        "ties": ties,
        "mixing": ties / max(reduced.sum(1).max(), 1e-9),
        "sizes": numbers / np.maximum(numbers.max(0), 1e-9),
        "across": _covered(size[:, 0] * columns, columns),
        "up": _covered(size[:, 1] * rows, rows),
        "fixed": fixed,
    }
    return {name: values.astype(np.float32) for name, values in found.items()}


def _covered(lengths: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """Return `[lengths, count, count]`: the share of cell c that an interval around the middle of cell k covers."""
    k, c = np.arange(count)[:, None] + 0.5, np.arange(count)[None, :]
    half = lengths[:, None, None] / 2
    covered: NDArray[np.float64] = np.maximum(np.minimum(k + half, c + 1) - np.maximum(k - half, c), 0.0)
    return covered


def init_floorplan(
    facts: Facts, channels: int, hidden: tuple[int, ...], outputs: int, gain: float, generator: torch.Generator
) -> dict[str, Tensor]:
    """Return orthogonal weights and zero biases.

    Args:
        facts: of the environment.
        channels: numbers of a node's message, and of a cell.
        hidden: widths of the perceptron after pooling over the grid.
        outputs: cells of the grid, then outputs of the whole grid; the latter alone if fewer than cells.
        gain: scale of the last layers; the rule's part does not depend on it.
        generator: the only source of randomness.
    """
    cells = int(facts["grid"].prod())
    params: dict[str, Tensor] = {}
    inputs = _NODE_NUMBERS
    for step in range(_PASSES):
        params |= _named(f"node{step}.", init_mlp((2 * inputs, channels), math.sqrt(2.0), generator))
        inputs = channels
    params |= _named("state.", init_mlp((2 * channels + _NODE_NUMBERS + 1, channels), math.sqrt(2.0), generator))
    params |= _convolution("map0", channels, _MAPS, generator)
    params |= _convolution("map1", channels, channels, generator)
    if outputs >= cells:
        params |= _named("cell.", init_mlp((channels, 1), gain, generator))
        rule = torch.zeros(_MAPS)
        rule[_SCALED_LENGTH], rule[_EDGE] = _FIRST_LENGTH_WEIGHT, _FIRST_EDGE_WEIGHT
        params["rule.weight"] = rule
    if outputs % cells:
        widths = (3 * channels, *hidden, outputs % cells)
        params |= _named("whole.", init_mlp(widths, gain if outputs < cells else 1.0, generator))
    return params


def _named(prefix: str, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}{name}": value for name, value in params.items()}


def _convolution(name: str, to: int, of: int, generator: torch.Generator) -> dict[str, Tensor]:
    weight = torch.empty(to, of, 3, 3)
    torch.nn.init.orthogonal_(weight, math.sqrt(2.0), generator=generator)
    return {f"{name}.weight": weight, f"{name}.bias": torch.zeros(to)}


def floorplan(params: Mapping[str, Tensor], facts: Facts, observation: Tensor) -> Tensor:
    """Apply the network of `init_floorplan` to unmasked bytes `[B, 3 + 2 * macros]`: float32 `[B, outputs]`."""
    graphs = graphs_of(facts, observation.device)
    columns, rows = (int(number) for number in facts["grid"])
    if len(graphs) == 1:
        return _of_block(params, graphs[0], observation, columns, rows)
    found: Tensor | None = None
    for number, graph in enumerate(graphs):
        chosen = (observation[:, 0] == number).nonzero().squeeze(1)
        if len(chosen):
            part_ = _of_block(params, graph, observation[chosen], columns, rows)
            if found is None:
                found = part_.new_zeros(observation.shape[0], part_.shape[1])
            found = found.index_copy(0, chosen, part_)
    if found is None:
        raise ValueError("no row has a block of the facts; expected block numbers below the number of blocks")
    return found


def _of_block(params: Mapping[str, Tensor], graph: Graph, observation: Tensor, columns: int, rows: int) -> Tensor:
    macros = len(graph.sizes)
    observation = observation.long()
    at = observation[:, _HEAD : _HEAD + 2 * macros].unflatten(1, (macros, 2))
    placed = (at[..., 0] != _UNPLACED).float()
    column, row = at[..., 0].clamp(max=columns - 1), at[..., 1].clamp(max=rows - 1)
    # After the last macro there is no current one; that observation is never acted on.
    current = (observation[:, 1] + 256 * observation[:, 2]).clamp(max=macros - 1)
    nodes = _nodes(graph, column / columns, row / rows, placed, current)
    message = nodes
    for step in range(_PASSES):
        both = torch.cat([message, graph.mixing @ message], -1)
        message = relu(linear(both, params[f"node{step}.0.weight"], params[f"node{step}.0.bias"]))
    # Of tensors the shape is asked, and not `len`: an export traces the former alone.
    every = torch.arange(observation.shape[0], device=observation.device)
    state = torch.cat(
        [message[every, current], message.mean(1), nodes[every, current], placed.mean(1, keepdim=True)], 1
    )
    state = relu(linear(state, params["state.0.weight"], params["state.0.bias"]))
    maps = _maps(graph, column, row, placed, current, columns, rows)
    hidden = relu(_convolve(params, "map0", maps) + state[:, :, None, None])
    hidden = relu(_convolve(params, "map1", hidden))
    outputs = []
    if "cell.0.weight" in params:
        cell = linear(hidden.movedim(1, -1), params["cell.0.weight"], params["cell.0.bias"])
        by_rule = torch.einsum("bmrc,m->brc", maps, params["rule.weight"].to(maps.dtype))
        outputs.append(cell.flatten(1) + by_rule.flatten(1))
    if whole := part(params, "whole."):
        outputs.append(mlp(whole, torch.cat([hidden.mean((2, 3)), hidden.amax((2, 3)), state], 1)))
    return torch.cat(outputs, 1)


def _nodes(graph: Graph, x: Tensor, y: Tensor, placed: Tensor, current: Tensor) -> Tensor:
    """Return `[B, macros, numbers]`: size, ties, position if placed, whether it is placed, whether it is current."""
    sizes = graph.sizes[:, [0, 1, 3]].expand(x.shape[0], -1, -1)
    is_current = one_hot(current, x.shape[1]).float()
    return torch.cat([sizes, torch.stack([x * placed, y * placed, placed, is_current], -1)], -1)


def _maps(
    graph: Graph, column: Tensor, row: Tensor, placed: Tensor, current: Tensor, columns: int, rows: int
) -> Tensor:
    """Compute the maps, `[B, maps, rows, columns]`."""
    pull = graph.ties[current] * placed
    tied = graph.fixed[current].scatter_add(1, row * columns + column, pull).unflatten(1, (rows, columns))
    length = _distances(tied.sum(1), columns)[:, None, :] + _distances(tied.sum(2), rows)[:, :, None]
    length = length - length.mean((1, 2), keepdim=True)
    scaled = length / (length.square().mean((1, 2), keepdim=True).sqrt() + 1e-3)
    device = column.device
    every = torch.arange(column.shape[1], device=device)
    across = graph.across[every, column] * placed[..., None]
    covered = torch.einsum("bmr,bmc->brc", graph.up[every, row], across)
    x = torch.linspace(-1.0, 1.0, columns, device=device).expand(column.shape[0], rows, columns)
    y = torch.linspace(-1.0, 1.0, rows, device=device)[:, None].expand(column.shape[0], rows, columns)
    return torch.stack([scaled, length, (4.0 * tied).clamp(max=4.0), covered, x, y, torch.maximum(x.abs(), y.abs())], 1)


def _distances(weights: Tensor, count: int) -> Tensor:
    """Return `[B, count]`: each cell's weighted distance from all cells of a side, relative to its length."""
    cells = torch.arange(count, dtype=torch.float32, device=weights.device)
    return weights @ ((cells[:, None] - cells[None, :]).abs() / count)


def _convolve(params: Mapping[str, Tensor], name: str, inputs: Tensor) -> Tensor:
    """Convolve in the inputs' type: a reduced snapshot may have bfloat16 kernels, which gain nothing on a CPU."""
    weight = params[f"{name}.weight"].to(inputs.dtype)
    return conv2d(inputs, weight, params[f"{name}.bias"], padding=1)
