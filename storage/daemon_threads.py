"""Threads that the interpreter does not wait for when it ends.

`concurrent.futures` joins its threads at the end of the process, whatever they do. A request that a dead server never
answers would keep a process that has nothing left to do, until the client gives it up.
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
"""A thread that got no work for so long ends."""


class DaemonThreads:
    """Runs pieces of work in the order of submission, up to `limit` at once. Safe for threads, not for forks.

    Only for work that may be cut off anywhere at the end of the process, such as reads.

    Args:
        limit: how many threads there are at most; they come as they are needed.
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
        """Do `work` soon; what it returns or raises is in the future, which can't be cancelled."""
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
        del future  # which the error's traceback would keep, and that the error
    else:
        future.set_result(result)
