"""The last step to the device: host memory that is used again and again, and copies on a stream of their own.

Pinned memory is dear to allocate and needed for a copy that runs beside the learner's kernels, so buffers are kept and
reused. On the CPU nothing has to be copied; but the same code runs there with a CPU as the device, which tests use.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray
    from torch import Tensor

_ALIGNMENT_BYTES = 64
_SMALLEST_BYTES = 64 << 10


class StagingBuffer:
    """A piece of host memory that somebody uses, or did until an event."""

    __slots__ = ("event", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        """uint8 `[capacity]`."""
        self.event: torch.cuda.Event | None = None
        """After it the memory may be written again; None: at once."""

    @property
    def capacity_bytes(self) -> int:
        """How much fits."""
        return self.tensor.numel()

    @property
    def view(self) -> memoryview:
        """The memory, writable."""
        memory: NDArray[Any] = self.tensor.numpy()
        return memory.data


class StagingBuffers:
    """Buffers by need, kept for the next one. Safe for threads.

    Together they hold no more than the budget, unless what is in use at once exceeds it: idle ones go first.

    Attributes:
        allocated_bytes: of all buffers, in use and idle.
        allocations: how often memory was allocated.
        uses: how often a buffer was asked for.
    """

    def __init__(self, budget_bytes: int, *, pinned: bool) -> None:
        self._budget_bytes = budget_bytes
        self._pinned = pinned
        self._lock = threading.Lock()
        self._idle: list[StagingBuffer] = []
        self._closed = False
        self.allocated_bytes = 0
        self.allocations = 0
        self.uses = 0

    def acquire(self, nbytes: int) -> StagingBuffer:
        """A buffer of at least so many bytes, 64-byte aligned; its content is whatever it was.

        Waits for a copy only where another buffer would exceed the budget.
        """
        capacity_bytes = self.capacity_bytes(nbytes)
        with self._lock:
            self.uses += 1
            fitting = sorted(
                (buffer for buffer in self._idle if buffer.capacity_bytes >= capacity_bytes),
                key=lambda buffer: buffer.capacity_bytes,
            )
            chosen = next((buffer for buffer in fitting if buffer.event is None or buffer.event.query()), None)
            if chosen is None and fitting and self.allocated_bytes + capacity_bytes > self._budget_bytes:
                chosen = fitting[0]
            if chosen is not None:
                self._idle.remove(chosen)
            else:
                self._make_room(capacity_bytes)
                self.allocated_bytes += capacity_bytes
                self.allocations += 1
        if chosen is None:
            return self._allocate(capacity_bytes)
        if chosen.event is not None:
            chosen.event.synchronize()
            chosen.event = None
        return chosen

    def release(self, buffer: StagingBuffer, event: torch.cuda.Event | None = None) -> None:
        """Give a buffer back, to be used again once the event has happened; doing it again at once does nothing."""
        with self._lock:
            if self._closed or buffer in self._idle:
                return
            buffer.event = event
            self._idle.append(buffer)

    def close(self) -> None:
        """Let go of idle buffers, and of those to come: no others will be asked for."""
        with self._lock:
            self._closed = True
            self._idle.clear()

    def capacity_bytes(self, nbytes: int) -> int:
        """Of the buffer for so many bytes: rounded up, so that objects of nearly the same size share buffers."""
        power = max(_SMALLEST_BYTES, 1 << max(0, nbytes - 1).bit_length())
        # Torch allocates pinned memory in powers of two in any case; elsewhere steps are an eighth of one.
        step = power if self._pinned else max(_SMALLEST_BYTES, power >> 3)
        return max(step, -(-nbytes // step) * step)

    def _allocate(self, capacity_bytes: int) -> StagingBuffer:
        try:
            return StagingBuffer(torch.empty(capacity_bytes, dtype=torch.uint8, pin_memory=self._pinned))
        except BaseException:
            with self._lock:
                self.allocated_bytes -= capacity_bytes
                self.allocations -= 1
            raise

    def _make_room(self, capacity_bytes: int) -> None:
        while self._idle and self.allocated_bytes + capacity_bytes > self._budget_bytes:
            buffer = self._idle.pop(0)
            if buffer.event is not None:
                buffer.event.synchronize()
            self.allocated_bytes -= buffer.capacity_bytes


@dataclass(frozen=True, slots=True)
class Arrival:
    """Columns on the device, or on their way to it."""

    tensors: dict[str, Tensor]
    """Views of one block of the device's memory; of the arrays' types and shapes."""
    block: Tensor
    event: torch.cuda.Event | None
    """After it they are there; None: they are."""

    def wait(self) -> None:
        """Let the current stream of the calling thread wait for the copy; the thread itself goes on.

        Must be called before the tensors are used, by the thread that uses them.
        """
        if self.event is not None:
            stream = torch.cuda.current_stream(self.block.device)
            stream.wait_event(self.event)
            # The block was allocated on the copies' stream: without this, freed memory could be overwritten by the
            # next copy while the learner's kernels still read it.
            self.block.record_stream(stream)


class DeviceCopies:
    """Copies columns to a device through staging buffers. Safe for threads."""

    def __init__(self, device: torch.device, staging: StagingBuffers) -> None:
        """Args: where to, and host memory, which should be pinned if that is a GPU."""
        self._device = device
        self._staging = staging
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def send(self, arrays: Mapping[str, NDArray[Any]]) -> Arrival:
        """Gather columns in a staging buffer and begin to copy them, as one block.

        The arrays, by name and of any layout, are not needed any more once this returns.
        """
        places, nbytes = {}, 0
        for name, array in arrays.items():
            places[name] = nbytes
            nbytes += -(-array.nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        buffer = self._staging.acquire(nbytes)
        event = None
        try:
            memory = buffer.tensor.numpy()
            for name, array in arrays.items():
                start = places[name]
                np.copyto(memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape), array)
            with torch.cuda.stream(self._stream):  # does nothing where there is none
                block = torch.empty(nbytes, dtype=torch.uint8, device=self._device)
                if self._stream is not None:
                    event = torch.cuda.Event()
                block.copy_(buffer.tensor[:nbytes], non_blocking=True)
                if event is not None:
                    event.record(self._stream)
        finally:
            self._staging.release(buffer, event)
        return Arrival({name: _view(block, places[name], array) for name, array in arrays.items()}, block, event)


def _view(block: Tensor, start: int, array: NDArray[Any]) -> Tensor:
    dtype = torch.from_numpy(np.empty(0, array.dtype)).dtype
    return block[start : start + array.nbytes].view(dtype).view(array.shape)
