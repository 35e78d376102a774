"""Any `torch.nn.Module` as a pure function of named parameters. Pure torch; an algorithm may import this."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.func import functional_call

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor
    from torch.nn import Module


def seeded_module(make: Callable[[], Module], seed: int) -> Module:
    """Make a module whose weights are a function of the seed; torch's global generator is restored.

    Raises:
        ValueError: the module has buffers, such as the running means of a batch norm: they are state outside `State`.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = make()
    buffers = [name for name, _ in module.named_buffers()]
    if buffers:
        raise ValueError(
            f"{type(module).__name__} keeps {', '.join(buffers)} in buffers, expected parameters alone: a forward pass "
            f"must change nothing. Use layers without running statistics, such as LayerNorm or GroupNorm"
        )
    return module.eval()


def module_parameters(module: Module) -> dict[str, Tensor]:
    """Copy a module's parameters by name, for a `ParameterGroup`."""
    return {name: value.detach().clone() for name, value in module.named_parameters()}


def module_call(module: Module, params: Mapping[str, Tensor], *inputs: Tensor) -> Any:
    """Call a module with these parameters in place of its own, which are not changed.

    The module gives the structure alone. Weights of another type (a reduced snapshot has bfloat16) are converted to the
    type of the module's own.

    Raises:
        RuntimeError: names are missing or unknown.
    """
    own = dict(module.named_parameters())
    given = {name: value.to(own[name].dtype) if name in own else value for name, value in params.items()}
    return functional_call(module, given, inputs, strict=True)
