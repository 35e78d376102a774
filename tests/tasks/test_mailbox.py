"""Hints in one process: kept by topic while somebody listens, handed to who waits, and forgotten with the last."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator

import pytest
from distributed import Scheduler, Worker

from tasks.mailbox import MAILBOX, Mailbox, deliver, install, send

LONG_SECONDS = 30.0


def test_an_unknown_topic_is_dropped():
    """A late hint of an attempt that is over must neither fail nor be found by a later one."""
    mailbox = Mailbox()
    mailbox.post("old", {"shard": 1})
    mailbox.open("old")
    assert mailbox.get("old", "shard") is None


def test_the_latest_value_counts():
    """By topic and key; other topics do not see it."""
    mailbox = Mailbox()
    mailbox.open("a")
    mailbox.open("b")
    mailbox.post("a", {"x": 1, "y": 1})
    mailbox.post("a", {"x": 2})
    assert (mailbox.get("a", "x"), mailbox.get("a", "y"), mailbox.get("a", "z")) == (2, 1, None)
    assert mailbox.get("b", "x") is None


def test_the_last_close_forgets():
    """Members of one process share a topic; it lives as long as any of them."""
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


def test_closing_what_is_not_open_is_an_error():
    """It would close somebody else's topic the next time."""
    mailbox = Mailbox()
    mailbox.open("a")
    mailbox.close("a")
    with pytest.raises(KeyError):
        mailbox.close("a")


def test_waiting_ends_at_once_if_the_hint_is_there():
    """Nothing needs to be posted after the wait began."""
    mailbox = Mailbox()
    mailbox.open("a")
    mailbox.post("a", {"x": 1})
    assert mailbox.wait("a", lambda hints: "x" in hints, LONG_SECONDS)


def test_waiting_ends_with_the_time():
    """With False, and without having changed anything."""
    mailbox = Mailbox()
    mailbox.open("a")
    mailbox.post("a", {"y": 1})
    assert not mailbox.wait("a", lambda hints: "x" in hints, 0.01)
    assert not mailbox.wait("a", lambda hints: "x" in hints, 0.0)


def test_a_hint_wakes_who_waits_for_it():
    """And not those who wait for another; the condition is judged anew with every hint."""
    mailbox = Mailbox()
    mailbox.open("a")
    results: dict[str, bool] = {}
    judged = threading.Semaphore(0)

    def wait_for(key: str, seconds: float) -> None:
        def ready(hints) -> bool:
            judged.release()
            return key in hints

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


def test_what_a_worker_receives_is_posted():
    """The coroutine that the flow runs on a worker reaches the process's own mailbox."""
    MAILBOX.open("test-topic")
    try:
        asyncio.run(deliver("test-topic", {"roster": {"act-0": "tcp://1"}}))
        assert MAILBOX.get("test-topic", "roster") == {"act-0": "tcp://1"}
    finally:
        MAILBOX.close("test-topic")


def test_one_of_a_process_looks():
    """Who asks within the pause after another's look is told not to; other objects, and later gangs, are their own."""
    mailbox = Mailbox()
    mailbox.open("a")
    assert mailbox.may_look("a", "snapshot/1", LONG_SECONDS)
    assert not mailbox.may_look("a", "snapshot/1", LONG_SECONDS)
    assert mailbox.may_look("a", "snapshot/2", LONG_SECONDS)
    assert mailbox.may_look("a", "snapshot/1", 0.0)
    mailbox.close("a")
    mailbox.open("a")
    assert mailbox.may_look("a", "snapshot/1", LONG_SECONDS)


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


def test_hints_to_one_receiver_go_together(topic: str):
    """While a message is on its way, what threads have to say gathers and is the next: none is lost, few are sent."""
    hints = 200
    arrived: list[dict[str, int]] = []

    async def exchange() -> None:
        async with two_workers() as (sender, receiver):
            receive = receiver.handlers["penstock_post"]

            async def counted(topic: str, entries: dict[str, int]) -> None:
                arrived.append(entries)
                await asyncio.sleep(0.01)
                await receive(topic=topic, entries=entries)

            receiver.handlers["penstock_post"] = counted

            def say(first: int) -> None:
                for number in range(first, hints, 4):
                    send(sender, [receiver.address], topic, {f"shard/{number}": number})

            await asyncio.gather(*(asyncio.to_thread(say, first) for first in range(4)))
            assert await asyncio.to_thread(MAILBOX.wait, topic, lambda found: len(found) == hints, LONG_SECONDS)

    asyncio.run(exchange())
    assert MAILBOX.get(topic, "shard/7") == 7
    assert sum(len(entries) for entries in arrived) == hints
    assert len(arrived) < hints / 4


def test_a_receiver_that_falls_silent_hears_what_is_said_later(topic: str, monkeypatch):
    """A hint that is never answered is lost after a while, and keeps none of those behind it back."""
    monkeypatch.setattr("tasks.mailbox._ANSWER_SECONDS", 0.2)

    async def exchange() -> None:
        async with two_workers() as (sender, receiver):
            receive, silent = receiver.handlers["penstock_post"], asyncio.Event()

            async def fall_silent(topic: str, entries: dict[str, int]) -> None:
                if "first" in entries:
                    silent.set()
                    await asyncio.sleep(LONG_SECONDS)
                await receive(topic=topic, entries=entries)

            receiver.handlers["penstock_post"] = fall_silent
            send(sender, [receiver.address], topic, {"first": 1})
            await asyncio.wait_for(silent.wait(), LONG_SECONDS)
            send(sender, [receiver.address], topic, {"later": 2})
            assert await asyncio.to_thread(MAILBOX.wait, topic, lambda found: "later" in found, LONG_SECONDS / 2)

    asyncio.run(exchange())
    assert MAILBOX.get(topic, "first") is None
