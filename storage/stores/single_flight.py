"""Shares one call among all threads of a process that make the same request concurrently."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Answer = TypeVar("Answer")


class SharedCalls(Generic[Answer]):
    """Makes one of several equal requests at a time. Safe for threads.

    A thread that arrives while its request is under way gets the answer to the next one, which is made afterwards for
    all threads that arrived meanwhile: no answer is older than its request.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: dict[str, Future[Answer]] = {}
        self._next: dict[str, Future[Answer]] = {}

    def ask(self, question: str, call: Callable[[], Answer]) -> Answer:
        """Return the result of `call`, made by this thread or by another with the same request; one object for all.

        Raises:
            BaseException: what `call` has raised.
        """
        while True:
            with self._lock:
                before = self._asked.get(question)
                mine: Future[Answer] | None = None
                if before is None:
                    mine = self._asked[question] = Future()
                elif question in self._next:
                    other = self._next[question]
                else:
                    mine = self._next[question] = Future()
            if mine is not None:
                return self._lead(question, mine, before, call)
            try:
                return other.result()
            except CancelledError:
                continue

    def _lead(
        self, question: str, mine: Future[Answer], before: Future[Answer] | None, call: Callable[[], Answer]
    ) -> Answer:
        try:
            if before is not None:
                with contextlib.suppress(CancelledError):
                    before.exception()  # wait until it is done, whether it succeeds or fails
            answer = call()
        except Exception as error:
            self._end(question, mine)
            mine.set_exception(error)
            raise
        except BaseException:  # an interrupt concerns this thread alone: the others make the call themselves
            self._end(question, mine)
            mine.cancel()
            raise
        self._end(question, mine)
        mine.set_result(answer)
        return answer

    def _end(self, question: str, mine: Future[Answer]) -> None:
        """Register the next request before its leader is woken, so that no other thread leads it too."""
        with self._lock:
            if self._asked.get(question) is mine:
                del self._asked[question]
                if question in self._next:
                    self._asked[question] = self._next.pop(question)
            else:  # interrupted while it waited for the one before
                del self._next[question]
