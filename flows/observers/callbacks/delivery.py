"""Delivers records to callbacks, each in a thread of its own, so that neither training nor another one waits for it."""

from __future__ import annotations

import contextvars
import copy
import logging
import queue
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from penstock.flows.observers.callbacks.loading import in_one_line
from penstock.flows.observers.callbacks.records import run_end, run_start, stage_record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType

    from penstock.flows.observers.callbacks.callback import Callback
    from penstock.flows.observers.callbacks.records import RunStart
    from penstock.storage.runs.commit_schema import Commit
    from penstock.storage.runs.run import RunFolder
    from penstock.storage.runs.timings import StageTimings

_WAITING_RECORDS = 256
_AFTER_ERROR_SECONDS = 5.0
"""Longest wait at the end of a run that was cancelled or failed: whoever stopped it waits for its end."""

logger = logging.getLogger(__name__)

_given: list[Sequence[Callback]] = []


@contextmanager
def use_callbacks(callbacks: Sequence[Callback]) -> Iterator[None]:
    """Let the runs that this process drives meanwhile have these callbacks: a flow receives settings alone."""
    _given.append(tuple(callbacks))
    try:
        yield
    finally:
        _given.pop()


def given_callbacks() -> list[Callback]:
    """Return the callbacks of `use_callbacks`."""
    return [callback for callbacks in _given for callback in callbacks]


class Delivery:
    """Delivers the records of one drive of a run. A context manager: at its end callbacks have some time to finish.

    Args:
        callbacks: each gets all records in order, from a thread of its own.
        end_seconds: longest wait for all of them at the end.
    """

    def __init__(self, callbacks: Sequence[Callback], end_seconds: float) -> None:
        self._followers = [_Follower(callback) for callback in callbacks]
        self._end_seconds = end_seconds
        self._start: RunStart | None = None
        self._newest: Commit | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._start is None:
            return
        end = run_end(self._start, self._newest, error)
        limit = self._end_seconds if error is None else min(self._end_seconds, _AFTER_ERROR_SECONDS)
        deadline = time.monotonic() + limit
        for follower in self._followers:
            follower.close("on_run_end", end)
        for follower in self._followers:
            if not follower.join(deadline):
                logger.warning(
                    "%s has not finished %g s after the run's end, and is left behind; cluster.callback_seconds is the "
                    "limit",
                    follower.name,
                    limit,
                )

    def begin(self, run: RunFolder, newest: Commit | None) -> None:
        """Begin to deliver; a run that begins again in this process, as after a lost scheduler, just continues."""
        if not self._followers or self._start is not None:
            return
        try:
            self._start, self._newest = run_start(run, newest), newest
        except Exception as error:  # noqa: BLE001  (no callback may end a run)
            logger.warning("no callback is called: %s", error)
            return
        for follower in self._followers:
            follower.begin("on_run_start", replace(self._start, settings=copy.deepcopy(self._start.settings)))

    def stage(self, commit: Commit, timings: StageTimings) -> None:
        """Deliver a committed stage; returns at once."""
        if self._start is None:
            return
        self._newest = commit
        try:
            records = [stage_record(self._start.run, commit, timings) for _ in self._followers]
        except Exception as error:  # noqa: BLE001  (see above)
            logger.warning("callbacks miss stage %d: %s: %s", commit.stage, type(error).__name__, error)
            return
        for follower, record in zip(self._followers, records, strict=True):
            follower.offer("on_stage", record)
            if record.evaluation is not None:
                follower.offer("on_evaluation", record)


class _Follower:
    """A callback, its records that wait, and its thread."""

    def __init__(self, callback: Callback) -> None:
        self.name = f"callback {type(callback).__qualname__}"
        with suppress(Exception):  # a user's property may fail
            self.name = str(getattr(callback, "name", self.name))
        self._callback = callback
        self._waiting: queue.Queue[tuple[str, Any]] = queue.Queue()
        self._warned: set[str] = set()
        # Records of a thread's log belong to the flow run.
        run: Callable[..., None] = contextvars.copy_context().run
        self._thread = threading.Thread(target=run, args=(self._deliver,), name=self.name, daemon=True)

    def begin(self, method: str, record: object) -> None:
        self._waiting.put((method, record))
        self._thread.start()

    def offer(self, method: str, record: object) -> None:
        if self._waiting.qsize() < _WAITING_RECORDS:
            self._waiting.put((method, record))
        else:
            self._warn(
                f"is more than {_WAITING_RECORDS} records behind; those that follow are left out until it is not"
            )

    def close(self, method: str, record: object) -> None:
        self._waiting.put((method, record))
        self._waiting.put(("", None))

    def join(self, deadline: float) -> bool:
        self._thread.join(max(0.0, deadline - time.monotonic()))
        return not self._thread.is_alive()

    def _deliver(self) -> None:
        while True:
            method, record = self._waiting.get()
            if not method:
                return
            try:
                call = getattr(self._callback, method, None)
                if call is not None:
                    call(record)
            except BaseException as error:  # noqa: BLE001  (no callback may end a run)
                self._warn(f"failed in {method}: {in_one_line(error)}; training continues")

    def _warn(self, text: str) -> None:
        """Log a warning, once for each text."""
        if text not in self._warned:
            self._warned.add(text)
            logger.warning("%s %s", self.name, text)
