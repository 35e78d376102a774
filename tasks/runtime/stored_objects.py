"""Lists a stage's stored objects: a restarted member resumes from them, and they outweigh any notification."""

from __future__ import annotations

import itertools
import logging
import weakref
from os.path import commonprefix
from typing import TYPE_CHECKING, Generic, TypeVar

from penstock.storage import system
from penstock.storage.errors import CorruptObjectError, StageMismatchError
from penstock.storage.refs import (
    ShardRef,
    SnapshotRef,
    StateRef,
    parse_shard_name,
    parse_snapshot_name,
    parse_state_name,
    stage_folder,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from penstock.storage.stores.protocol import Store

_LISTED_AT_ONCE = 1000
"""Names that S3 lists with one request."""
_logger = logging.getLogger(__name__)
_Name = TypeVar("_Name")
_Key = TypeVar("_Key")
_Value = TypeVar("_Value", ShardRef, StateRef, SnapshotRef)
_Ref = TypeVar("_Ref", ShardRef, StateRef)


class Listing(dict[tuple[int, int], _Ref]):
    """The references of a stage's objects by (round, tile). A class of its own, so that it can be referenced weakly."""


class SharedListing(Generic[_Ref]):
    """Reads a listing once for all members of a process that ask at the same time. Safe for threads.

    A stage's listing grows with all tiles, and so would the work of every member that resumes. It is held no longer
    than its members do.
    """

    def __init__(self) -> None:
        self._lock = system.condition()
        self._moments = itertools.count()
        self._newest: tuple[Hashable, int, weakref.ref[Listing[_Ref]]] | None = None

    def get(self, question: Hashable, read: Callable[[], Listing[_Ref]]) -> Listing[_Ref]:
        """Return what `read` returned, no earlier than this was asked; one object for all that ask meanwhile.

        Args:
            question: names what is listed.
            read: lists it.

        Raises:
            BaseException: what `read` has raised; the next caller reads itself.
        """
        asked = next(self._moments)
        with self._lock:
            if self._newest is not None:
                known, began, reference = self._newest
                listing = reference()
                if listing is not None and known == question and began > asked:
                    return listing
            began = next(self._moments)
            listing = read()
            self._newest = question, began, weakref.ref(listing)
            return listing


def stored_shards(store: Store, stage: int, attempt: int, round_: int | None = None) -> Listing[ShardRef]:
    """Return the shards of an attempt by (round, tile), of one round or of all.

    Raises:
        StageMismatchError: two shards with different content are stored for one (round, tile).
    """
    folder = stage_folder("shards", stage, attempt)
    found: Listing[ShardRef] = Listing()
    for name, parsed in named_objects(store, folder if round_ is None else f"{folder}{round_:08d}-", parse_shard_name):
        ref = ShardRef(name=name, digest=parsed.digest, nbytes=0, round=parsed.round, tile=parsed.tile, rows=0)
        _put(found, (parsed.round, parsed.tile), ref)
    return found


def stored_states(store: Store, stage: int, attempt: int) -> Listing[StateRef]:
    """Return the environment states of an attempt by (round, tile); raises as `stored_shards`."""
    found: Listing[StateRef] = Listing()
    for name, parsed in named_objects(store, stage_folder("states", stage, attempt), parse_state_name):
        ref = StateRef(name=name, digest=parsed.digest, nbytes=0, round=parsed.round, tile=parsed.tile)
        _put(found, (parsed.round, parsed.tile), ref)
    return found


def stored_snapshot(store: Store, version: int, attempt: int) -> SnapshotRef | None:
    """Return the snapshot of a version, or None if the attempt has not published it; raises as `stored_shards`."""
    found: dict[int, SnapshotRef] = {}
    folder = snapshot_folder(attempt)
    for name, parsed in named_objects(store, f"{folder}/{version:08d}-", parse_snapshot_name):
        _put(found, version, SnapshotRef(name=name, digest=parsed.digest, nbytes=0, version=version))
    return found.get(version)


def stored_snapshots(store: Store, versions: range, attempt: int) -> dict[int, str]:
    """Return the names of an attempt's snapshots of these versions, by version.

    Lists few others, however many versions a run has: at most a thousand, or ten times as many as these.
    """
    folder = snapshot_folder(attempt)
    return {
        parsed.version: name
        for prefix in _prefixes(versions)
        for name, parsed in named_objects(store, f"{folder}/{prefix}", parse_snapshot_name)
        if parsed.version in versions and name.count("/") == folder.count("/") + 1
    }


def _prefixes(versions: range) -> list[str]:
    """Return what names of these versions begin with, and few others': two where no one prefix is long enough."""
    first, last, unit = versions[0], versions[-1], 1
    while first // (10 * unit) != last // (10 * unit):
        unit *= 10
    # `unit` is the highest decimal place in which the first and the last one differ.
    middle = last // unit * unit
    parts = [(first, middle - 1), (middle, last)] if 10 * unit > _LISTED_AT_ONCE else [(first, last)]
    return [commonprefix([f"{start:08d}", f"{stop:08d}"]) for start, stop in parts]  # noqa: RUF071  (text)


def named_objects(store: Store, prefix: str, parse: Callable[[str], _Name]) -> Iterator[tuple[str, _Name]]:
    """Yield the stored names that `parse` takes, with what it returns.

    Other files in a run's folders are passed over: editors, synchronisation and network file systems leave some.
    """
    for name in store.list(prefix):
        try:
            yield name, parse(name)
        except CorruptObjectError:
            _logger.debug("'%s' in %s is not an object of this run, and is left alone", name, store.url)


def snapshot_folder(attempt: int) -> str:
    """Return the folder of an attempt's snapshots; later attempts have their own, so none reads an abandoned one."""
    return "snapshots" if attempt == 0 else f"snapshots/attempt-{attempt}"


def _put(found: dict[_Key, _Value], key: _Key, ref: _Value) -> None:
    other = found.setdefault(key, ref)
    if other.digest != ref.digest:
        raise StageMismatchError(
            f"'{other.name}' and '{ref.name}' are both stored for {key}, with different content; a stage must be a "
            f"deterministic function of the commit before it. This attempt is given up and the stage starts again"
        )
