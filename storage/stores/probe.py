"""Tests a store's guarantees by requests: services and file systems differ, and their documentation is incomplete."""

from __future__ import annotations

import contextlib
import logging
import secrets
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier
from typing import TYPE_CHECKING

from penstock.storage.errors import ObjectExistsError, StoreError

if TYPE_CHECKING:
    from penstock.storage.stores.protocol import Store

RACERS = 4
_MORE_RACES = 8
"""So many further races are not won by one each, by luck, where a single one is won so in one case out of four."""

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoreGuarantees:
    """These properties held when they were tested."""

    writable: bool
    """Written objects can be read whole and in ranges, listed and deleted. (A probe raises otherwise.)"""
    exclusive_create: bool
    """A second create was refused, and of several concurrent ones exactly one won."""


def probe(store: Store) -> StoreGuarantees:
    """Write, list, create and delete below `.probe/`; make about 15 requests and leave nothing behind.

    Raises:
        StoreError: the store can't be reached or written, or returns other bytes than were written.
    """
    folder = f".probe/{secrets.token_hex(8)}"
    names = [f"{folder}/written", f"{folder}/created", f"{folder}/raced"]
    try:
        _check_written(store, names[0])
        exclusive = _refuses_second(store, names[1]) and _has_one_winner(store, names[2])
    except StoreError:
        with contextlib.suppress(StoreError):  # the first error is more specific
            store.delete(names)
        raise
    store.delete(names)
    if not exclusive:
        _LOG.warning(
            "the store '%s' lets several writers create the same object; the run's lease alone keeps other flows out, "
            "and each commit is kept twice, so that a conflict would show",
            store.url,
        )
    return StoreGuarantees(writable=True, exclusive_create=exclusive)


def require_writable(store: Store) -> None:
    """Write, read and delete an object below `.probe/`; a few requests. Raises StoreError if it can't be written."""
    name = f".probe/{secrets.token_hex(8)}/written"
    try:
        _check_written(store, name)
    finally:
        with contextlib.suppress(StoreError):  # who stores backups may not be allowed to delete
            store.delete([name])


def always_has_one_winner(store: Store) -> bool:
    """Return whether several more races to create one object have one winner each; about 40 requests.

    A store that lets several win does not do so in each race: `probe` may have been lucky in its only one.

    Raises:
        StoreError: the store can't be reached or written.
    """
    folder = f".probe/{secrets.token_hex(8)}"
    names = [f"{folder}/raced-{race}" for race in range(_MORE_RACES)]
    try:
        return all(_has_one_winner(store, name) for name in names)
    finally:
        store.delete(names)


def _check_written(store: Store, name: str) -> None:
    content = secrets.token_bytes(32)
    store.write(name, [content[:16], content[16:]], durable=True)
    found = store.read(name)
    if found != content:
        raise StoreError(
            f"the store '{store.url}' returned {len(found)} bytes for '{name}', expected the {len(content)} that were "
            "written; it does not keep data intact: use another one"
        )
    # To the end and beyond it: readers take ranges of objects whose size they do not know.
    for start, stop in ((5, 21), (24, 48), (32, 48)):
        part = store.read_range(name, start, stop)
        if part != content[start:stop]:
            raise StoreError(
                f"the store '{store.url}' returned {len(part)} bytes for the range [{start}, {stop}) of the "
                f"{len(content)} bytes of '{name}', expected the {len(content[start:stop])} that exist; it does not "
                "read ranges as S3 does: use another one"
            )
    if name not in store.list(f"{name.rpartition('/')[0]}/"):
        raise StoreError(
            f"the store '{store.url}' does not list '{name}', which was just written; expected listings that are "
            "strongly consistent: use another one"
        )


def _refuses_second(store: Store, name: str) -> bool:
    # No other process knows the name: a refusal means that the response was lost and the retry found its own object.
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
    # None won if the winner's response was lost and its retry found its own object; that is still exclusive.
    return won.count(True) == 0 or (won.count(True) == 1 and store.read(name) == f"racer {won.index(True)}".encode())
