"""Equal questions are asked once for all who ask at the same time, and no answer is older than its question."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from storage.shared_calls import SharedCalls

LONG_SECONDS = 30.0


class Asked:
    """A question whose answers, a number more each time, come when the test lets them."""

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
    """One that is under way, and as many who came while it was."""
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
    """Of what another thread does at once."""
    pause = threading.Event()
    for _ in range(int(LONG_SECONDS * 100)):
        if true():
            return
        pause.wait(0.01)
    raise AssertionError("it did not come")


def test_who_comes_while_it_is_asked_shares_the_next_answer():
    """Eight threads behind the first cost fewer calls than threads, and none gets an answer from before it asked."""
    calls, asked = SharedCalls[int](), Asked()
    with ThreadPoolExecutor(9) as threads:
        answers = ask_behind(calls, asked, threads, 8)
        wait_until(lambda: sum(answer.running() for answer in answers) == 9 and "q" in calls._next)
        asked.may_end.release(9)
        assert answers[0].result(LONG_SECONDS) == 1
        assert all(answer.result(LONG_SECONDS) > 1 for answer in answers[1:])
    assert asked.count < 9
    asked.may_end.release()
    assert calls.ask("q", asked) == asked.count, "nothing of what is over is remembered"


def test_other_questions_wait_for_nobody():
    """While one is under way, another is answered."""
    calls, asked = SharedCalls[int](), Asked()
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(calls.ask, "q", asked)
        assert asked.begun.acquire(timeout=LONG_SECONDS)
        assert calls.ask("another", lambda: 7) == 7
        asked.may_end.release()
        assert first.result(LONG_SECONDS) == 1


def test_an_error_is_everybodys_who_shares_it():
    """And not of those who ask afterwards."""
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


def test_an_interrupt_is_its_own_threads_alone():
    """Those who waited for the interrupted call ask themselves."""
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
