"""Concurrent equal requests share one call, and no answer is older than its request."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from penstock.storage.stores.single_flight import SharedCalls

LONG_SECONDS = 150.0


class Asked:
    """Answers a request with the next number when the test releases it."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.may_end = threading.Semaphore(0)
        self.count = 0
        self.fails: BaseException | None = None

    def __call__(self) -> int:
        self.count += 1
        count = self.count
        self.begun.release()
        assert self.may_end.acquire(timeout=LONG_SECONDS)
        if self.fails is not None:
            raise self.fails
        return count


def ask_behind(calls: SharedCalls[int], asked: Asked, threads: ThreadPoolExecutor, many: int) -> list[Future[int]]:
    """Start one request, and as many threads that arrive while it is under way."""
    first = threads.submit(calls.ask, "q", asked)
    assert asked.begun.acquire(timeout=LONG_SECONDS)
    arrived = threading.Barrier(many + 1)

    def late() -> int:
        arrived.wait(LONG_SECONDS)
        return calls.ask("q", asked)

    behind = [threads.submit(late) for _ in range(many)]
    arrived.wait(LONG_SECONDS)
    return [first, *behind]


def wait_until(true: Callable[[], bool]) -> None:
    """Wait for an action of another thread."""
    pause = threading.Event()
    for _ in range(int(LONG_SECONDS * 100)):
        if true():
            return
        pause.wait(0.01)
    raise AssertionError("it did not come")


class Counted(Future[int]):
    """An answer that counts who waits for it."""

    waiting = 0

    def result(self, timeout: float | None = None) -> int:
        Counted.waiting += 1
        return super().result(timeout)


def test_threads_that_arrive_during_a_call_share_the_next_answer(monkeypatch: pytest.MonkeyPatch):
    """Eight threads behind the first cost two calls, and none gets an answer older than its request."""
    monkeypatch.setattr("penstock.storage.stores.single_flight.Future", Counted)
    monkeypatch.setattr(Counted, "waiting", 0)
    calls, asked = SharedCalls[int](), Asked()
    with ThreadPoolExecutor(9) as threads:
        answers = ask_behind(calls, asked, threads, 8)
        wait_until(lambda: Counted.waiting == 7)  # one makes the next call
        asked.may_end.release(2)
        assert answers[0].result(LONG_SECONDS) == 1
        assert [answer.result(LONG_SECONDS) for answer in answers[1:]] == [2] * 8
    assert asked.count == 2
    asked.may_end.release()
    assert calls.ask("q", asked) == asked.count, "nothing of what is over is remembered"


def test_other_requests_do_not_wait():
    """While one is under way, another is answered."""
    calls, asked = SharedCalls[int](), Asked()
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(calls.ask, "q", asked)
        assert asked.begun.acquire(timeout=LONG_SECONDS)
        assert calls.ask("another", lambda: 7) == 7
        asked.may_end.release()
        assert first.result(LONG_SECONDS) == 1


def test_an_error_is_raised_for_all_that_share_the_call():
    """Later requests do not get it."""
    calls, asked = SharedCalls[int](), Asked()
    asked.fails = OSError("the store is gone")
    with ThreadPoolExecutor(4) as threads:
        answers = ask_behind(calls, asked, threads, 3)
        asked.may_end.release(4)
        for answer in answers:
            with pytest.raises(OSError, match="the store is gone"):
                answer.result(LONG_SECONDS)
    asked.fails = None
    asked.may_end.release()
    assert calls.ask("q", asked) == asked.count


def test_an_interrupt_ends_only_its_own_thread():
    """Threads that waited for the interrupted call make it themselves."""
    calls, asked = SharedCalls[int](), Asked()
    asked.fails = KeyboardInterrupt()

    def interrupted() -> None:
        with pytest.raises(KeyboardInterrupt):
            calls.ask("q", asked)

    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(interrupted)
        assert asked.begun.acquire(timeout=LONG_SECONDS)
        behind = [threads.submit(calls.ask, "q", lambda: 7) for _ in range(2)]
        asked.may_end.release()
        first.result(LONG_SECONDS)
        assert [answer.result(LONG_SECONDS) for answer in behind] == [7, 7]
