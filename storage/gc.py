"""Removing what nothing needs any more: the leftovers of attempts that were given up, and superseded state.

Shards that a commit names are the run's data and stay. Of a stage that isn't committed yet nothing is touched, for it
is what a resumed run goes on from.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from storage.lease import acquire

if TYPE_CHECKING:
    from collections.abc import Iterator

    from storage.run import RunFolder

_LEASE_TTL_SECONDS = 30.0
_DELETE_AT_ONCE = 1000
# Of any attempt. Whatever isn't named so is none of ours, and left alone.
_OF_STAGE = re.compile(r"(?:shards|states)/(\d{8,})(?:\.\d+)?/[^/]+|checkpoints/(\d{8,})-[^/]+")
_OF_VERSION = re.compile(r"snapshots/(?:attempt-\d+/)?(\d{8,})-[^/]+")
_FOLDERS = ("shards/", "states/", "snapshots/", "checkpoints/")


@dataclass(frozen=True, slots=True)
class GcReport:
    """What was removed, or would be."""

    objects: int
    nbytes: int
    """Of those whose size is known: all on a local disk, those that a commit names elsewhere."""
    names: tuple[str, ...]


def collect(run: RunFolder, keep_checkpoints: int = 1, dry_run: bool = False) -> GcReport:
    """Remove uncommitted files of committed stages, and state that only older commits name.

    The run's lease is held meanwhile, so that nobody resumes from what is being removed.

    Args:
        run: that nobody drives.
        keep_checkpoints: the newest so many commits keep their checkpoints, snapshots and environment states.
        dry_run: only look; needs no lease.

    Raises:
        ValueError: less than one commit would remain to resume from.
        RunNotFoundError: there is no such run.
        LeaseHeldError: a flow drives the run.
        LeaseLostError: somebody took the run over meanwhile; the rest was left.
        CorruptObjectError: the log can't be trusted; nothing was removed.
    """
    if keep_checkpoints < 1:
        raise ValueError(f"keep_checkpoints is {keep_checkpoints}, expected 1 or more: the newest is what resumes")
    run.load()
    if dry_run:
        return _report(run, _superfluous(run, keep_checkpoints))
    with acquire(run.store, "garbage collection", _LEASE_TTL_SECONDS) as keeper:
        names = _superfluous(run, keep_checkpoints)
        report = _report(run, names)
        for start in range(0, len(names), _DELETE_AT_ONCE):
            keeper.check()
            run.store.delete(names[start : start + _DELETE_AT_ONCE])
    return report


def _superfluous(run: RunFolder, keep_checkpoints: int) -> list[str]:
    newest = run.log.newest()
    if newest is None:
        return []
    stage, version = int(newest["stage"]), int(newest["version"])
    kept = {ref.name for ref in run.log.shard_refs()}
    for older in range(max(0, stage - keep_checkpoints + 1), stage + 1):
        kept |= {ref["name"] for ref in _references(run.log.read(older))}
    return [
        name
        for folder in _FOLDERS
        for name in run.store.list(folder)
        if name not in kept
        and (_number(_OF_STAGE, name, stage + 1) <= stage or _number(_OF_VERSION, name, version + 1) <= version)
    ]


def _number(pattern: re.Pattern[str], name: str, otherwise: int) -> int:
    matched = pattern.fullmatch(name)
    return int(matched[matched.lastindex or 0]) if matched else otherwise


def _references(commit: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from commit["states"]
    yield from commit["snapshots"]
    yield commit["checkpoint"]


def _report(run: RunFolder, names: list[str]) -> GcReport:
    known = _known_sizes(run, names)
    nbytes = 0
    for name in names:
        path = run.store.path(name)
        nbytes += known.get(name, 0) if path is None else path.stat().st_size
    return GcReport(objects=len(names), nbytes=nbytes, names=tuple(names))


def _known_sizes(run: RunFolder, names: list[str]) -> dict[str, int]:
    """Sizes that commits tell, for stores that don't; reads only the commits of stages that something is left of."""
    if not names or run.store.path(names[0]) is not None:
        return {}
    stages = {_number(_OF_STAGE, name, -1) for name in names if name.startswith(("states/", "checkpoints/"))}
    return {ref["name"]: ref["nbytes"] for stage in stages for ref in _references(run.log.read(stage))}
