"""A recurrent core as pure functions of named parameters. Pure torch; an algorithm may import this.

A gated recurrent unit (Cho et al. 2014, arXiv 1406.1078): its memory is one vector, which is the `carry` of `act`.
`docs/algorithm.md` says how it travels: the runtime starts it anew after an episode's end, and rows store what it was
before each step, so that learning can begin at any of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tasks.networks import linear

if TYPE_CHECKING:
    from collections.abc import Mapping


def init_gru(inputs: int, width: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Orthogonal weights, gate by gate, and zero biases.

    Args:
        inputs: numbers that come in at a step.
        width: numbers of the memory, which is what comes out.
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
    """One step: memory `[B, width]` and inputs `[B, inputs]` give the next memory, `[B, width]`."""
    from_inputs = linear(inputs, params["input.weight"], params["input.bias"])
    return _step(params, carry, from_inputs)


def gru_sequence(params: Mapping[str, Tensor], carry: Tensor, inputs: Tensor, fresh: Tensor) -> tuple[Tensor, Tensor]:
    """Several steps, with the memory emptied where an episode begins.

    Args:
        params: as `init_gru` makes them.
        carry: `[B, width]`, the memory before the first step.
        inputs: `[T, B, inputs]`.
        fresh: `[T, B]`, nonzero where the row is an episode's first.

    Returns:
        What comes out of every step, `[T, B, width]`, and the memory after the last, `[B, width]`.
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
