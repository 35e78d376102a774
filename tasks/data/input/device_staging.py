"""The last step to the device: reused host memory, and copies on a separate CUDA stream.

Pinned memory is expensive to allocate and required for a copy that runs concurrently with the learner's kernels, so
buffers are kept and reused. On the CPU nothing needs to be copied; but the same code runs there with a CPU as the
device, which tests use.
"""

from __future__ import annotations

import threading
from contextlib import nullcontext
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
    """A piece of host memory that is in use, or whose last copy may still be running."""

    __slots__ = ("event", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        """uint8 `[capacity]`."""
        self.event: torch.cuda.Event | None = None
        """The end of the last copy, after which the memory may be written again; None: it may be written now."""

    @property
    def capacity_bytes(self) -> int:
        """Return the capacity in bytes."""
        return self.tensor.numel()

    @property
    def view(self) -> memoryview:
        """Return the writable memory."""
        memory: NDArray[Any] = self.tensor.numpy()
        return memory.data


class StagingBuffers:
    """A pool of buffers, allocated on demand and reused. Thread-safe.

    Their total size stays within the budget unless the buffers in use exceed it: idle ones are freed first.

    Attributes:
        allocated_bytes: size of all buffers, in use and idle.
        allocations: number of allocations.
        uses: number of calls of `acquire`.
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
        """Return a buffer of at least `nbytes`, 64-byte aligned and with arbitrary content.

        Waits for a copy only if another buffer would exceed the budget.
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
        """Return a buffer to the pool, to be reused once the event has happened; releasing an idle one does nothing."""
        with self._lock:
            if self._closed or buffer in self._idle:
                return
            buffer.event = event
            self._idle.append(buffer)

    def close(self) -> None:
        """Free idle buffers, and those released later; no more may be acquired."""
        with self._lock:
            self._closed = True
            self._idle.clear()

    def capacity_bytes(self, nbytes: int) -> int:
        """Return the capacity of the buffer for an object: rounded up, so objects of similar sizes share buffers."""
        power = max(_SMALLEST_BYTES, 1 << max(0, nbytes - 1).bit_length())
        # Torch allocates pinned memory in powers of two in any case; other memory grows in steps of an eighth of one.
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
    """Views of one block of the device's memory, with the arrays' types and shapes."""
    block: Tensor
    event: torch.cuda.Event | None
    """The end of the copy; None: it has ended."""

    def wait(self) -> None:
        """Let the calling thread's current stream wait for the copy, without blocking the thread.

        Must be called before the tensors are used, by the thread that uses them.
        """
        if self.event is not None:
            stream = torch.cuda.current_stream(self.block.device)
            stream.wait_event(self.event)
            # The block was allocated on the copies' stream: without this, freed memory could be overwritten by the
            # next copy while the learner's kernels still read it.
            self.block.record_stream(stream)


class DeviceCopies:
    """Copies columns to a device through staging buffers. Thread-safe."""

    def __init__(self, device: torch.device, staging: StagingBuffers) -> None:
        """Args: the device, and host memory, which should be pinned if the device is a GPU."""
        self._device = device
        self._staging = staging
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def send(self, arrays: Mapping[str, NDArray[Any]]) -> Arrival:
        """Gather columns in a staging buffer and start to copy them as one block.

        The arrays, by name and with any layout, may be reused once this returns.
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
            # A thread that has used no device yet would begin a context on the first one.
            current = nullcontext() if self._stream is None else torch.cuda.device(self._device)
            with current, torch.cuda.stream(self._stream):  # which does nothing without a stream
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
