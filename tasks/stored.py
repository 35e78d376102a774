"""What of a stage lies in storage already: the memory of a restarted member, and the truth behind every hint."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from storage.errors import StageMismatchError
from storage.refs import (
    ShardRef,
    SnapshotRef,
    StateRef,
    parse_shard_name,
    parse_snapshot_name,
    parse_state_name,
    stage_folder,
)

if TYPE_CHECKING:
    from storage.store import Store

_Key = TypeVar("_Key")
_Value = TypeVar("_Value", ShardRef, StateRef, SnapshotRef)


def stored_shards(store: Store, stage: int, attempt: int, round_: int | None = None) -> dict[tuple[int, int], ShardRef]:
    """Shards of an attempt by (round, tile), of one round or of all.

    Raises:
        StageMismatchError: two shards with different content stand for one (round, tile).
    """
    folder = stage_folder("shards", stage, attempt)
    found: dict[tuple[int, int], ShardRef] = {}
    for name in store.list(folder if round_ is None else f"{folder}{round_:08d}-"):
        parsed = parse_shard_name(name)
        ref = ShardRef(name=name, digest=parsed.digest, nbytes=0, round=parsed.round, tile=parsed.tile, rows=0)
        _put(found, (parsed.round, parsed.tile), ref)
    return found


def stored_states(store: Store, stage: int, attempt: int) -> dict[tuple[int, int], StateRef]:
    """Environment states of an attempt by (round, tile); raises as `stored_shards`."""
    found: dict[tuple[int, int], StateRef] = {}
    for name in store.list(stage_folder("states", stage, attempt)):
        parsed = parse_state_name(name)
        ref = StateRef(name=name, digest=parsed.digest, nbytes=0, round=parsed.round, tile=parsed.tile)
        _put(found, (parsed.round, parsed.tile), ref)
    return found


def stored_snapshot(store: Store, version: int, attempt: int) -> SnapshotRef | None:
    """The snapshot of a version, if an attempt (or a commit before it) has published one; raises as `stored_shards`."""
    found: dict[int, SnapshotRef] = {}
    folder = snapshot_folder(attempt)
    for name in store.list(f"{folder}/{version:08d}-"):
        digest = parse_snapshot_name(name).digest
        _put(found, version, SnapshotRef(name=name, digest=digest, nbytes=0, version=version))
    return found.get(version)


def snapshot_folder(attempt: int) -> str:
    """Later attempts publish apart, so that an attempt that was given up can't be read."""
    return "snapshots" if attempt == 0 else f"snapshots/attempt-{attempt}"


def _put(found: dict[_Key, _Value], key: _Key, ref: _Value) -> None:
    other = found.setdefault(key, ref)
    if other.digest != ref.digest:
        raise StageMismatchError(
            f"'{other.name}' and '{ref.name}' both stand for {key}, with different content; a stage must be a "
            f"deterministic function of the commit before it. This attempt is given up and the stage starts again"
        )
