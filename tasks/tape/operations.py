"""Calls the operations of the learner's kernels on tensors, and tells a capture of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.native import _learner
from penstock.tasks.tape.capture import current_capture

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def call(
    level: int,
    name: str,
    tensors: Sequence[Tensor | None],
    sizes: Sequence[int],
    numbers: Sequence[float] = (),
    network: _learner.Network | None = None,
) -> None:
    """Run one operation; `native/src/learner/operations.cpp` says what each takes.

    Args:
        level: number of the kernels' level.
        name: of the operation.
        tensors: contiguous, on the CPU, of the types that it takes; None where it may have none.
        sizes: of the tensors.
        numbers: constants.
        network: of a perceptron's operations.

    Raises:
        IndexError: an action is none of the choices.
    """
    operation = _learner.OPERATIONS[name]
    addresses = [0 if tensor is None else tensor.data_ptr() for tensor in tensors]
    _learner.call(level, operation, addresses, sizes, numbers, network)
    capture = current_capture()
    if capture is not None:
        capture.add(operation, tensors, sizes, numbers, network)
