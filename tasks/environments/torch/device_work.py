"""Keeps a device busy without the host: CUDA graphs, inputs staged before a round, results copied after it.

Pure torch. On a CPU work runs as it is called and copies are plain ones, so tests run all of this module but the lines
that need CUDA. THOSE NEVER RAN: there was no GPU (docs/gpu.md).
"""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

logger = logging.getLogger(__name__)

_capturing = threading.Lock()
"""All graphs of a device are captured on one stream, so by one thread at a time."""
_streams: dict[tuple[str, int], torch.cuda.Stream] = {}
_making = threading.Lock()


def _stream_for(purpose: str, device: torch.device) -> torch.cuda.Stream:
    """Return a device's stream for a purpose, of a priority that no other work has.

    Torch has 32 streams of each priority, and gives them to all threads in turn: a copy of another thread on the stream
    that captures would become a part of the graph.
    """
    index = torch.cuda.current_device() if device.index is None else device.index
    with _making:
        if (purpose, index) not in _streams:
            _streams[purpose, index] = torch.cuda.Stream(index, priority=-1)
        return _streams[purpose, index]


class CapturedWork:
    """Repeats work that reads and writes the same tensors each time. For one thread.

    On a GPU the first run is eager, on a side stream: libraries allocate their workspaces then. The second is captured
    as a CUDA graph, which that and all later runs replay. Work that can't be captured stays eager, with a warning that
    says why. On other devices every run is eager.

    Args:
        name: of the work, for the warning.
        device: of its tensors.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        self._name = name
        self._device = device
        self._fixed: tuple[object, ...] | None = None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._is_refused = False

    def run(self, work: Callable[[], None], *fixed: object) -> None:
        """Do the work, or replay what it launched.

        Args:
            work: launches kernels. They depend on the contents of tensors, and otherwise on `fixed` alone. A replay
                repeats them without calling it.
            fixed: tensors, compared by identity, and other values, compared by equality. A change of one captures the
                work again.
        """
        if self._device.type != "cuda":
            work()
        elif self._fixed is None or not _are_same(self._fixed, fixed):
            self._fixed, self._graph, self._is_refused = fixed, None, False
            self._run_aside(work)
        elif self._is_refused:
            work()
        else:
            self._graph = self._graph or self._captured(work)
            if self._graph is None:
                self._is_refused = True
                work()
            else:
                self._graph.replay()

    def _run_aside(self, work: Callable[[], None]) -> None:
        current, side = torch.cuda.current_stream(self._device), _stream_for("aside", self._device)
        side.wait_stream(current)
        try:
            with torch.cuda.stream(side):
                work()
        finally:
            current.wait_stream(side)

    def _captured(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph | None:
        graph, stream = torch.cuda.CUDAGraph(), _stream_for("capture", self._device)
        # Where the end of a capture fails, torch leaves its stream the thread's current one: this brings back ours.
        with _capturing, torch.cuda.device(self._device), torch.cuda.stream(torch.cuda.current_stream(self._device)):
            try:
                # Concurrent work of other threads, such as copies to the host, is no part of the graph and no error.
                with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                    work()
            except RuntimeError as error:
                # The end of a capture that was broken off raises too, and says only that.
                cause = error.__context__ if isinstance(error.__context__, RuntimeError) else error
                reason = str(cause).splitlines()[0]
                logger.warning("%s can't be captured as a CUDA graph and stays eager: %s", self._name, reason)
                return None
        return graph


def _are_same(then: Sequence[object], now: Sequence[object]) -> bool:
    return len(then) == len(now) and all(
        one is other or (not isinstance(one, Tensor) and not isinstance(other, Tensor) and one == other)
        for one, other in zip(then, now, strict=True)
    )


class Staged:
    """A tensor on a device that gets its content from the host before a round, for a GPU through pinned memory.

    Attributes:
        tensor: the tensor; always the same.
    """

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> None:
        """Allocate it, filled with zeros."""
        self.tensor = torch.zeros(*shape, dtype=dtype, device=device)
        self._pinned = torch.empty(*shape, dtype=dtype, pin_memory=True) if device.type == "cuda" else None
        self._sent: torch.cuda.Event | None = None

    def send(self, values: Tensor) -> None:
        """Start to copy values, of any layout on the host, which may be overwritten once this returns."""
        if self._pinned is None:
            self.tensor.copy_(values)
            return
        if self._sent is None:
            self._sent = torch.cuda.Event()
        else:
            self._sent.synchronize()
        self._pinned.copy_(values)
        self.tensor.copy_(self._pinned, non_blocking=True)
        self._sent.record(torch.cuda.current_stream(self.tensor.device))


class Departure:
    """Lets another thread copy tensors to the host while the device goes on, on a stream of its own.

    Make it once the work that writes the tensors is queued. Nothing may write to them afterwards, and they must be
    referenced until they are copied.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._written: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._written = torch.cuda.Event()
            self._written.record(torch.cuda.current_stream(device))

    @contextmanager
    def copying(self) -> Iterator[None]:
        """Make the calling thread's copies wait for the tensors' content, and for nothing that was queued later."""
        if self._written is None:
            yield
            return
        stream = torch.cuda.Stream(self._device)
        stream.wait_event(self._written)
        # A thread that has used no device yet would begin a context on the first one.
        with torch.cuda.device(self._device), torch.cuda.stream(stream):
            yield
