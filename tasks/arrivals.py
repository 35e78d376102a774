"""Waiting for what another member makes: a shard, a snapshot. It is there when it is stored, or near before that.

Its maker tells twice, with hints. First that it is made, when it lies in the node's cache: who finds it there need not
wait for its upload, and everybody else goes on waiting. Then that it is stored, from when on every reader gets it. Both
hints may be lost; storage is the truth, and is looked into now and then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from storage.refs import Ref

if TYPE_CHECKING:
    from collections.abc import Callable

    from storage.cache import NodeCache
    from tasks.membership import Membership
    from tasks.policies import Fragment

RefT = TypeVar("RefT", bound=Ref)

_MADE = "made/"


@dataclass(frozen=True, slots=True)
class Found(Generic[RefT]):
    """What has come, and how it can be read."""

    ref: RefT | None
    """None if it was a look into storage that found it."""
    near: memoryview | None
    """Its content from the node's cache where it is not said to be stored yet: read this and not the store."""
    waited_seconds: float


def tell_made(membership: Membership, fragment: Fragment, key: str, ref: Ref, replica: int) -> None:
    """Say to the one who waits for it that it lies in this node's cache and will be stored."""
    membership.hint(fragment, _MADE + key, ref.to_json(), replica)


def tell_stored(membership: Membership, fragment: Fragment, key: str, ref: Ref, replica: int) -> None:
    """Say to the one who waits for it that it is stored."""
    membership.hint(fragment, key, ref.to_json(), replica)


def wait_for(
    membership: Membership, cache: NodeCache, key: str, look: Callable[[], bool], parse: Callable[[Any], RefT]
) -> Found[RefT]:
    """Wait until it can be read.

    Args:
        membership: raises when it is time to leave.
        cache: this node's.
        key: under which it is told.
        look: looks into storage; remembers what it found.
        parse: reads a reference's JSON.
    """
    made, tried, waited_seconds = _MADE + key, False, 0.0
    while True:
        ignored = tried
        waited_seconds += membership.wait(lambda hints: key in hints or (made in hints and not ignored), look)  # noqa: B023
        stored = membership.hinted(key)
        if stored:
            return Found(parse(stored), None, waited_seconds)
        offered = membership.hinted(made)
        if offered is None or tried:
            return Found(None, None, waited_seconds)
        ref, tried = parse(offered), True
        near = cache.find(ref)
        if near is not None:
            return Found(ref, near, waited_seconds)
