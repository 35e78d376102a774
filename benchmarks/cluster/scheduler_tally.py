"""A preload of Dask's scheduler that records every incoming and outgoing message, with its time, for `scale.py`.

Writes lines of JSON, `[unix seconds, "in" or "out" or "call", operation]`, to the file that PENSTOCK_SCHEDULER_TALLY
names. Recorded are stream messages from and to workers and clients, and calls. Replies to calls are not counted again.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distributed.batched import BatchedSend

if TYPE_CHECKING:
    from distributed import Scheduler

_seen: list[tuple[float, str, str]] = []


class _RecordedHandlers(dict[str, Any]):
    """Handlers by operation; each look-up is one message."""

    def __init__(self, kind: str, handlers: dict[str, Any]) -> None:
        super().__init__(handlers)
        self._kind = kind

    def __getitem__(self, operation: str) -> Any:
        _seen.append((time.time(), self._kind, operation))
        return super().__getitem__(operation)


def dask_setup(scheduler: Scheduler) -> None:
    scheduler.stream_handlers = _RecordedHandlers("in", scheduler.stream_handlers)
    scheduler.handlers = _RecordedHandlers("call", scheduler.handlers)
    send = BatchedSend.send

    def record_and_send(self: BatchedSend, *messages: Any) -> None:
        if self in scheduler.stream_comms.values() or self in scheduler.client_comms.values():
            _seen.extend((time.time(), "out", str(message.get("op"))) for message in messages)
        send(self, *messages)

    BatchedSend.send = record_and_send  # type: ignore[method-assign]


def dask_teardown(scheduler: Scheduler) -> None:
    del scheduler
    lines = "".join(json.dumps(entry) + "\n" for entry in _seen)
    Path(os.environ["PENSTOCK_SCHEDULER_TALLY"]).write_text(lines, encoding="utf-8")
