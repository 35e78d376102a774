"""Lists a stage's stored objects: a restarted member resumes from them, and they outweigh any notification."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeVar

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
    from collections.abc import Callable, Iterator

    from penstock.storage.stores.protocol import Store

_logger = logging.getLogger(__name__)
_Name = TypeVar("_Name")
_Key = TypeVar("_Key")
_Value = TypeVar("_Value", ShardRef, StateRef, SnapshotRef)


def stored_shards(store: Store, stage: int, attempt: int, round_: int | None = None) -> dict[tuple[int, int], ShardRef]:
    """Return the shards of an attempt by (round, tile), of one round or of all.

    Raises:
        StageMismatchError: two shards with different content are stored for one (round, tile).
    """
    folder = stage_folder("shards", stage, attempt)
    found: dict[tuple[int, int], ShardRef] = {}
    for name, parsed in named_objects(store, folder if round_ is None else f"{folder}{round_:08d}-", parse_shard_name):
        ref = ShardRef(name=name, digest=parsed.digest, nbytes=0, round=parsed.round, tile=parsed.tile, rows=0)
        _put(found, (parsed.round, parsed.tile), ref)
    return found


def stored_states(store: Store, stage: int, attempt: int) -> dict[tuple[int, int], StateRef]:
    """Return the environment states of an attempt by (round, tile); raises as `stored_shards`."""
    found: dict[tuple[int, int], StateRef] = {}
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
