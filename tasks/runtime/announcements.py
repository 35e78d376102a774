"""Waits for an object that another member produces: a shard, a snapshot.

The producer announces it twice. First when it is in the node's cache: a reader on that node need not wait for the
upload, all others continue to wait. Then when it is uploaded: every reader gets it. Either notification may be lost;
storage is authoritative, and is polled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from penstock.storage.refs import Ref

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.storage.cache.node_cache import NodeCache
    from penstock.tasks.runtime.membership import Membership
    from penstock.tasks.setup.distribution.settings import Fragment

RefT = TypeVar("RefT", bound=Ref)

_CACHED = "cached/"


@dataclass(frozen=True, slots=True)
class Found(Generic[RefT]):
    """An object that has arrived, and how it can be read."""

    ref: RefT | None
    """None if a poll of storage found it, or if it is here."""
    cached: memoryview | None
    """Its content from the node's cache, if it is not announced as stored yet: read this instead of the store."""
    waited_seconds: float


def announce_cached(membership: Membership, fragment: Fragment, key: str, ref: Ref, replica: int | None) -> None:
    """Announce to the waiting replica, or to all, that the object is in this node's cache and will be stored."""
    membership.notify(fragment, _CACHED + key, ref.to_json(), replica)


def announce_stored(membership: Membership, fragment: Fragment, key: str, ref: Ref, replica: int | None) -> None:
    """Announce to the waiting replica, or to all, that the object is stored."""
    membership.notify(fragment, key, ref.to_json(), replica)


def wait_for(
    membership: Membership,
    cache: NodeCache,
    key: str,
    poll: Callable[[], bool],
    parse: Callable[[Any], RefT],
    is_here: Callable[[], bool] = lambda: False,
) -> Found[RefT]:
    """Wait until the object can be read.

    Args:
        membership: raises when the member must leave.
        cache: of this node.
        key: under which it is announced.
        poll: polls storage, and remembers the reference it finds.
        parse: decodes a reference's JSON.
        is_here: returns whether this process has the object without reading it, which ends the wait.
    """
    in_cache, tried, waited_seconds = _CACHED + key, False, 0.0
    while True:
        ignored = tried
        waited_seconds += membership.wait(
            lambda seen: key in seen or (in_cache in seen and not ignored) or is_here(),  # noqa: B023
            poll,
        )
        stored = membership.latest(key)
        if is_here():
            return Found(None, None, waited_seconds)
        if stored:
            return Found(parse(stored), None, waited_seconds)
        announced = membership.latest(in_cache)
        if announced is None or tried:
            return Found(None, None, waited_seconds)
        ref, tried = parse(announced), True
        cached = cache.find(ref)
        if cached is not None:
            return Found(ref, cached, waited_seconds)
