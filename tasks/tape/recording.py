"""Differentiates a loss with respect to one group of parameters, through autograd and through kernels.

A kernel's outputs are leaves for autograd, so that its graph holds only what an algorithm computes with torch. The tape
keeps the kernels' calls in order and goes back through them in reverse. A torch.autograd.Function for each call would
give the same gradients; at small minibatches it takes longer than the kernel.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from penstock.tasks.tape.operations import call

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from torch import Tensor

    from penstock.native._learner import Network

_ONE = torch.ones(())


class Parameters(Protocol):
    """The group of parameters that a loss is differentiated with respect to, as `tasks.specs.ParameterGroup` is."""

    flat: Tensor
    leaves: tuple[Tensor, ...]
    networks: dict[Hashable, Any]

    def __iter__(self) -> Iterator[str]: ...

    def __getitem__(self, name: str, /) -> Tensor: ...

    def place_of(self, tensor: Tensor) -> int | None:
        """Return where one of the leaves begins in the vector; None if the tensor is none of them."""


@dataclass(slots=True)
class _Call:
    """A kernel's call: `back` takes the gradients of its outputs, and returns those of its inputs, or None for one."""

    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]
    back: Callable[[Sequence[Tensor | None]], Sequence[Tensor | None]]


class _Root:
    """A tensor that torch has computed, with its gradient; None: that of the loss itself."""

    def __init__(self, tensor: Tensor, gradient: Tensor | None) -> None:
        self.tensor, self.gradient = tensor, gradient
        self._below: set[int] | None = None

    def needs(self, outputs: Sequence[Tensor]) -> bool:
        """Return whether it was computed from one of a kernel's outputs."""
        if self._below is None:
            self._below = _leaves_below(self.tensor)
        return not self._below.isdisjoint(map(id, outputs))


def _leaves_below(tensor: Tensor) -> set[int]:
    """Return the ids of the tensors at which autograd's graph of a tensor ends."""
    seen, waiting, found = set(), [tensor.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if (leaf := getattr(node, "variable", None)) is not None:
            found.add(id(leaf))
        waiting += [each for each, _ in node.next_functions]
    return found


class Tape:
    """The calls of kernels in one evaluation of a loss, by one thread.

    Args:
        group: the parameters with respect to which the loss is differentiated.
    """

    def __init__(self, group: Parameters) -> None:
        self._group = group
        self._calls: list[_Call] = []
        self._flat: Tensor | None = None
        self._reached: set[int] = set()

    def __len__(self) -> int:
        return len(self._calls)

    def network(
        self,
        number: int,
        parameters: Sequence[Tensor],
        relu: bool,
        make: Callable[[int, Sequence[Tensor], bool], Network | None],
    ) -> Network | None:
        """Return `make`'s network, which the group keeps if the parameters are its own; None if torch has to compute.

        The group's must lie one after the other in its vector, as `init_mlp` orders them.
        """
        key = (number, relu, *map(id, parameters))
        kept: Network | None = self._group.networks.get(key)
        if kept is not None:
            return kept
        network = make(number, parameters, relu)
        own = [self._group.place_of(parameter) for parameter in parameters]
        if network is None or all(place is None for place in own):
            return network if all(not each.requires_grad or each.is_leaf for each in parameters) else None
        place = own[0]
        for parameter, found in zip(parameters, own, strict=True):
            if found is None or found != place:
                return None
            place = found + parameter.numel()
        self._group.networks[key] = network
        return network

    def record(
        self,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        back: Callable[[Sequence[Tensor | None]], Sequence[Tensor | None]],
    ) -> None:
        """Keep a kernel's call if an input requires a gradient; its outputs then do.

        Args:
            inputs: tensors that the kernel differentiates with respect to.
            outputs: fresh tensors that it has computed.
            back: returns the inputs' gradients, or None, given those of the outputs; None for one that nothing used.
        """
        if any(each.requires_grad for each in inputs):
            for each in outputs:
                each.requires_grad_()
            self._calls.append(_Call(inputs, outputs, back))

    def record_network(
        self, network: Network, parameters: Sequence[Tensor], inputs: Tensor, saved: Tensor, outputs: Tensor
    ) -> None:
        """Keep the call of a perceptron, whose kernel adds to the group's gradient by itself."""
        first = self._group.place_of(parameters[0])
        if first is None and not inputs.requires_grad:
            return

        def back(gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
            (to_outputs,) = gradients
            assert to_outputs is not None
            to_inputs = torch.empty_like(inputs, requires_grad=False) if inputs.requires_grad else None
            self._run_back(network, first, parameters, inputs, saved, to_outputs.contiguous(), to_inputs)
            return (to_inputs,)

        outputs.requires_grad_()
        self._calls.append(_Call((inputs,), (outputs,), back))

    def gradient(self, loss: Tensor) -> Tensor:
        """Return the gradient `[P]` of a scalar, in the order of the group's vector.

        Raises:
            RuntimeError: the loss does not depend on one of the group's tensors, or is no scalar.
        """
        leaves = self._group.leaves
        if loss.numel() != 1:
            raise RuntimeError(
                f"the loss has the shape {list(loss.shape)}, expected one number: return `batch.mean` of its values"
            )
        if not self._calls:
            parts = torch.autograd.grad(loss, leaves, allow_unused=True)
            self._reached = {id(leaf) for leaf, part in zip(leaves, parts, strict=True) if part is not None}
            self._check_reached()
            return torch.cat([part.reshape(-1) for part in parts])
        self._flat = torch.empty_like(self._group.flat)
        call(0, "fill", (self._flat,), (self._flat.numel(),), (0.0,))
        sums: dict[int, Tensor] = {}
        roots: list[_Root] = []
        if loss.grad_fn is None:
            sums[id(loss)] = _ONE
        else:
            roots.append(_Root(loss, None))
        for index in range(len(self._calls) - 1, -1, -1):
            kept = self._calls[index]
            if any(root.needs(kept.outputs) for root in roots):
                self._go_back(roots, index + 1, sums)
                roots = []
            gradients = [sums.pop(id(each), None) for each in kept.outputs]
            if all(each is None for each in gradients):
                continue
            for each, value in zip(kept.inputs, kept.back(gradients), strict=True):
                if value is not None and each.requires_grad:
                    _add(sums, each, value)
            for each in kept.inputs:
                # What torch has computed from earlier outputs; an output itself has its sum already.
                if each.grad_fn is not None and (value := sums.pop(id(each), None)) is not None:
                    roots.append(_Root(each, value))
        if roots:
            self._go_back(roots, 0, sums)
        for leaf in leaves:
            if (value := sums.pop(id(leaf), None)) is not None:
                self._add_leaf(leaf, value)
        self._check_reached()
        return self._flat

    def _check_reached(self) -> None:
        if len(self._reached) < len(self._group.leaves):
            missing = [name for name in self._group if id(self._group[name]) not in self._reached]
            raise RuntimeError(f"the loss does not depend on {', '.join(missing)}, which it trains")

    def _run_back(
        self,
        network: Network,
        first: int | None,
        parameters: Sequence[Tensor],
        inputs: Tensor,
        saved: Tensor,
        to_outputs: Tensor,
        to_inputs: Tensor | None,
    ) -> None:
        """Run a perceptron's kernel backwards; parameters that another call had before get the sum."""
        assert self._flat is not None
        target = None
        if first is not None:
            own = {id(each) for each in parameters}
            is_first = self._reached.isdisjoint(own)
            target = self._flat[first : first + network.parameters] if is_first else torch.empty(network.parameters)
            self._reached |= own
        tensors = (inputs, saved, to_outputs, target, to_inputs)
        call(0, "backward", tensors, (inputs.shape[0],), network=network)
        if first is not None and target is not None and not is_first:
            _add_in_place(self._flat[first : first + network.parameters], target)

    def _go_back(self, roots: Sequence[_Root], calls: int, sums: dict[int, Tensor]) -> None:
        """Add what autograd gives to the gradients of the first calls' outputs and of the leaves that it reaches.

        A network that torch computes, and whose output several kernels read, is gone back through once.
        """
        outputs = [each for kept in self._calls[:calls] for each in kept.outputs]
        found = torch.autograd.grad(
            [root.tensor for root in roots],
            [*outputs, *self._group.leaves],
            [root.gradient for root in roots],
            retain_graph=True,
            allow_unused=True,
        )
        for each, value in zip(outputs, found, strict=False):
            if value is not None:
                _add(sums, each, value)
        for leaf, value in zip(self._group.leaves, found[len(outputs) :], strict=True):
            if value is not None:
                self._add_leaf(leaf, value)

    def _add_leaf(self, leaf: Tensor, value: Tensor) -> None:
        place = self._group.place_of(leaf)
        assert place is not None
        assert self._flat is not None
        _add_in_place(self._flat[place : place + leaf.numel()], value.reshape(-1))
        self._reached.add(id(leaf))


def _add(sums: dict[int, Tensor], tensor: Tensor, value: Tensor) -> None:
    before = sums.get(id(tensor))
    if before is None:
        sums[id(tensor)] = value
    elif _is_plain(before) and _is_plain(value):
        total = torch.empty(before.shape)
        call(0, "add", (before, value, total), (before.numel(),))
        sums[id(tensor)] = total
    else:
        sums[id(tensor)] = before + value


def _add_in_place(target: Tensor, value: Tensor) -> None:
    if _is_plain(value):
        call(0, "add", (target, value, target), (target.numel(),))
    else:
        target += value


def _is_plain(tensor: Tensor) -> bool:
    return tensor.dtype is torch.float32 and tensor.is_cpu and tensor.is_contiguous()


def factor_of(gradient: Tensor | None) -> float:
    """Return the gradient of a scalar as a number: 1 for that of the loss itself, 0 if there is none."""
    if gradient is _ONE:
        return 1.0
    return 0.0 if gradient is None else gradient.item()


_threads = threading.local()


def current_tape() -> Tape | None:
    """Return this thread's tape; None if it records none."""
    return getattr(_threads, "tape", None)


@contextmanager
def recording(tape: Tape | None) -> Iterator[None]:
    """Record this thread's calls of kernels that the group's gradient depends on; None records nothing."""
    before = current_tape()
    _threads.tape = tape
    try:
        yield
    finally:
        _threads.tape = before
