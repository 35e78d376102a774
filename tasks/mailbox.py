"""Hints between the members of a gang: small, fast and lossy.

A hint says that something lies in storage. It goes from one Dask worker straight to another, so the scheduler sees no
round. Losing one costs time, never data: whoever waits for a hint also looks into storage now and then.

One mailbox serves all members in a worker process. Its handler is installed by the first member that runs there, so a
cluster needs no preparation.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from distributed import Worker

logger = logging.getLogger(__name__)

_HANDLER = "penstock_post"
_ANSWER_SECONDS = 5.0


class Mailbox:
    """Latest value by topic and key. Thread-safe; `wait` blocks."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._topics: dict[str, dict[str, Any]] = {}
        self._members: dict[str, int] = {}
        self._looked_at: dict[tuple[str, str], float] = {}

    def open(self, topic: str) -> None:
        """Accept hints of a topic; every `open` needs a `close`."""
        with self._changed:
            self._members[topic] = self._members.get(topic, 0) + 1
            self._topics.setdefault(topic, {})

    def close(self, topic: str) -> None:
        """The last close of a topic forgets its hints."""
        with self._changed:
            self._members[topic] -= 1
            if not self._members[topic]:
                del self._members[topic], self._topics[topic]
                self._looked_at = {key: at for key, at in self._looked_at.items() if key[0] != topic}

    def post(self, topic: str, entries: Mapping[str, Any]) -> None:
        """Store entries and wake who waits; a topic that nobody opened is ignored."""
        with self._changed:
            if topic in self._topics:
                self._topics[topic].update(entries)
                self._changed.notify_all()

    def get(self, topic: str, key: str) -> Any:
        """The latest value, or None."""
        with self._changed:
            return self._topics[topic].get(key)

    def wait(self, topic: str, ready: Callable[[Mapping[str, Any]], bool], timeout_seconds: float) -> bool:
        """Wait until `ready(entries of the topic)`; False when the time is over. A topic that is closed has none."""
        with self._changed:
            return self._changed.wait_for(lambda: ready(self._topics.get(topic, {})), timeout_seconds)

    def may_look(self, topic: str, key: str, pause_seconds: float) -> bool:
        """Whether nobody here has looked into storage for a hint's object for so long; who is told True does now."""
        now = time.monotonic()
        with self._changed:
            if now - self._looked_at.get((topic, key), -math.inf) < pause_seconds:
                return False
            self._looked_at[topic, key] = now
            return True


MAILBOX = Mailbox()


def install(worker: Worker) -> None:
    """Let a worker receive hints from other workers; harmless when done before."""
    worker.handlers.setdefault(_HANDLER, _receive)


async def _receive(topic: str, entries: dict[str, Any]) -> None:
    MAILBOX.post(topic, entries)


async def deliver(topic: str, entries: dict[str, Any]) -> None:
    """Post into the mailbox of the process that runs this; the flow calls it through `Client.run`.

    A coroutine, because Dask waits for the answer of a plain function.
    """
    MAILBOX.post(topic, entries)


def send(worker: Worker, addresses: Iterable[str], topic: str, entries: Mapping[str, Any]) -> None:
    """Hint other workers, from any thread of `worker`; returns at once and never fails."""
    worker.loop.add_callback(_send_all, worker, frozenset(addresses), topic, dict(entries))


async def _send_all(worker: Worker, addresses: frozenset[str], topic: str, entries: dict[str, Any]) -> None:
    await asyncio.gather(*(_send(worker, address, topic, entries) for address in addresses))


_unsent: dict[tuple[str, str, str], dict[str, Any]] = {}
"""By sender, receiver and topic: what has gathered since a message went out that is not answered yet."""


async def _send(worker: Worker, address: str, topic: str, entries: dict[str, Any]) -> None:
    """One message at a time to each receiver: what many members of a process have to say goes together."""
    if address == worker.address:
        MAILBOX.post(topic, entries)
        return
    way = worker.address, address, topic
    if way in _unsent:
        _unsent[way].update(entries)
        return
    try:
        while entries:
            _unsent[way] = {}
            await _tell(worker, address, topic, entries)
            entries = _unsent[way]
    finally:
        del _unsent[way]


async def _tell(worker: Worker, address: str, topic: str, entries: dict[str, Any]) -> None:
    try:
        # A host that fell silent would otherwise keep back all that is said after this, when it is there again too.
        await asyncio.wait_for(getattr(worker.rpc(address), _HANDLER)(topic=topic, entries=entries), _ANSWER_SECONDS)
    except (TimeoutError, OSError, RuntimeError) as error:  # the last of a worker that is closing
        logger.debug("hint lost topic=%s to=%s error=%s", topic, address, error)
