"""Waits for an object that another member makes: by notification, and by polls of storage, since those may be lost."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.storage import system

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.tasks.runtime.mailbox import Mailbox

_FIRST_SECONDS = 0.25
_FIRST_FAR_SECONDS = 0.05
_AT_MOST_SECONDS = 2.0
_POLLS_PER_SECOND = 250.0
"""Upper bound over all members of a role; one prefix of S3 answers a few thousand requests a second."""


def first_poll_seconds(waiters: int, *, far: bool = False) -> float:
    """Return the delay before the first poll of storage.

    Args:
        waiters: members of the role, or processes of such members, that may all be waiting.
        far: whether the object is made on another cluster, from which no notification comes.
    """
    return max(_FIRST_FAR_SECONDS if far else _FIRST_SECONDS, waiters / _POLLS_PER_SECOND)


def next_poll_seconds(pause_seconds: float, waiters: int) -> float:
    """Return the delay after one more poll: exponential back-off, up to two seconds or the limit of all waiters."""
    return min(2 * pause_seconds, max(_AT_MOST_SECONDS, waiters / _POLLS_PER_SECOND))


def wait_for_object(
    mailbox: Mailbox,
    topic: str,
    notified: Callable[[Any], bool],
    poll: Callable[[], bool],
    check: Callable[[], None],
    waiters: int,
    *,
    of_all: str | None = None,
) -> float:
    """Wait until a notification or a poll of storage satisfies.

    Args:
        mailbox: of this process.
        topic: of the gang.
        notified: evaluates the topic's notifications.
        poll: polls storage; called after a while without a notification, then with exponential back-off.
        check: raises if the member must leave; called after each wait.
        waiters: as in `first_poll_seconds`.
        of_all: key of the notification, where all members of the role wait for the same: one in each process polls.

    Returns:
        Seconds waited.
    """
    start = system.monotonic()
    # No notification comes from another cluster: polling is all there is.
    pause = first_poll_seconds(waiters, far=bool(mailbox.get(topic, "elsewhere")))
    longer = partial(next_poll_seconds, waiters=waiters)
    while not mailbox.wait(topic, lambda entries: "leave" in entries or notified(entries), pause):
        check()
        if (of_all is None or mailbox.should_poll(topic, of_all, pause, longer)) and poll():
            break
        pause = longer(pause)
    check()
    return system.monotonic() - start
