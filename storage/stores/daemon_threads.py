"""Provides a thread pool whose threads the interpreter does not wait for when it ends.

`concurrent.futures` joins its threads at the end of the process, whatever they do. A request that a dead server never
answers would keep an otherwise finished process alive until the client gives up.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Result = TypeVar("Result")

IDLE_SECONDS = 10.0
"""An idle thread ends after this time."""


class DaemonThreads:
    """Runs tasks in the order of submission, up to `limit` at once. Safe for threads, not for forks.

    Use it only for work that the end of the process may interrupt anywhere, such as reads, or requests for which the
    caller waits.

    Args:
        limit: the largest number of threads; they are started as needed.
        name: of the threads.
    """

    def __init__(self, limit: int, name: str) -> None:
        self._limit = limit
        self._name = name
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._threads = 0
        self._idle = 0

    def submit(self, work: Callable[[], Result]) -> Future[Result]:
        """Queue `work`. The future, which can't be cancelled, gets its result or exception."""
        future: Future[Result] = Future()
        future.set_running_or_notify_cancel()
        with self._changed:
            self._waiting.append((future, work))
            if self._idle >= len(self._waiting):
                self._changed.notify()
            elif self._threads < self._limit:
                threading.Thread(target=self._serve, name=self._name, daemon=True).start()
                self._threads += 1
        return future

    def _serve(self) -> None:
        while (piece := self._next()) is not None:
            _do(*piece)
            del piece  # an idle thread keeps no result

    def _next(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._waiting, IDLE_SECONDS)
            self._idle -= 1
            if self._waiting:
                return self._waiting.popleft()
            self._threads -= 1
            return None


def _do(future: Future[Any], work: Callable[[], Any]) -> None:
    try:
        result = work()
    except BaseException as error:  # noqa: BLE001  (the future's reader gets it)
        future.set_exception(error)
        del future  # the error's traceback would keep it, and it keeps the error
    else:
        future.set_result(result)
