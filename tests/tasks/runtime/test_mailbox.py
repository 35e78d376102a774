"""Notifications in one process: kept by topic while it is open, delivered to waiting threads, dropped at last close."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator

import pytest
from distributed import Scheduler, Worker

from penstock.tasks.runtime.mailbox import MAILBOX, Mailbox, deliver, install, send

LONG_SECONDS = 150.0


def test_a_post_to_a_closed_topic_is_dropped():
    """A late notification of a finished attempt must neither fail nor reach a later one."""
    mailbox = Mailbox()
    mailbox.post("old", {"shard": 1})
    mailbox.open("old")
    assert mailbox.get("old", "shard") is None


def test_the_latest_value_wins():
    """Values are kept by topic and key; other topics do not see them."""
    mailbox = Mailbox()
    mailbox.open("a")
    mailbox.open("b")
    mailbox.post("a", {"x": 1, "y": 1})
    mailbox.post("a", {"x": 2})
    assert (mailbox.get("a", "x"), mailbox.get("a", "y"), mailbox.get("a", "z")) == (2, 1, None)
    assert mailbox.get("b", "x") is None


def test_the_last_close_drops_entries():
    """Members of one process share a topic; it stays open as long as any of them."""
    mailbox = Mailbox()
    mailbox.open("a")
    mailbox.open("a")
    mailbox.post("a", {"x": 1})
    mailbox.close("a")
    assert mailbox.get("a", "x") == 1
    mailbox.close("a")
    mailbox.post("a", {"x": 2})
    mailbox.open("a")
    assert mailbox.get("a", "x") is None


def test_closing_an_unopened_topic_is_an_error():
    """Otherwise it would close another member's topic the next time."""
    mailbox = Mailbox()
    mailbox.open("a")
    mailbox.close("a")
    with pytest.raises(KeyError):
        mailbox.close("a")


def test_a_wait_ends_at_once_if_the_value_is_present():
    """Nothing has to be posted after the wait began."""
    mailbox = Mailbox()
    mailbox.open("a")
    mailbox.post("a", {"x": 1})
    assert mailbox.wait("a", lambda entries: "x" in entries, LONG_SECONDS)


def test_a_wait_times_out():
    """It returns False, and changes nothing."""
    mailbox = Mailbox()
    mailbox.open("a")
    mailbox.post("a", {"y": 1})
    assert not mailbox.wait("a", lambda entries: "x" in entries, 0.01)
    assert not mailbox.wait("a", lambda entries: "x" in entries, 0.0)


def test_a_post_wakes_the_threads_that_wait_for_it():
    """Other waiting threads continue to wait; the condition is evaluated after every post."""
    mailbox = Mailbox()
    mailbox.open("a")
    results: dict[str, bool] = {}
    judged = threading.Semaphore(0)

    def wait_for(key: str, seconds: float) -> None:
        def ready(entries) -> bool:
            judged.release()
            return key in entries

        results[key] = mailbox.wait("a", ready, seconds)

    threads = [threading.Thread(target=wait_for, args=args) for args in (("x", LONG_SECONDS), ("z", 0.5))]
    for thread in threads:
        thread.start()
    assert judged.acquire(timeout=LONG_SECONDS)
    assert judged.acquire(timeout=LONG_SECONDS)
    mailbox.post("a", {"y": 1})
    mailbox.post("a", {"x": 1})
    for thread in threads:
        thread.join(LONG_SECONDS)
    assert results == {"x": True, "z": False}


def test_received_entries_are_posted():
    """The coroutine that the flow runs on a worker reaches the process's own mailbox."""
    MAILBOX.open("test-topic")
    try:
        asyncio.run(deliver("test-topic", {"roster": {"act-0": "tcp://1"}}))
        assert MAILBOX.get("test-topic", "roster") == {"act-0": "tcp://1"}
    finally:
        MAILBOX.close("test-topic")


def stays(pause_seconds: float) -> float:
    return pause_seconds


def test_one_thread_of_a_process_polls():
    """Within the interval after a poll no other thread polls; other keys, and later gangs, have their own interval."""
    mailbox = Mailbox()
    mailbox.open("a")
    assert mailbox.should_poll("a", "snapshot/1", LONG_SECONDS, stays)
    assert not mailbox.should_poll("a", "snapshot/1", LONG_SECONDS, stays)
    assert mailbox.should_poll("a", "snapshot/2", 0.0, stays)
    assert mailbox.should_poll("a", "snapshot/2", 0.0, stays)
    mailbox.close("a")
    mailbox.open("a")
    assert mailbox.should_poll("a", "snapshot/1", LONG_SECONDS, stays)


def test_threads_that_begin_to_wait_later_do_not_poll_sooner():
    """The process's interval grows with each poll, whoever polls, and holds for a thread that has just come, too."""
    mailbox = Mailbox()
    mailbox.open("a")
    assert mailbox.should_poll("a", "snapshot/1", 0.0, lambda pause: pause + LONG_SECONDS)
    assert not mailbox.should_poll("a", "snapshot/1", 0.0, stays)
    assert mailbox.should_poll("a", "snapshot/2", 0.0, stays)


def test_what_is_derived_from_a_value_is_shared_until_another_comes():
    """All threads get the same dictionary of a value; another value, and another gang, begin an empty one."""
    mailbox = Mailbox()
    mailbox.open("a")
    mailbox.post("a", {"roster": {"act-0": "tcp://1"}})
    roster, facts = mailbox.derived("a", "roster")
    assert (roster, facts) == ({"act-0": "tcp://1"}, {})
    facts["processes"] = 1
    mailbox.post("a", {"shard": 1})
    assert mailbox.derived("a", "roster")[1] is facts
    mailbox.post("a", {"roster": {"act-0": "tcp://1"}})
    assert mailbox.derived("a", "roster")[1] == {}, "an equal value is another one"
    mailbox.derived("a", "roster")[1]["processes"] = 1
    mailbox.close("a")
    mailbox.open("a")
    assert mailbox.derived("a", "roster") == (None, {})


@contextlib.asynccontextmanager
async def two_workers() -> AsyncIterator[tuple[Worker, Worker]]:
    """In the order in which they must end."""
    async with (
        Scheduler(host="127.0.0.1", port=0, dashboard_address="127.0.0.1:0") as scheduler,
        Worker(scheduler.address, host="127.0.0.1", dashboard_address=None) as sender,
        Worker(scheduler.address, host="127.0.0.1", dashboard_address=None) as receiver,
    ):
        install(receiver)
        yield sender, receiver


@pytest.fixture
def topic() -> Iterator[str]:
    MAILBOX.open("test-topic")
    yield "test-topic"
    MAILBOX.close("test-topic")


def test_notifications_to_one_receiver_are_batched(topic: str):
    """While a message is in flight, entries gather into the next one: none is lost, few messages are sent."""
    posted = 200
    arrived: list[dict[str, int]] = []

    async def exchange() -> None:
        async with two_workers() as (sender, receiver):
            receive, all_said = receiver.handlers["penstock_post"], asyncio.Event()

            async def counted(topic: str, entries: dict[str, int]) -> None:
                arrived.append(entries)
                await all_said.wait()
                await receive(topic=topic, entries=entries)

            receiver.handlers["penstock_post"] = counted

            def say(first: int) -> None:
                for number in range(first, posted, 4):
                    send(sender, [receiver.address], topic, {f"shard/{number}": number})

            await asyncio.gather(*(asyncio.to_thread(say, first) for first in range(4)))
            all_said.set()
            assert await asyncio.to_thread(MAILBOX.wait, topic, lambda found: len(found) == posted, LONG_SECONDS)

    asyncio.run(exchange())
    assert MAILBOX.get(topic, "shard/7") == 7
    assert sum(len(entries) for entries in arrived) == posted
    assert len(arrived) <= 2


def test_notifications_within_a_process_need_no_event_loop(topic: str):
    """They are there when `send` returns, though the loop is busy; those for another process come once it is not."""

    async def exchange() -> None:
        async with two_workers() as (sender, receiver):
            send(sender, [sender.address, receiver.address], topic, {"here": 1})
            assert MAILBOX.get(topic, "here") == 1, "nothing has been awaited since"
            MAILBOX.post(topic, {"here": 0})
            assert await asyncio.to_thread(MAILBOX.wait, topic, lambda found: found["here"] == 1, LONG_SECONDS)

    asyncio.run(exchange())


def test_a_receiver_that_stops_answering_gets_later_notifications(topic: str, monkeypatch):
    """A message that is never answered times out, and does not hold back later ones."""
    unanswered: list[int] = []

    async def exchange() -> None:
        async with two_workers() as (sender, receiver):
            receive, silent = receiver.handlers["penstock_post"], asyncio.Event()

            async def fall_silent(topic: str, entries: dict[str, int]) -> None:
                if not unanswered:
                    unanswered.append(entries["first"])
                    silent.set()
                    await asyncio.sleep(LONG_SECONDS)
                await receive(topic=topic, entries=entries)

            receiver.handlers["penstock_post"] = fall_silent
            with monkeypatch.context() as patch:
                patch.setattr("penstock.tasks.runtime.mailbox._ANSWER_SECONDS", 0.2)
                for number in range(int(LONG_SECONDS)):  # a busy machine may not even connect in that time
                    send(sender, [receiver.address], topic, {"first": number})
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(silent.wait(), 1.0)
                        break
            send(sender, [receiver.address], topic, {"later": 2})
            assert await asyncio.to_thread(MAILBOX.wait, topic, lambda found: "later" in found, LONG_SECONDS / 2)

    asyncio.run(exchange())
    assert MAILBOX.get(topic, "first") not in unanswered
