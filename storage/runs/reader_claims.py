"""Claims of readers on a run's stages, whose objects garbage collection keeps as long as the reader lives.

A reader holds a lease of its own, `readers/<reader>/lease.json`, and next to it records in `claim.json` what it reads.
It lives as long as it renews the lease; a killed reader is distinguished from a slow one as with any lease, and its
claim ends. No manual clean-up is needed.

A reader claims first and then reads what was dropped; garbage collection records first what it drops and then reads
the claims. In any order, at least one sees the other.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.storage import system
from penstock.storage.digest import canonical_json, parse_json
from penstock.storage.errors import ConfigError, CorruptObjectError, LeaseHeldError, ObjectNotFoundError, StoreError
from penstock.storage.runs.lease import LEASE, Lease, acquire, begin

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.storage.runs.lease import LeaseKeeper
    from penstock.storage.stores.protocol import Store

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
    """True if shards are read, and not only snapshots and checkpoints."""

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
    """Protect the objects that the commits of some stages name from garbage collection, within the context.

    Args:
        store: the run's store.
        purpose: a word for the purpose, part of the reader's name.
        first: the first stage.
        last: the last stage, included.
        shards: whether their shards are read, and not only snapshots and checkpoints.
        optional: if the store can't be written, read unprotected, with a warning.
        ttl_seconds: a reader counts as dead after this time without renewal.

    Raises:
        ConfigError: the shards of one of these stages were dropped.
        StoreError: the store can't be written.
    """
    reader = f"{purpose}-{system.token()[:12]}"
    below = store.at(f"{FOLDER}{reader}")
    keeper: LeaseKeeper | None = None
    try:
        keeper = begin(below, f"{system.process().host}/{system.process().pid} for {purpose}", ttl_seconds)
        below.write(_CLAIM, [canonical_json({"first": first, "last": last, "shards": shards})])
    except StoreError as error:
        if not optional:
            _leave(store, reader, keeper)
            raise
        _log.warning("the stages that are read are not protected from garbage collection: %s", error)
    try:
        kept = shards_kept_from(store)
        if shards and first < kept:
            raise ConfigError(
                f"stages {first} to {min(last, kept - 1)} in {store.url} no longer have shards: those before stage "
                f"{kept} were dropped by `penstock gc --drop-shards-before`; read from stage {kept} on"
            )
        yield
    finally:
        _leave(store, reader, keeper)


def _leave(store: Store, reader: str, keeper: LeaseKeeper | None) -> None:
    """Remove the claim; errors are logged, for the lease shows that the reader has ended."""
    if keeper is None:
        return
    keeper.release()
    try:
        _remove(store, reader)
    except StoreError as error:
        _log.warning("the claim of the reader '%s' in %s was not removed: %s", reader, store.url, error)


def _remove(store: Store, reader: str) -> None:
    """Remove a reader's claim and lease; through the run's store, which then also removes the empty folder."""
    store.delete([f"{FOLDER}{reader}/{_CLAIM}", f"{FOLDER}{reader}/{LEASE}"])


def living_claims(store: Store) -> list[Claim]:
    """Return the claims of live readers, and remove those of others; waits one ttl for each in doubt.

    A reader without a claim yet can be ignored: it claims first, and then reads which shards were dropped.
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
            _remove(store, reader)
    return found


def claims_of_this_host(store: Store) -> list[Claim]:
    """Return the claims of readers in living processes of this host, after two reads of each; changes nothing."""
    return [claim for claim, owner in _claims_with_owners(store) if owner and owner.owner_process() == "alive"]


def recorded_claims(store: Store) -> list[Claim]:
    """Return the claims of all readers but those that are known to be gone; changes nothing."""
    return [claim for claim, _ in _claims_with_owners(store)]


def _claims_with_owners(store: Store) -> Iterator[tuple[Claim, Lease | None]]:
    """Yield the claims of readers that are not known to be gone, and the leases of these, None if it can't be read."""
    for reader in sorted({name.split("/")[1] for name in store.list(FOLDER) if name.endswith(f"/{_CLAIM}")}):
        below = store.at(f"{FOLDER}{reader}")
        claim = _claim(below, reader)
        if claim is None:
            continue
        try:
            owner = Lease.decode(below.read(LEASE))
        except ObjectNotFoundError:
            continue
        except (StoreError, CorruptObjectError):  # collecting watches such a lease for a while
            yield claim, None
        else:
            if not owner.released and owner.owner_process() != "dead":
                yield claim, owner


def _decode(reader: str, data: bytes) -> Claim:
    claim = parse_json(data)
    found = Claim(reader, claim["first"], claim["last"], claim["shards"])
    if (type(found.first), type(found.last), type(found.shards)) != (int, int, bool):
        raise TypeError(f"it is {claim}")
    return found


def _claim(below: Store, reader: str) -> Claim | None:
    try:
        return _decode(reader, below.read(_CLAIM))
    except ObjectNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptObjectError(
            f"'{FOLDER}{reader}/{_CLAIM}' in {below.url} is damaged, expected the stages that are read ({error}); stop "
            f"that reader, and remove the file"
        ) from error


def shards_kept_from(store: Store) -> int:
    """Return the first stage whose shards were not dropped; 0 if none were.

    Raises:
        CorruptObjectError: `retention.json` was altered.
    """
    try:
        retention = parse_json(store.read(RETENTION))
        if retention["format"] == _FORMAT and type(retention["shards_from_stage"]) is int:
            return int(retention["shards_from_stage"])
    except ObjectNotFoundError:
        return 0
    except (ValueError, KeyError, TypeError):
        pass
    raise CorruptObjectError(
        f"'{RETENTION}' in {store.url} is damaged, expected the first stage with shards; restore it from a copy"
    )


def keep_shards_from(store: Store, stage: int) -> None:
    """Record that shards of earlier stages are dropped, before any is removed; durable."""
    store.write(RETENTION, [canonical_json({"format": _FORMAT, "shards_from_stage": stage}) + b"\n"], durable=True)
