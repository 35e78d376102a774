"""Copies a whole run to another store, every file as it is, so that it continues there to the same bytes."""

from __future__ import annotations

import errno
import logging
import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.storage import system
from penstock.storage.errors import ConfigError, CorruptObjectError, LeaseHeldError, RunExistsError, StoreError
from penstock.storage.refs import DIFFERENCES, ref_of_name
from penstock.storage.runs.continuing.extensions import list_extensions
from penstock.storage.runs.continuing.leftovers import clear_leftovers
from penstock.storage.runs.lease import acquire, refuse_driven
from penstock.storage.runs.run import RUN
from penstock.storage.shards.header import without_resuming
from penstock.storage.shards.verify import check_content, read_whole
from penstock.storage.transfer.progress import ProgressCount

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.storage.refs import Ref
    from penstock.storage.runs.run import RunFolder
    from penstock.storage.stores.protocol import Store

_log = logging.getLogger(__name__)

_LEASE_TTL_SECONDS = 30.0
_REFUSED = (errno.EROFS, errno.EACCES, errno.EPERM)
_AT_ONCE = 8
# The driver and the readers of a run belong to its folder, and are not copied; nor is what only spares downloads.
_EXCLUDED = ("lease.json", "readers/", DIFFERENCES)
# A name with a digest determines its content; other objects in the target may be older.
_DIGESTED = ("shards/", "states/", "snapshots/", "checkpoints/", "initial/", "replay/")


@dataclass(frozen=True, slots=True)
class CopyReport:
    """The result of a copy; objects that an earlier copy had written are not counted."""

    objects: int
    nbytes: int
    commits: int
    left_out: int = 0
    """Number of damaged objects that no commit names: a power cut leaves such, and nothing needs them."""


def copy_run(
    source: RunFolder, target: RunFolder, on_progress: Callable[[int, int], None] = lambda _, __: None
) -> CopyReport:
    """Copy a run, under its name or another; the source stays, and no flow may drive it meanwhile.

    `run.json` comes last, durable: before it there is no run in the other store, and an interrupted copy continues when
    it is started again; one that is whole is left as it is. Evaluations, timings and given-up attempts are copied;
    leases, claims of readers, differences between snapshots, and damaged objects that no commit names are not.

    Args:
        source: a run that no flow drives.
        target: a run that does not exist yet, or is a copy of the source with the same commits.
        on_progress: called with the numbers of copied objects and of all that are to be copied, by any thread.

    Raises:
        ConfigError: both are the same folder.
        RunNotFoundError: the source does not exist.
        RunExistsError: the target is another run, or has other commits.
        LeaseHeldError: a flow drives the source, or, of a source that may only be read, drove it meanwhile; or another
            command makes the target.
        CommitConflictError: a stage was committed with different bytes.
        CorruptObjectError: a commit or an object of the source is damaged; `penstock verify` lists all that are.
    """
    if (made := made_copy(source, target)) is not None:
        return made
    description = source.load()
    # Of two copies to one name, the slower one would write over a run that the other one has made.
    with _undriven(source) as check, acquire(target.store, "a copy", _LEASE_TTL_SECONDS) as keeper:
        source.log.verify(source.genesis())
        if target.exists():  # by another command, while this one waited
            return _report_existing(source, target)
        names = [name for name in source.store.list() if name != RUN and not name.startswith(_EXCLUDED)]
        clear_leftovers(target, set(names))
        there = _whole(target.store)
        missing = [name for name in names if name not in there]

        damaged: dict[str, CorruptObjectError] = {}

        def copy(name: str) -> int:
            check()
            keeper.check()
            ref = _ref_of(name)
            try:
                data = source.store.read(name) if ref is None else read_whole(source.store, ref)
                if ref is not None:
                    check_content(data, ref, source.store.url)
            except CorruptObjectError as error:
                damaged[name] = error
                return 0
            target.store.write(name, [data])
            progress.add_one()
            return len(data)

        progress = ProgressCount(len(missing), on_progress)
        with system.executor(_AT_ONCE, "copy") as threads:
            copied = list(threads.map(copy, missing))
        _refuse_committed(source, damaged)
        target.store.sync([name for name in names if name not in damaged])
        commits = target.log.verify(source.genesis())
        keeper.check()
        target.create(description)
    return CopyReport(len(copied) + 1 - len(damaged), sum(copied), commits, len(damaged))


def made_copy(source: RunFolder, target: RunFolder) -> CopyReport | None:
    """Return the report of a copy that is there already, None if there is none; errors as `copy_run`.

    It refuses the mistakes that a few small reads show, before anything is read at length.
    """
    from_place, to_place = (_place(each.store) for each in (source, target))
    if from_place == to_place:
        raise ConfigError(f"run '{source.name}' is in {target.store.url} already; copy it to another store")
    if to_place.startswith(f"{from_place}/"):
        raise ConfigError(f"{target.store.url} is inside the run's own folder; copy run '{source.name}' to another one")
    source.load()
    if target.exists():
        return _report_existing(source, target)
    refuse_driven(source.store)
    refuse_driven(target.store)
    return None


@contextmanager
def _undriven(source: RunFolder) -> Iterator[Callable[[], None]]:
    """Keep flows away from a run; yields a check that it is so. An archive that may only be read is watched instead."""
    try:
        keeper = acquire(source.store, "a copy", _LEASE_TTL_SECONDS)
    except StoreError as error:
        if not _is_read_only(error):
            raise
        refuse_driven(source.store)
        _log.warning("run=%s is copied without its lease, since its store may only be read: %s", source.name, error)
        newest = source.log.newest_stage()
        yield lambda: None
        if source.log.newest_stage() != newest:
            raise LeaseHeldError(
                f"run '{source.name}' in {source.root.url} was driven while it was copied; copy it again when no flow "
                f"drives it"
            ) from error
        return
    with keeper:
        yield keeper.check


def _is_read_only(error: BaseException | None) -> bool:
    """Return whether a store refused to be written, which no repetition changes; clients say it in their own words."""
    while error is not None:
        if (isinstance(error, OSError) and error.errno in _REFUSED) or "denied" in str(error).lower():
            return True
        error = error.__cause__
    return False


def _place(store: Store) -> str:
    """Return where a store is, the same however its folder was named."""
    return store.url if store.path(RUN) is None else os.path.realpath(store.url)


def _whole(target: Store) -> set[str]:
    """Return the names with digests whose objects an interrupted copy has left, and that need not be copied again.

    On a disk a power cut may have left them empty or cut short, so there each is read.
    """
    names = [name for name in target.list() if name.startswith(_DIGESTED)]
    if target.path(RUN) is None:
        return set(names)

    def is_whole(name: str) -> bool:
        ref = _ref_of(name)
        try:
            if ref is not None:
                check_content(read_whole(target, ref), ref, target.url)
        except CorruptObjectError:
            return False
        return ref is not None

    with system.executor(_AT_ONCE, "copy") as threads:
        return {name for name, whole in zip(names, threads.map(is_whole, names), strict=True) if whole}


def _report_existing(source: RunFolder, target: RunFolder) -> CopyReport:
    """Return the report of a copy that was made before, which its command may not have lived to say."""
    newest, there = source.log.newest(), target.log.newest()
    extended = list_extensions(source.store) != list_extensions(target.store)
    if target.load() != source.load() or there != newest or extended:
        raise RunExistsError(
            f"there is a run '{target.name}' in {target.root.url} already, and it is no copy of '{source.name}' with "
            f"the same commits; choose another store, or another name"
        )
    return CopyReport(objects=0, nbytes=0, commits=newest.stage + 1 if newest else 0)


def _refuse_committed(source: RunFolder, damaged: dict[str, CorruptObjectError]) -> None:
    """Raise the error of a damaged object that a commit or `run.json` names; log the others."""
    if not damaged:
        return
    for ref in source.described():
        if ref.name in damaged:
            raise _of_a_commit(damaged[ref.name]) from damaged[ref.name]
    newest = source.log.newest_stage()
    for commit in source.log.chain(source.genesis(), -1 if newest is None else newest):
        for ref in commit.references():
            if ref.name in damaged:
                raise _of_a_commit(damaged[ref.name]) from damaged[ref.name]
    _log.warning(
        "run=%s: %d damaged objects that no commit names were left out, such as '%s'",
        source.name,
        len(damaged),
        min(damaged),
    )


def _of_a_commit(error: CorruptObjectError) -> CorruptObjectError:
    return CorruptObjectError(f"{without_resuming(error)}. A commit names it: restore it from another copy")


def _ref_of(name: str) -> Ref | None:
    """Return the reference of an object whose name has its digest; None for others, such as another program's file."""
    try:
        return ref_of_name(name)
    except CorruptObjectError:
        return None
