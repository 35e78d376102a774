"""Verifies everything that a run has stored: the chain of commits, and every object against the digest in its name."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.storage import system
from penstock.storage.digest import digest
from penstock.storage.errors import (
    CommitConflictError,
    ConfigError,
    CorruptObjectError,
    ObjectNotFoundError,
    RunNotFoundError,
)
from penstock.storage.refs import Ref, ref_of_name
from penstock.storage.runs.commit_copies import copy_name, list_copies, refuse_conflict
from penstock.storage.runs.commit_schema import decode_commit
from penstock.storage.runs.commits import commit_name
from penstock.storage.runs.continuing.arrival_orders import damaged_orders
from penstock.storage.runs.continuing.extensions import extension_after, extension_name
from penstock.storage.runs.lease import acquire
from penstock.storage.runs.reader_claims import RETENTION, shards_kept_from
from penstock.storage.runs.run import RUN
from penstock.storage.shards.header import without_resuming
from penstock.storage.shards.verify import check_content, read_whole
from penstock.storage.transfer.progress import ProgressCount

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from penstock.storage.runs.commit_schema import Commit
    from penstock.storage.runs.run import RunFolder
    from penstock.storage.stores.protocol import Store

_THREADS = 4
_LEASE_TTL_SECONDS = 30.0
_DESCRIBED = ("initial/", "replay/")
"""Folders of objects that `run.json` names."""
_FOLDERS = ("shards/", "states/", "snapshots/", "checkpoints/", *_DESCRIBED)


@dataclass(frozen=True, slots=True)
class Fault:
    """A stored object that is not what it has to be."""

    name: str
    problem: str
    """One line: what was found, what was expected, what to do."""
    committed: bool
    """True if the run needs it: it is `run.json`, `retention.json`, a commit or an extension, or `run.json` or a commit
    names it, or may name it. Nothing needs others; a resume makes those of its stage again."""


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of verifying a run."""

    commits: int
    objects: int
    """Number of objects whose content was verified."""
    faults: tuple[Fault, ...]
    """In order of name."""
    foreign: int
    """Number of other programs' files in the folders of objects."""


def last_to_verify(run: RunFolder, since: int = 0) -> int:
    """Return the newest committed stage, -1 if there is none; refuse what can't be verified.

    Raises:
        RunNotFoundError: the run does not exist: there is neither `run.json` nor a commit.
        ConfigError: `since` is no committed stage.
        StoreError: the store can't be read.
    """
    newest = run.log.newest_stage()
    # With commits, whatever is wrong with `run.json` is one of the faults that are found.
    with suppress(CorruptObjectError, *(() if newest is None else (RunNotFoundError,))):
        run.load()
    last = -1 if newest is None else newest
    if since and not 0 <= since <= last:
        raise ConfigError(f"--since {since}: run '{run.name}' has committed {last + 1} stages, expected 0 to {last}")
    return last


def verify_run(
    run: RunFolder, since: int = 0, on_progress: Callable[[int, int], None] = lambda _, __: None
) -> Verification:
    """Verify a run, which may be driven meanwhile; changes nothing.

    Every commit since a stage is decoded and compared with the digest that its successor names, the first one with
    `run.json`. Objects that they name must exist and have the digests that their names hold: shards that were not
    dropped, and what the newest commit needs. Copies of commits must agree with them. Without `since`, objects that no
    commit names are verified as well. A missing `run.json`, and a damaged one or `retention.json`, is a fault like
    others: what can't be known without it is not compared, and the fault says so.

    Args:
        run: a run.
        since: the first stage whose commit and objects are verified.
        on_progress: called with the numbers of verified objects and of all; one call at a time.

    Raises:
        RunNotFoundError: the run does not exist: there is neither `run.json` nor a commit.
        ConfigError: `since` is no committed stage.
        StoreError: the store can't be read.
    """
    last = last_to_verify(run, since)
    faults: list[Fault] = []
    commits = list(_chain(run.store, since, last, _genesis(run), faults))
    if last >= 0 and not faults:
        try:
            run.log.newest()
        except (CommitConflictError, CorruptObjectError) as error:
            faults.append(Fault(commit_name(last), str(error), committed=True))
    faults += _extension_faults(run.store, commits, last)
    if not since:
        faults += [Fault(name, problem, committed=False) for name, problem in damaged_orders(run.store)]
    committed = {ref.name for commit in commits for ref in commit.references()}
    stored = {name for folder in _FOLDERS for name in run.store.list(folder)}
    # Read after the list: garbage collection, which may go on meanwhile, says what is not needed before it removes it.
    needed = _needed(commits, run.log.newest_stage(), _kept_from(run.store, last, faults))
    try:
        described = {ref.name for ref in run.described()}
        committed |= described
        needed |= described
    except (CorruptObjectError, RunNotFoundError) as error:
        found = str(error) if isinstance(error, CorruptObjectError) else _NO_RUN
        faults.append(Fault(RUN, f"{found}. {_NOT_COMPARED}", committed=True))
        committed |= {name for name in stored if name.startswith(_DESCRIBED)}
    missing = needed - stored
    faults += [
        Fault(name, f"it is missing, and {_namer(name)} names it: restore it from a copy", True) for name in missing
    ]
    refs, foreign = _refs(sorted(stored & committed if since else stored))
    copies = list_copies(run.store)
    refs += [Ref(copy_name(stage, found), found, 0) for stage in copies if stage >= since for found in copies[stage]]
    progress = ProgressCount(len(refs), on_progress)

    def check(ref: Ref) -> Fault | None:
        error = _error(run.store, ref)
        progress.add_one()
        if error is None:
            return None
        is_committed = ref.name in committed
        return Fault(ref.name, without_resuming(error) if is_committed else str(error), is_committed)

    with system.executor(_THREADS, "verify") as threads:
        faults += filter(None, threads.map(check, refs))
    faults.sort(key=lambda fault: fault.name)
    return Verification(len(commits), len(refs), tuple(faults), foreign)


def repair(run: RunFolder, faults: Iterable[Fault]) -> list[str]:
    """Remove damaged objects that no commit names: a resumed run makes them again.

    It may have done so since they were found: what is whole, or named by a commit now, stays.

    Returns:
        The removed names.

    Raises:
        LeaseHeldError: a flow drives the run.
        CorruptObjectError: `run.json` or a commit is damaged or missing, so that it is not known what it names; nothing
            was removed.
    """
    faults = list(faults)
    namers = [fault.name for fault in faults if fault.name == RUN or fault.name.startswith("commits/")]
    if namers:
        raise CorruptObjectError(
            f"{', '.join(namers)} of run '{run.name}' must be restored from a copy before anything is removed, since "
            f"nothing else says what {'it names' if len(namers) == 1 else 'they name'}"
        )
    names = [fault.name for fault in faults if not fault.committed]
    if names:
        with acquire(run.store, "a repair", _LEASE_TTL_SECONDS) as keeper:
            names = _still_damaged(run, names)
            keeper.check()
            run.store.delete(names)
    return names


def _still_damaged(run: RunFolder, names: Iterable[str]) -> list[str]:
    """Return those of the names that are damaged and that no commit names, while no flow drives the run."""
    newest = run.log.newest_stage()
    chain = run.log.chain(run.genesis(), -1 if newest is None else newest)
    committed = {ref.name for commit in chain for ref in commit.references()}
    problems = dict(damaged_orders(run.store))
    copies = {
        copy_name(stage, found): Ref(copy_name(stage, found), found, 0)
        for stage, digests in list_copies(run.store).items()
        for found in digests
    }

    def is_damaged(name: str) -> bool:
        if name in problems:
            return True
        refs = [copies[name]] if name in copies else _refs([name])[0]
        return any(_error(run.store, ref) for ref in refs)

    return [name for name in names if name not in committed and is_damaged(name)]


_MISSING_AT_MOST = 1000
"""So many commits in a row that are not there end a search: the number of the newest one may be forged."""


_NO_RUN = (
    "it is missing, and there are commits. A copy or a fork has none before it is whole: if one was interrupted, give "
    "its command again; otherwise restore the file from a copy, since without it the run can't be resumed"
)
_NOT_COMPARED = (
    f"Not known without it, and so not compared: the first commit's parent, and what {' and '.join(_DESCRIBED)} have "
    f"to hold"
)


def _genesis(run: RunFolder) -> str | None:
    """Return the first commit's parent; None if `run.json` is damaged or missing."""
    try:
        return run.genesis()
    except (CorruptObjectError, RunNotFoundError):
        return None


def _kept_from(store: Store, last: int, faults: list[Fault]) -> int:
    """Return the first stage whose shards must exist; none of those up to `last` if `retention.json` is damaged."""
    try:
        return shards_kept_from(store)
    except CorruptObjectError as error:
        faults.append(Fault(RETENTION, f"{error}. Without it no shard counts as missing", committed=True))
        return last + 1


def _chain(store: Store, first: int, last: int, genesis: str | None, faults: list[Fault]) -> Iterator[Commit]:
    """Yield the intact commits, and record a fault for each that is damaged or does not follow the one before.

    The first one is not compared with `genesis` if that is None.
    """
    parent: str | None = None if first else genesis  # None: not known
    copies, missing = list_copies(store), 0
    for stage in range(first, last + 1):
        name = commit_name(stage)
        try:
            data = store.read(name)
            commit = decode_commit(data, name, stage)
            refuse_conflict(store, stage, copies.get(stage, []), digest(data))
        except (CorruptObjectError, ObjectNotFoundError, CommitConflictError) as error:
            missing = missing + 1 if isinstance(error, ObjectNotFoundError) else 0
            is_last = missing == _MISSING_AT_MOST
            ended = f"; so are the {missing - 1:,} before it, and later ones were not looked at" if is_last else ""
            faults.append(Fault(name, f"{error}{ended}", committed=True))
            parent = None
            if is_last:
                return
            continue
        missing = 0
        if parent is not None and commit.parent != parent:
            before = commit_name(stage - 1) if stage else "run.json"
            problem = f"it was built upon {commit.parent}, but '{before}' has the digest {parent}: one was replaced"
            faults.append(Fault(name, f"{problem}. Restore both from a copy", committed=True))
        parent = digest(data)
        yield commit


def _needed(commits: list[Commit], newest: int | None, kept_from: int) -> set[str]:
    """Return the names that must exist: garbage collection removes what only older commits need to resume."""
    names = {ref.name for commit in commits if commit.stage >= kept_from for ref in commit.shards}
    for commit in commits[-1:]:
        if commit.stage == newest:
            names |= {ref.name for ref in commit.resumed_from}
    return names


def _extension_faults(store: Store, commits: list[Commit], last: int) -> Iterator[Fault]:
    """Yield a fault for each damaged extension, and for each that is missing behind a commit that ended the run."""
    for commit in commits:
        name = extension_name(commit.stage)
        try:
            extension = extension_after(store, commit)
        except CorruptObjectError as error:
            yield Fault(name, str(error), committed=True)
            continue
        if commit.finished and extension is None and commit.stage < last:
            after = commit_name(commit.stage + 1)
            yield Fault(name, f"it is missing, and '{after}' follows a commit that ended the run", committed=True)


def _namer(name: str) -> str:
    return f"'{RUN}'" if name.startswith(_DESCRIBED) else "a commit"


def _refs(names: Iterable[str]) -> tuple[list[Ref], int]:
    """Return the references that the names make, and the number of names that make none."""
    refs, foreign = [], 0
    for name in names:
        try:
            refs.append(ref_of_name(name))
        except CorruptObjectError:
            foreign += 1
    return refs, foreign


def _error(store: Store, ref: Ref) -> CorruptObjectError | None:
    try:
        check_content(read_whole(store, ref), ref, store.url)
    except CorruptObjectError as error:
        return error
    except ObjectNotFoundError:  # removed meanwhile
        return None
    return None
