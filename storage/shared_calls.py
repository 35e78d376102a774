"""One call for all threads of a process that ask the same at once."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Answer = TypeVar("Answer")


class SharedCalls(Generic[Answer]):
    """Equal questions, of which one is asked at a time. Safe for threads.

    Whoever asks while the same question is under way gets the answer to the next, which is asked after that and for
    all who came meanwhile: no answer is older than its question.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: dict[str, Future[Answer]] = {}
        self._next: dict[str, Future[Answer]] = {}

    def ask(self, question: str, call: Callable[[], Answer]) -> Answer:
        """What `call` returns, by this thread or by another that asked the same; one object for all of them.

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
                    before.exception()  # whatever became of it, it is done
            answer = call()
        except Exception as error:
            self._end(question, mine)
            mine.set_exception(error)
            raise
        except BaseException:  # an interrupt is this thread's alone: the others ask themselves
            self._end(question, mine)
            mine.cancel()
            raise
        self._end(question, mine)
        mine.set_result(answer)
        return answer

    def _end(self, question: str, mine: Future[Answer]) -> None:
        """Make room for the next before its leader learns of it, so that nobody asks beside that one."""
        with self._lock:
            if self._asked.get(question) is mine:
                del self._asked[question]
                if question in self._next:
                    self._asked[question] = self._next.pop(question)
            else:  # interrupted while it waited for the one before
                del self._next[question]
