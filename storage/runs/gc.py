"""Garbage collection: removes the leftovers of attempts that were given up, and superseded state.

Shards that a commit names are the run's data and stay, unless the user asks for those of early stages to be dropped:
`retention.json` then records it, and no live reader and no unfinished replay may need them. Objects of a stage that is
not committed yet stay, because a resumed run continues from them.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.storage import system
from penstock.storage.errors import ConfigError, LeaseHeldError, RunNotFoundError
from penstock.storage.refs import DIFFERENCES, stage_of_name, version_of_name
from penstock.storage.runs.lease import acquire
from penstock.storage.runs.reader_claims import (
    claims_of_this_host,
    keep_shards_from,
    living_claims,
    recorded_claims,
    shards_kept_from,
)
from penstock.storage.runs.run import RunFolder, best_version, run_names

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.storage.runs.commit_schema import Commit
    from penstock.storage.runs.reader_claims import Claim

_LEASE_TTL_SECONDS = 30.0
_DELETE_AT_ONCE = 1000
_READS_AT_ONCE = 8
_SIZED_COMMITS = 100
"""Upper bound: to read 100,000 commits for the sizes of removed objects would take longer than to remove them."""
_COMPARED_COMMITS = 5000
"""Upper bound of evaluations that are compared: the first collection of a very long run would read for half an hour."""
_LAG_LIMIT = 8
"""A commit may name versions as far back as the largest lag."""
_FOLDERS = ("shards/", "states/", "choices/", "orders/", "snapshots/", DIFFERENCES, "checkpoints/")


@dataclass(frozen=True, slots=True)
class GcReport:
    """The objects that were removed, or would be."""

    objects: int
    nbytes: int
    """Bytes of the objects whose size is known: all on a local disk, elsewhere those that the newest commits name."""
    names: tuple[str, ...]


def collect(
    run: RunFolder,
    keep_checkpoints: int = 1,
    dry_run: bool = False,
    drop_shards_before: int | None = None,
    on_progress: Callable[[int, int], None] = lambda _, __: None,
) -> GcReport:
    """Remove uncommitted files of committed stages, and state that only older commits name.

    The run's lease is held meanwhile, so that no flow resumes from objects that are being removed. Objects that readers
    claim stay.

    Args:
        run: a run that no flow drives.
        keep_checkpoints: the newest so many commits keep their checkpoints, snapshots and environment states; so does
            the commit with the best evaluation.
        dry_run: only report; needs no lease, and of what reads it knows unfinished replays and this host's readers.
        drop_shards_before: remove the shards of earlier stages too, permanently; None drops no more than before.
        on_progress: called with the numbers of removed objects and of all that are to be removed.

    Raises:
        ValueError: less than one commit would remain to resume from.
        ConfigError: shards of stages that are not committed would be dropped.
        RunNotFoundError: the run does not exist.
        LeaseHeldError: a flow drives the run; or a reader or an unfinished replay needs shards that would be dropped.
        LeaseLostError: another flow took the run over meanwhile; the rest was left.
        CorruptObjectError: the log can't be trusted; nothing was removed.
    """
    if keep_checkpoints < 1:
        raise ValueError(f"keep_checkpoints is {keep_checkpoints}, expected 1 or more: a run resumes from the newest")
    if dry_run:
        kept_from = first_kept(run, drop_shards_before)
        return _report(run, _superfluous(run, keep_checkpoints, kept_from, recorded_claims(run.store)))
    kept_from = _first_asked(run, drop_shards_before)
    with acquire(run.store, "garbage collection", _LEASE_TTL_SECONDS) as keeper:
        claims = _drop(run, kept_from)
        names = _superfluous(run, keep_checkpoints, kept_from, claims)
        report = _report(run, names)
        for start in range(0, len(names), _DELETE_AT_ONCE):
            keeper.check()
            run.store.delete(names[start : start + _DELETE_AT_ONCE])
            on_progress(min(start + _DELETE_AT_ONCE, len(names)), len(names))
    return report


def first_kept(run: RunFolder, drop_shards_before: int | None = None) -> int:
    """Return the first stage whose shards stay; refuse what can't be collected, after small reads.

    Only where shards would be dropped, the descriptions of the store's other runs are read.

    Raises:
        ConfigError: shards of stages that are not committed would be dropped.
        LeaseHeldError: an unfinished replay needs them, or a reader whose process lives on this host. Others' claims
            are not judged: they may be of readers that are gone.
        RunNotFoundError: the run does not exist.
        CorruptObjectError: the log can't be trusted.
    """
    kept_from = _first_asked(run, drop_shards_before)
    if kept_from > shards_kept_from(run.store):
        _refuse_if_needed(run, kept_from, claims_of_this_host(run.store))
    return kept_from


def _first_asked(run: RunFolder, drop_shards_before: int | None) -> int:
    """Return the first stage whose shards stay as far as its user and earlier collections say; errors as `collect`."""
    run.load()
    newest = run.log.newest()
    kept_from = shards_kept_from(run.store)
    if drop_shards_before is None:
        return kept_from
    end = newest.stage + 1 if newest else 0
    if not 0 <= drop_shards_before <= end:
        raise ConfigError(
            f"--drop-shards-before {drop_shards_before}: run '{run.name}' has committed {end} stages, expected 0 to "
            f"{end}"
        )
    return max(kept_from, drop_shards_before)


def _drop(run: RunFolder, kept_from: int) -> list[Claim]:
    """Record the dropped shards, unless a reader needs them; returns the claims of live readers."""
    before = shards_kept_from(run.store)
    claims = living_claims(run.store)
    if kept_from <= before:
        return claims
    _refuse_if_needed(run, kept_from, claims)
    keep_shards_from(run.store, kept_from)
    # A reader that claimed before this record may not have seen it, but its claim is seen here.
    claims = living_claims(run.store)
    try:
        _refuse_if_needed(run, kept_from, claims)
    except LeaseHeldError:
        keep_shards_from(run.store, before)
        raise
    return claims


def _refuse_if_needed(run: RunFolder, kept_from: int, claims: list[Claim]) -> None:
    needed = [str(claim) for claim in claims if claim.shards and claim.first < kept_from]
    needed += [f"replay '{name}', which is not finished" for name in _unfinished_replays(run, kept_from)]
    if needed:
        raise LeaseHeldError(
            f"shards of run '{run.name}' before stage {kept_from} are needed by {'; '.join(needed)}. Wait until they "
            f"are finished, or drop fewer stages; nothing was removed"
        )


def _unfinished_replays(run: RunFolder, kept_from: int) -> list[str]:
    """Return unfinished runs in the same store that read stages of this run before `kept_from`."""
    found = []
    for name in run_names(run.root):
        other = RunFolder(run.root, name)
        try:
            reads = other.load().get("reads", {}).get("sources", [])
        except RunNotFoundError:
            continue
        if any(source["run"] == run.name and source["stages"][0] < kept_from for source in reads):
            newest = other.newest()
            found += [] if newest and newest.finished else [name]
    return found


def _superfluous(run: RunFolder, keep_checkpoints: int, kept_from: int, claims: list[Claim]) -> list[str]:
    newest = run.log.newest()
    if newest is None:
        return []
    stage, version = newest.stage, newest.version
    kept = set(run.log.shard_table(kept_from)["name"].to_pylist())
    for older in range(max(0, stage - keep_checkpoints + 1), stage + 1):
        kept |= {ref.name for ref in run.log.read(older).resumed_from}
    rounds_per_stage = max(1, version // (stage + 1))
    if best := _best_commit(run, newest, rounds_per_stage):
        kept |= {ref.name for ref in best.resumed_from}
    return [
        name
        for folder in _FOLDERS
        for name in run.store.list(folder)
        if name not in kept
        and (_is_until(stage, stage_of_name(name)) or _is_until(version, version_of_name(name)))
        and not any(_claims(claim, name, rounds_per_stage) for claim in claims)
    ]


def _best_commit(run: RunFolder, newest: Commit, rounds_per_stage: int) -> Commit | None:
    """Return the commit of the best evaluation among those whose snapshot is there; None if none was evaluated.

    Once garbage was collected, few older snapshots are left, and so few commits are read; before, the newest 5,000 are.
    """
    names = set(run.store.list("snapshots/"))
    found = filter(None, map(version_of_name, names))
    stages = sorted({min(-(-version // rounds_per_stage) - 1, newest.stage) for version in found})
    with system.executor(_READS_AT_ONCE, "gc") as threads:
        commits = {one.version: one for one in threads.map(run.log.read, stages[-_COMPARED_COMMITS:])}
    there = {version for version, one in commits.items() if one.snapshots[-1].name in names}
    best = best_version(run, commits.values(), there, skip_damaged=True)
    return None if best is None else commits[best]


def _claims(claim: Claim, name: str, rounds_per_stage: int) -> bool:
    """Return whether a reader of the claimed stages may need the object."""
    stage, version = stage_of_name(name), version_of_name(name)
    if stage is not None:
        return claim.first <= stage <= claim.last
    first, last = claim.first * rounds_per_stage - _LAG_LIMIT, (claim.last + 1) * rounds_per_stage
    return version is not None and first <= version <= last


def _is_until(last: int, number: int | None) -> bool:
    """Return whether an object has a number, up to `last`. Files with other names are not Penstock's, and stay."""
    return number is not None and number <= last


def _report(run: RunFolder, names: list[str]) -> GcReport:
    known = _known_sizes(run, names)
    nbytes = 0
    for name in names:
        path = run.store.path(name)
        with suppress(FileNotFoundError):  # another collection may remove it while a dry run looks
            nbytes += known.get(name, 0) if path is None else path.stat().st_size
    return GcReport(objects=len(names), nbytes=nbytes, names=tuple(names))


def _known_sizes(run: RunFolder, names: list[str]) -> dict[str, int]:
    """Return sizes from commits, for stores that have none; reads the newest commits that have objects to remove.

    Shards that are dropped have all of theirs.
    """
    if not names or run.store.path(names[0]) is not None:
        return {}
    dropped = {stage_of_name(name) or 0 for name in names if name.startswith("shards/")}
    shards = run.log.shard_table(min(dropped), max(dropped)) if dropped else None
    sizes = {} if shards is None else dict(zip(shards["name"].to_pylist(), shards["nbytes"].to_pylist(), strict=True))
    found = {stage_of_name(name) or 0 for name in names if name.startswith(("states/", "checkpoints/"))}
    stages = sorted(found)[-_SIZED_COMMITS:]
    return sizes | {ref.name: ref.nbytes for stage in stages for ref in run.log.read(stage).resumed_from}
