"""What a store really guarantees, found out by trying: services and file systems differ, documentation helps little."""

from __future__ import annotations

import contextlib
import logging
import secrets
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier
from typing import TYPE_CHECKING

from storage.errors import ObjectExistsError, StoreError

if TYPE_CHECKING:
    from storage.store import Store

RACERS = 4

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoreGuarantees:
    """What held when it was tried."""

    writable: bool
    """What was written reads back, whole and in ranges, is listed, and can be deleted. (A probe raises otherwise.)"""
    exclusive_create: bool
    """A second create was refused, and of several at once exactly one won."""


def probe(store: Store) -> StoreGuarantees:
    """Write, list, create and delete below `.probe/`; takes about 15 requests and leaves nothing behind.

    Raises:
        StoreError: the store can't be reached or written, or does not give back what was written.
    """
    folder = f".probe/{secrets.token_hex(8)}"
    names = [f"{folder}/written", f"{folder}/created", f"{folder}/raced"]
    try:
        _check_written(store, names[0])
        exclusive = _refuses_second(store, names[1]) and _has_one_winner(store, names[2])
    except StoreError:
        with contextlib.suppress(StoreError):  # the first error says more
            store.delete(names)
        raise
    store.delete(names)
    if not exclusive:
        _LOG.warning(
            "the store '%s' lets several writers create the same object; the run's lease alone keeps other flows out",
            store.url,
        )
    return StoreGuarantees(writable=True, exclusive_create=exclusive)


def _check_written(store: Store, name: str) -> None:
    content = secrets.token_bytes(32)
    store.write(name, [content[:16], content[16:]], durable=True)
    found = store.read(name)
    if found != content:
        raise StoreError(
            f"the store '{store.url}' gave back {len(found)} other bytes for '{name}' than the {len(content)} written; "
            "it is no place to keep data: use another one"
        )
    # To the end and beyond it: readers take ranges of objects whose size they do not know.
    for start, stop in ((5, 21), (24, 48), (32, 48)):
        part = store.read_range(name, start, stop)
        if part != content[start:stop]:
            raise StoreError(
                f"the store '{store.url}' gave back {len(part)} bytes for the range [{start}, {stop}) of the "
                f"{len(content)} bytes of '{name}', expected the {len(content[start:stop])} that are there; it "
                "reads no ranges as S3 does: use another one"
            )
    if name not in store.list(f"{name.rpartition('/')[0]}/"):
        raise StoreError(
            f"the store '{store.url}' does not list '{name}', which was just written; expected listings that are never "
            "behind: use another one"
        )


def _refuses_second(store: Store, name: str) -> bool:
    # Nobody else knows the name: if it is refused, the answer was lost, and its retry met its own object.
    with contextlib.suppress(ObjectExistsError):
        store.create(name, b"first")
    try:
        store.create(name, b"second")
    except ObjectExistsError:
        return store.read(name) == b"first"
    return False


def _has_one_winner(store: Store, name: str) -> bool:
    start = Barrier(RACERS)

    def race(racer: int) -> bool:
        start.wait()
        try:
            store.create(name, f"racer {racer}".encode())
        except ObjectExistsError:
            return False
        return True

    with ThreadPoolExecutor(RACERS) as threads:
        won = list(threads.map(race, range(RACERS)))
    # None won if the winner's answer was lost and its retry met its own object; that is still exclusive.
    return won.count(True) == 0 or (won.count(True) == 1 and store.read(name) == f"racer {won.index(True)}".encode())
