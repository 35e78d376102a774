"""Who reads a run just now: a reader's claim on stages, which garbage collection leaves alone as long as it lives.

A reader holds a lease of its own, `readers/<reader>/lease.json`, and beside it says in `claim.json` what it reads. It
lives as long as it renews the lease; one that was killed is told from one that is slow as with any lease, and what it
claimed is free. Nothing has to be cleaned up by hand.

A reader claims first and then looks at what was dropped; garbage collection says first what it drops and then looks at
who reads. Whichever comes first, at least one sees the other.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

from storage.digest import canonical_json
from storage.errors import ConfigError, CorruptObjectError, LeaseHeldError, ObjectNotFoundError, StoreError
from storage.lease import LEASE, acquire

if TYPE_CHECKING:
    from collections.abc import Iterator

    from storage.lease import LeaseKeeper
    from storage.store import Store

FOLDER = "readers/"
RETENTION = "retention.json"
_CLAIM = "claim.json"
_FORMAT = "penstock-retention/1"
_TTL_SECONDS = 30.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Claim:
    """Stages `first` to `last`, both included, that a reader reads."""

    reader: str
    first: int
    last: int
    shards: bool
    """Whether shards are read, and not only snapshots and checkpoints."""

    def __str__(self) -> str:
        return f"reader '{self.reader}' of stages {self.first} to {self.last}"


@contextmanager
def reading(
    store: Store,
    purpose: str,
    first: int,
    last: int,
    *,
    shards: bool = True,
    optional: bool = False,
    ttl_seconds: float = _TTL_SECONDS,
) -> Iterator[None]:
    """Keep what the commits of some stages name from being removed, for as long as this lasts.

    Args:
        store: of the run.
        purpose: what for, in a word, part of the reader's name.
        first: stage.
        last: stage, included.
        shards: whether their shards are read, and not only snapshots and checkpoints.
        optional: where the store can't be written, read unprotected, with a warning.
        ttl_seconds: a reader that was silent for so long may be taken for dead.

    Raises:
        ConfigError: the shards of one of these stages were dropped.
        StoreError: the store can't be written.
    """
    reader = f"{purpose}-{uuid4().hex[:12]}"
    below = store.at(f"{FOLDER}{reader}")
    keeper: LeaseKeeper | None = None
    try:
        keeper = acquire(below, f"{socket.gethostname()}/{os.getpid()} for {purpose}", ttl_seconds)
        below.write(_CLAIM, [canonical_json({"first": first, "last": last, "shards": shards})])
    except StoreError as error:
        if not optional:
            _leave(below, keeper)
            raise
        _log.warning("what is read is not protected from garbage collection: %s", error)
    try:
        kept = shards_kept_from(store)
        if shards and first < kept:
            raise ConfigError(
                f"stages {first} to {min(last, kept - 1)} in {store.url} have no shards any more: those before stage "
                f"{kept} were dropped by `penstock gc --drop-shards-before`; read from stage {kept} on"
            )
        yield
    finally:
        _leave(below, keeper)


def _leave(below: Store, keeper: LeaseKeeper | None) -> None:
    """Never a reason to fail: what is left of a reader that has ended is told by its lease."""
    if keeper is None:
        return
    keeper.release()
    try:
        below.delete([_CLAIM, LEASE])
    except StoreError as error:
        _log.warning("'%s' in %s was not removed: %s", _CLAIM, below.url, error)


def living_claims(store: Store) -> list[Claim]:
    """Claims of readers that live; what is left of others is removed. Waits one ttl for each that can't be told.

    A reader that has no claim yet has none to be respected: it will look at what was dropped once it has one.
    """
    found = []
    readers = sorted({name.split("/")[1] for name in store.list(FOLDER) if name.count("/") == 2})
    for reader in readers:
        below = store.at(f"{FOLDER}{reader}")
        try:
            acquire(below, "garbage collection", _TTL_SECONDS).release()
        except LeaseHeldError:
            claim = _claim(below, reader)
            found += [claim] if claim else []
        else:
            below.delete([_CLAIM, LEASE])
    return found


def recorded_claims(store: Store) -> list[Claim]:
    """Claims of all readers, whether they live or not; changes nothing."""
    readers = sorted({name.split("/")[1] for name in store.list(FOLDER) if name.endswith(f"/{_CLAIM}")})
    return [claim for claim in (_claim(store.at(f"{FOLDER}{reader}"), reader) for reader in readers) if claim]


def _claim(below: Store, reader: str) -> Claim | None:
    try:
        said = json.loads(below.read(_CLAIM))
        return Claim(reader, int(said["first"]), int(said["last"]), bool(said["shards"]))
    except ObjectNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptObjectError(
            f"'{FOLDER}{reader}/{_CLAIM}' in {below.url} does not say which stages are read ({error}); end that "
            f"reader, and remove the file"
        ) from error


def shards_kept_from(store: Store) -> int:
    """The first stage whose shards were not dropped; 0 where none were.

    Raises:
        CorruptObjectError: `retention.json` was altered.
    """
    try:
        said = json.loads(store.read(RETENTION))
        if said["format"] == _FORMAT and type(said["shards_from_stage"]) is int:
            return int(said["shards_from_stage"])
    except ObjectNotFoundError:
        return 0
    except (ValueError, KeyError, TypeError):
        pass
    raise CorruptObjectError(
        f"'{RETENTION}' in {store.url} does not say from which stage on shards are kept; restore it from a copy"
    )


def keep_shards_from(store: Store, stage: int) -> None:
    """Say that shards of earlier stages are dropped, before any is removed; durable."""
    store.write(RETENTION, [canonical_json({"format": _FORMAT, "shards_from_stage": stage}) + b"\n"], durable=True)
