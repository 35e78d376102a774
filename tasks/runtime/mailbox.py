"""Notifications between the members of a gang: small, fast and lossy.

A notification says that an object is in storage. It goes from one Dask worker straight to another, so the scheduler
sees no round. Losing one costs time, never data: a waiting member polls storage as well.

One mailbox serves all members in a worker process. Its handler is installed by the first member that runs there, so a
cluster needs no preparation.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING, Any, TypeAlias

from penstock.storage import system

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from distributed import Worker

logger = logging.getLogger(__name__)

Entries: TypeAlias = dict[str, Any]
"""The latest value by key: small JSON, whose form the key decides."""

_HANDLER = "penstock_post"
_ANSWER_SECONDS = 5.0


class Mailbox:
    """Holds the latest value by topic and key. Thread-safe; `wait` blocks."""

    def __init__(self) -> None:
        self._changed = system.condition()
        self._topics: dict[str, Entries] = {}
        self._members: dict[str, int] = {}
        self._derived: dict[tuple[str, str], tuple[Any, dict[Any, Any]]] = {}
        self._polls: dict[tuple[str, str], tuple[float, float]] = {}
        """By topic and key: when the last poll was, and the pause after it."""

    def open(self, topic: str) -> None:
        """Accept entries of a topic; every `open` needs a `close`."""
        with self._changed:
            self._members[topic] = self._members.get(topic, 0) + 1
            self._topics.setdefault(topic, {})

    def close(self, topic: str) -> None:
        """Close a topic; the last close forgets its entries."""
        with self._changed:
            self._members[topic] -= 1
            if not self._members[topic]:
                del self._members[topic], self._topics[topic]
                self._derived = {key: facts for key, facts in self._derived.items() if key[0] != topic}
                self._polls = {key: poll for key, poll in self._polls.items() if key[0] != topic}

    def post(self, topic: str, entries: Mapping[str, Any]) -> None:
        """Store entries and wake waiting threads; a topic that is not open is ignored."""
        with self._changed:
            if topic in self._topics:
                self._topics[topic].update(entries)
                self._changed.notify_all()

    def get(self, topic: str, key: str) -> Any:
        """Return the latest value, or None."""
        with self._changed:
            return self._topics[topic].get(key)

    def wait(self, topic: str, ready: Callable[[Mapping[str, Any]], bool], timeout_seconds: float) -> bool:
        """Wait until `ready(entries of the topic)`; returns False on a time-out. A closed topic has no entries."""
        with self._changed:
            return bool(self._changed.wait_for(lambda: ready(self._topics.get(topic, {})), timeout_seconds))

    def derived(self, topic: str, key: str) -> tuple[Any, dict[Any, Any]]:
        """Return the latest value, and what members here have derived from it: a dictionary that they share and fill.

        Another value begins an empty one. So members of a large gang derive the same facts once a process.
        """
        with self._changed:
            value = self._topics[topic].get(key)
            before, facts = self._derived.get((topic, key), (None, {}))
            if before is not value:
                facts = {}
            self._derived[topic, key] = value, facts
            return value, facts

    def should_poll(self, topic: str, key: str, pause_seconds: float, after: Callable[[float], float]) -> bool:
        """Return whether no thread here has polled for the key for a while; the caller polls if True.

        Threads that begin to wait later poll no sooner: all of a process back off together.

        Args:
            topic: of the gang.
            key: of the notification that all wait for.
            pause_seconds: the caller's pause; the process's may be longer.
            after: returns the next pause, given the longer of these.
        """
        now = system.monotonic()
        with self._changed:
            polled_at, pause = self._polls.get((topic, key), (-math.inf, 0.0))
            pause = max(pause, pause_seconds)
            if now - polled_at < pause:
                return False
            self._polls[topic, key] = now, after(pause)
            return True


MAILBOX = Mailbox()


def install(worker: Worker) -> None:
    """Let a worker receive notifications from other workers; idempotent."""
    worker.handlers.setdefault(_HANDLER, _receive)


async def _receive(topic: str, entries: Entries) -> None:
    MAILBOX.post(topic, entries)


async def deliver(topic: str, entries: Entries) -> None:
    """Post into the mailbox of the process that runs this; the flow calls it through `Client.run`.

    A coroutine, because Dask would wait for the answer of a plain function.
    """
    MAILBOX.post(topic, entries)


def send(worker: Worker, addresses: Iterable[str], topic: str, entries: Mapping[str, Any]) -> None:
    """Send entries to workers, from any thread of `worker`; returns immediately and never fails.

    Those of this process have them when it returns: its event loop may wait for threads that compute.
    """
    every = frozenset(addresses)
    others = every - {worker.address}
    if others != every:
        MAILBOX.post(topic, entries)
    if others:
        worker.loop.add_callback(_send_all, worker, others, topic, dict(entries))


async def _send_all(worker: Worker, addresses: frozenset[str], topic: str, entries: Entries) -> None:
    await asyncio.gather(*(_send(worker, address, topic, entries) for address in addresses))


_unsent: dict[tuple[str, str, str], Entries] = {}
"""By sender, receiver and topic: entries gathered while a message is not answered yet."""


async def _send(worker: Worker, address: str, topic: str, entries: Entries) -> None:
    """Send one message at a time to each receiver; entries of many members of a process share a message."""
    way = worker.address, address, topic
    if way in _unsent:
        _unsent[way].update(entries)
        return
    try:
        while entries:
            _unsent[way] = {}
            await _post_remote(worker, address, topic, entries)
            entries = _unsent[way]
    finally:
        del _unsent[way]


async def _post_remote(worker: Worker, address: str, topic: str, entries: Entries) -> None:
    try:
        # Without a time-out, a host that does not answer would hold back all later entries, even when it is back.
        await asyncio.wait_for(getattr(worker.rpc(address), _HANDLER)(topic=topic, entries=entries), _ANSWER_SECONDS)
    except (TimeoutError, OSError, RuntimeError) as error:  # the last of a worker that is closing
        logger.debug("notification lost topic=%s to=%s error=%s", topic, address, error)
