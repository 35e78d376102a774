"""Captures a loss and its gradient as a program of kernels' operations, which later minibatches run without Python.

A small minibatch takes longer in Python than in its kernels, and between two kernels other threads of the process take
the interpreter. So the operations that a loss and its gradient have called are kept, with the addresses of what they
read and wrote, and run again with those of other rows: the same operations in the same order, hence the same bytes.

That holds for a loss which is made of such operations alone. Whatever else torch computes while it is captured (but for
views and fresh memory) ends the capture, and so does a total that is read as a Python number; the loss is then
computed as before. A target that is read as a number, as schedules' counters are, is remembered: the program holds
while it is the same. A loss is a pure function of its arguments (`algorithms.contract`), so nothing else can change.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from penstock.native import _learner

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from torch import Tensor

_HARMLESS = {
    "aten::alias",
    "aten::as_strided",
    "aten::detach",
    "aten::empty.memory_format",
    "aten::empty_like",
    "aten::expand",
    "aten::permute",
    "aten::select.int",
    "aten::slice.Tensor",
    "aten::split.Tensor",
    "aten::split_with_sizes",
    "aten::squeeze",
    "aten::squeeze.dim",
    "aten::t",
    "aten::transpose.int",
    "aten::unsqueeze",
    "aten::view",
    "aten::_reshape_alias",
    "aten::_unsafe_view",
}
"""Operations of torch that a capture may leave out: views, and memory that an operation fills."""

_FRESH = {"aten::empty.memory_format", "aten::empty_like"}

_SAME = {"aten::add.Tensor": "add", "aten::sub.Tensor": "subtract", "aten::mul.Tensor": "multiply"}
"""Sums, differences and products of tensors of one shape, which an operation computes to the same bit."""
_WITH_NUMBER = {"aten::add.Tensor": "shift", "aten::mul.Tensor": "scale"}
"""The same of a tensor and a Python number."""

_READ = "aten::_local_scalar_dense"
"""The operation by which a tensor becomes a Python number."""

_LEAVING = {torch.Tensor.numpy, torch.Tensor.tolist, torch.Tensor.__array__}

_FLAT, _OUTPUTS, _TOTALS = range(3)
"""The first slots of a program: the gradient, the row outputs, the totals; noise and the columns follow."""


class Capture:
    """The operations of one evaluation of a loss and its gradient."""

    def __init__(self, targets: Iterable[Tensor] = ()) -> None:
        self.read: list[tuple[Tensor, float]] = []
        """Targets that the loss has read as Python numbers, and the numbers."""
        self._targets = {each.data_ptr(): each for each in targets if each.dim() == 0}
        self.why: str | None = None
        """The reason why the loss can't be captured; None so far."""
        self.made: set[int] = set()
        """Addresses of tensors that were made since it began."""
        self._steps: list[tuple[int, Sequence[Tensor | None], Sequence[int], Sequence[float], Any]] = []

    def add(
        self,
        operation: int,
        tensors: Sequence[Tensor | None],
        sizes: Sequence[int],
        numbers: Sequence[float],
        network: _learner.Network | None,
    ) -> None:
        """Keep an operation that has been called."""
        self._steps.append((operation, tuple(tensors), tuple(sizes), tuple(numbers), network))

    def reads(self, tensor: Tensor) -> bool:
        """Remember a tensor that is read as a Python number, if it is a target; returns whether it is."""
        target = self._targets.get(tensor.data_ptr())
        if target is None or target.dtype != tensor.dtype:
            return False
        self.read.append((target, target.item()))
        return True

    def fail(self, why: str) -> None:
        """Give the capture up: the loss is computed as before."""
        self.why = self.why or why

    def finish(
        self,
        level: int,
        gradient: Tensor,
        outputs: Mapping[str, Tensor],
        inputs: Sequence[Tensor | None],
        fixed: Iterable[Tensor],
    ) -> CapturedLoss | None:
        """Return what has been captured; None if the loss can't be.

        Args:
            level: of the kernels.
            gradient: which the tape has returned.
            outputs: of the loss, by name.
            inputs: the totals' vector, noise (None for a loss without), and the columns.
            fixed: parameters and targets, which stay where they are.
        """
        found = list(outputs.values())
        addresses = {each.data_ptr() for each in (*found, *(each for each in inputs if each is not None))}
        if len(addresses) < len(found) + sum(each is not None for each in inputs) or not all(map(_is_own, found)):
            self.fail("an output is not a tensor of its own")
        if not self.made.issuperset(each.data_ptr() for each in found):
            self.fail("an output was there before the loss was called")
        if len({each.shape for each in found}) > 1:
            self.fail("outputs differ in their lengths")
        if any(each is not None and not each.is_contiguous() for each in inputs):
            self.fail("a column is not contiguous")
        if self.why is not None or not self._steps:
            return None
        ranges = [(gradient.data_ptr(), gradient.nbytes, _FLAT, 0)]
        ranges += [(each.data_ptr(), each.nbytes, _OUTPUTS, n * each.nbytes) for n, each in enumerate(found)]
        ranges += [(each.data_ptr(), each.nbytes, _TOTALS + n, 0) for n, each in enumerate(inputs) if each is not None]
        steps = [
            (operation, [_place(each, ranges) for each in tensors], sizes, numbers, network)
            for operation, tensors, sizes, numbers, network in self._steps
        ]
        written = {place for _, places, *_ in steps for place in places if place[0] == _OUTPUTS}
        if len(written) < len(found):
            self.fail("an output is not computed by a kernel")
            return None
        program = _learner.Program(level, steps, _TOTALS + len(inputs))
        kept = [
            tensor
            for (_, places, *_), (_, tensors, *_) in zip(steps, self._steps, strict=True)
            for (slot, _), tensor in zip(places, tensors, strict=True)
            if slot < 0 and tensor is not None
        ]
        return CapturedLoss(program, tuple(outputs), len(found[0]) if found else 0, kept, fixed, self.read)


class CapturedLoss:
    """A loss and its gradient as a program, for any rows of the number and the types of those that it was made with."""

    def __init__(
        self,
        program: _learner.Program,
        outputs: tuple[str, ...],
        rows: int,
        kept: list[Tensor],
        fixed: Iterable[Tensor],
        read: Sequence[tuple[Tensor, float]],
    ) -> None:
        self._program, self._outputs, self._rows, self._kept = program, outputs, rows, kept
        self._addresses, self._read = _addresses(fixed), read
        self.runs = 0
        """Calls of `run`."""

    def holds(self, fixed: Iterable[Tensor]) -> bool:
        """Return whether parameters and targets are where they were, and numbers that were read are as they were.

        Args:
            fixed: parameters and targets of the present state, which may be another object than the one captured.
        """
        return self._addresses == _addresses(fixed) and all(target.item() == number for target, number in self._read)

    def run(
        self, parameters: int, totals: Tensor, noise: Tensor | None, rows: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the gradient `[parameters]` and the row outputs `[rows]` by name.

        Args:
            parameters: the number of the group's.
            totals: the vector of a round's totals.
            noise: contiguous, if the loss needs some.
            rows: contiguous columns, in the order of those that it was made with.

        Raises:
            IndexError: an action is none of the choices.
        """
        self.runs += 1
        gradient, outputs = torch.empty(parameters), torch.empty(len(self._outputs), self._rows)
        addresses = [
            gradient.data_ptr(),
            outputs.data_ptr(),
            totals.data_ptr(),
            0 if noise is None else noise.data_ptr(),
        ]
        addresses += [column.data_ptr() for column in rows.values()]
        self._program.run(addresses)
        return gradient, dict(zip(self._outputs, outputs.unbind(0), strict=True))


def _addresses(fixed: Iterable[Tensor]) -> list[int]:
    return [each.data_ptr() for each in fixed]


class _Watch(TorchDispatchMode):
    """Has operations compute what they can of what torch is asked for, and ends the capture at anything else."""

    def __init__(self, capture: Capture) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._capture = capture

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Otherwise torch hides `__torch_dispatch__` from torch.compile, which nothing here calls, and imports the
        # compiler for that at the first operation: with sympy and ONNX about 1,000 modules and 90 MB.
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name()
        is_known = name in _HARMLESS or (name == _READ and self._capture.reads(args[0]))
        if not is_known and self._capture.why is None:
            found = None if kwargs else self._computed(name, args)
            if found is not None:
                self._capture.made.add(found.data_ptr())
                return found
            self._capture.fail(f"torch computes {name}")
        result = func(*args, **(kwargs or {}))
        if name in _FRESH:
            self._capture.made.add(result.data_ptr())
        return result

    def _computed(self, name: str, args: Sequence[Any]) -> Tensor | None:
        """Return what an operation has computed in torch's place; None if there is none for these arguments."""
        first, second = args[0], args[1] if len(args) > 1 else None
        if len(args) > 3 or not _is_plain(first):
            return None
        found = torch.empty(first.shape)
        count = (first.numel(),)
        if name == "aten::gather":
            places = args[2]
            is_read = places.dtype is torch.int64 and places.is_contiguous()
            if second not in (-1, 1) or places.shape != (len(first), 1) or not is_read:
                return None
            found = torch.empty(len(first), 1)
            self._run("gather", (first, places, found), first.shape)
        elif isinstance(second, torch.Tensor):
            if not (_is_plain(second) and second.shape == first.shape and name in _SAME):
                return None
            self._run(_SAME[name], (first, second, found), count)
        elif name in _WITH_NUMBER and isinstance(second, float | int) and len(args) == 2:
            self._run(_WITH_NUMBER[name], (first, found), count, (float(second),))
        elif name == "aten::abs":
            self._run("magnitude", (first, found), count)
        elif name == "aten::neg":
            self._run("scale", (first, found), count, (-1.0,))
        elif name == "aten::argmax" and tuple(args[1:]) == (-1,) and first.dim() == 2 and first.numel():
            found = torch.empty(len(first), dtype=torch.int64)
            self._run("argmax", (first, found), first.shape)
        else:
            return None
        return found

    def _run(self, name: str, tensors: Sequence[Tensor], sizes: Sequence[int], numbers: Sequence[float] = ()) -> None:
        operation = _learner.OPERATIONS[name]
        _learner.call(0, operation, [each.data_ptr() for each in tensors], sizes, numbers, None)
        self._capture.add(operation, tensors, sizes, numbers, None)


class _WatchLeaving(TorchFunctionMode):
    """Ends a capture where numbers leave torch: what is computed from them is not seen."""

    def __init__(self, capture: Capture) -> None:
        super().__init__()
        self._capture = capture

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _LEAVING:
            self._capture.fail(f"it calls {func.__name__}")
        return func(*args, **(kwargs or {}))


def _is_plain(tensor: Any) -> bool:
    is_tensor = isinstance(tensor, torch.Tensor)
    return is_tensor and tensor.dtype is torch.float32 and tensor.is_cpu and tensor.is_contiguous()


_threads = threading.local()


def current_capture() -> Capture | None:
    """Return this thread's capture; None if there is none."""
    return getattr(_threads, "capture", None)


@contextmanager
def capturing(capture: Capture) -> Iterator[None]:
    """Tell a capture of every operation of this thread, and of what torch computes by itself."""
    _threads.capture = capture
    try:
        with _WatchLeaving(capture), _Watch(capture):
            yield
    finally:
        _threads.capture = None


def _is_own(output: Tensor) -> bool:
    """Return whether a tensor of float32 numbers is the whole of its memory."""
    storage = output.untyped_storage()
    is_whole = storage.data_ptr() == output.data_ptr() and storage.nbytes() == output.nbytes
    return output.dtype is torch.float32 and output.dim() == 1 and output.is_contiguous() and is_whole


def _place(tensor: Tensor | None, ranges: Sequence[tuple[int, int, int, int]]) -> tuple[int, int]:
    """Return the slot and the offset of a tensor; -1 and its address if it stays where it is."""
    if tensor is None:
        return -1, 0
    address = tensor.data_ptr()
    for start, nbytes, slot, offset in ranges:
        if start <= address < start + nbytes:
            return slot, address - start + offset
    return -1, address
