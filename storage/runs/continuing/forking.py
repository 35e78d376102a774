"""Starts a run from an old commit of another one, and takes damaged commits off the end of a log."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from penstock.storage.digest import canonical_json, digest
from penstock.storage.errors import ConfigError, CorruptObjectError, ObjectNotFoundError, RunExistsError
from penstock.storage.runs.commit_copies import copy_name, list_copies
from penstock.storage.runs.commit_schema import encode_commit
from penstock.storage.runs.commits import commit_name, parse_commit_name
from penstock.storage.runs.continuing.extensions import (
    extended_stages,
    extension_after,
    extension_name,
    list_extensions,
)
from penstock.storage.runs.continuing.leftovers import clear_leftovers
from penstock.storage.runs.latest import LATEST, Hint, read_hint, write_hint
from penstock.storage.runs.lease import acquire
from penstock.storage.runs.reader_claims import keep_shards_from, reading, shards_kept_from
from penstock.storage.runs.rollups.names import PREFIX, parse_rollup_name
from penstock.storage.runs.verification import repair, verify_run
from penstock.storage.shards.verify import check_content, read_whole
from penstock.storage.transfer.progress import ProgressCount

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from penstock.storage.refs import Ref
    from penstock.storage.runs.commit_schema import Commit
    from penstock.storage.runs.lease import LeaseKeeper
    from penstock.storage.runs.run import RunFolder
    from penstock.storage.stores.protocol import Store

ABANDONED = "abandoned/"
_EVALUATION = re.compile(r"evaluations/([0-9]+)-[^/]+\.json")
_LEASE_TTL_SECONDS = 30.0
_THREADS = 8


@dataclass(frozen=True, slots=True)
class Fork:
    """The result of a fork."""

    objects: int
    nbytes: int
    env_steps: int
    """Environment steps that the new run begins with."""


def fork_run(
    source: RunFolder,
    target: RunFolder,
    stage: int,
    on_progress: Callable[[int, int], None] = lambda _, __: None,
    *,
    description: Mapping[str, Any] | None = None,
) -> Fork:
    """Start a run from a commit of another one: with the same settings, it continues to the same bytes.

    The commits up to that stage are copied with all that they name and the new run needs, each object verified. A flow
    may drive the source meanwhile. `run.json` comes last; before it there is no new run, and an interrupted fork is
    repeated by giving the same command again.

    Args:
        source: a run.
        target: a run that does not exist yet; in the same store or another one.
        stage: a committed stage whose checkpoint was not removed by garbage collection.
        on_progress: called with the numbers of copied objects and of all, by any thread.
        description: `run.json` of a run that continues with other settings, whose identity names the source's commit;
            the commits are then chained anew, from that identity. By default it is the source's.

    Raises:
        ConfigError: the stage is not committed, ended the run, or its checkpoint was removed.
        RunNotFoundError: the source does not exist.
        RunExistsError: the target was created before.
        LeaseHeldError: another command makes the target.
        CommitConflictError: a stage up to that one was committed with different bytes.
        CorruptObjectError: a commit or an object that is needed is damaged.
    """
    require_forkable(source, target, stage)
    genesis = source.genesis()
    with reading(source.store, "fork", 0, stage, shards=False, optional=True):
        commits = list(source.log.chain(genesis, stage))
        extended = [number for number in list_extensions(source.store) if number <= stage]
        if extended and description is not None:
            raise ConfigError(
                f"--from-stage {stage}: run '{source.name}' was extended after stage {extended[0]}; a run with other "
                f"settings can't continue it, name an earlier stage"
            )
        kept_from = shards_kept_from(source.store)
        refs: list[Ref] = [ref for commit in commits if commit.stage >= kept_from for ref in commit.shards]
        refs += commits[-1].resumed_from
        refs += source.described()
        others = [extension_name(number) for number in extended]
        names = [commit_name(commit.stage) for commit in commits]
        # Of two forks to one name, the slower one would write over a run that the other one has made.
        with acquire(target.store, "a fork", _LEASE_TTL_SECONDS) as keeper:
            _require_new(target)  # once more: another command may have made it meanwhile
            clear_leftovers(target, {*names, *(ref.name for ref in refs)})
            try:
                nbytes = _copy(source, target, refs, keeper, on_progress)
            except ObjectNotFoundError as error:
                raise ConfigError(
                    f"--from-stage {stage}: run '{source.name}' can't be forked there, since an object that it needs "
                    f"was removed, as `penstock gc` does with old checkpoints: {error}"
                ) from error
            for name in others:
                target.store.write(name, [source.store.read(name)])
            if kept_from:
                # The source's may be after this stage: the fork keeps the shards of its own stages.
                keep_shards_from(target.store, min(kept_from, stage + 1))
            if description is None:
                for name in names:
                    target.store.write(name, [source.store.read(name)])
            else:
                genesis = digest(canonical_json(description["identity"]))
                _chain_anew(target, commits, genesis)
            target.store.sync([*(ref.name for ref in refs), *others, *names])
            target.log.verify(genesis)
            keeper.check()
            created = datetime.now(UTC).isoformat(timespec="seconds")
            origin = {"run": source.name, "store": source.root.url, "stage": stage}
            target.create({**(description or source.load()), "created": created, "forked_from": origin})
    return Fork(len(refs) + len(others) + len(names) + 1 + bool(kept_from), nbytes, commits[-1].env_steps)


def require_forkable(source: RunFolder, target: RunFolder, stage: int) -> None:
    """Refuse the mistakes that a few small reads show, before anything is read at length; errors as `fork_run`."""
    source.genesis()
    _require_new(target)
    newest = source.log.newest_stage()
    if newest is None or not 0 <= stage <= newest:
        committed = "nothing yet" if newest is None else f"stages 0 to {newest}"
        raise ConfigError(f"--from-stage {stage}: run '{source.name}' has committed {committed}")
    commit = source.log.read(stage)
    if commit.finished and extension_after(source.store, commit) is None:
        raise ConfigError(
            f"--from-stage {stage}: run '{source.name}' ended with that stage ({commit.finished}), and so would its "
            f"fork; name an earlier stage"
        )


def _require_new(target: RunFolder) -> None:
    if target.exists():
        raise RunExistsError(f"there is a run '{target.name}' in {target.root.url} already; choose another name")


def _copy(
    source: RunFolder,
    target: RunFolder,
    refs: Sequence[Ref],
    keeper: LeaseKeeper,
    on_progress: Callable[[int, int], None],
) -> int:
    """Copy objects, each verified, while the target is this command's; return their bytes."""
    progress = ProgressCount(len(refs), on_progress)

    def copy(ref: Ref) -> int:
        keeper.check()
        data = read_whole(source.store, ref)
        check_content(data, ref, source.store.url)
        target.store.write(ref.name, [data])
        progress.add_one()
        return len(data)

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="fork") as threads:
        return sum(threads.map(copy, refs))


def _chain_anew(target: RunFolder, commits: Sequence[Commit], parent: str) -> None:
    """Write commits that follow each other from another first parent."""
    for commit in commits:
        data = encode_commit(replace(commit, parent=parent))
        target.store.write(commit_name(commit.stage), [data])
        parent = digest(data)


def abandon_after(run: RunFolder, stage: int) -> dict[str, str]:
    """Take the commits after a stage off the log if each of them is damaged; the run then resumes from that stage.

    A commit is damaged if it can't be read, has another digest than its neighbours or `latest.json` say, or if its
    checkpoint, or a state or snapshot that it names, is damaged or missing. The commits move to `abandoned/`, next to a
    record of what was wrong with each, and so do evaluations of their versions, which the run makes again, and their
    extensions. Damaged objects that only they name are removed.

    Args:
        run: a run that no flow drives.
        stage: the stage that becomes the newest.

    Returns:
        The problem of each abandoned commit by the commit's name, newest first: it names what is damaged or missing.

    Raises:
        ConfigError: there is no later commit, or the stage was not committed, or a later one is intact: `fork_run`
            starts another run from an earlier stage.
        CorruptObjectError: the commit of the stage, one before it, or an object that it needs is damaged.
        LeaseHeldError: a flow drives the run.
    """
    genesis = run.genesis()
    with acquire(run.store, "resume from an earlier stage", _LEASE_TTL_SECONDS) as keeper:
        newest = run.log.newest_stage()
        if newest is not None and stage > newest:
            raise ConfigError(
                f"run '{run.name}' has committed stages 0 to {newest}, not {stage}; name one before the first that is "
                f"damaged, or resume it without"
            )
        *_, commit = run.log.chain(genesis, stage)
        if problem := _problem_of(run.store, commit):
            raise CorruptObjectError(f"--from-stage {stage}: this stage can't be resumed either: {problem}")
        stored = map(parse_commit_name, run.store.list("commits/"))
        later = sorted(number for number in stored if number is not None and number > stage)
        if not later:
            raise ConfigError(f"--from-stage {stage}: run '{run.name}' has no later commit; resume it without")
        problems = {number: _damage(run, number) for number in later}
        if intact := [number for number, problem in problems.items() if not problem]:
            raise ConfigError(
                f"--from-stage {stage}: the commit of stage {intact[-1]} is intact, and no intact commit is given up; "
                f"resume from it, or start another run with `{run.command('fork', 'NEW', f'--from-stage {stage}')}`"
            )
        _abandon(run, commit, problems, keeper)
    repair(run, verify_run(run).faults)
    return {commit_name(number): problems[number] for number in sorted(problems, reverse=True)}


def _abandon(run: RunFolder, last: Commit, problems: dict[int, str], keeper: LeaseKeeper) -> None:
    stage = last.stage
    moved = f"{ABANDONED}{datetime.now(UTC).strftime('%Y%m%dT%H%M%S')}-{keeper.generation:08d}/"
    names = [commit_name(number) for number in sorted(problems, reverse=True)]
    later = {number: found for number, found in list_copies(run.store).items() if number > stage}
    copies = [copy_name(number, digest) for number, digests in later.items() for digest in digests]
    evaluated = [(name, _EVALUATION.fullmatch(name)) for name in run.store.list("evaluations/")]
    evaluations = [name for name, found in evaluated if found and int(found[1]) > last.version]
    # They continue commits that are given up: made again, these have other digests, or are the run's end once more.
    extensions = [extension_name(number) for number in extended_stages(run.store) if number > stage]
    for name in [*copies, *names, *evaluations]:
        run.store.write(f"{moved}{name.rpartition('/')[2]}", [run.store.read(name)], durable=True)
    for name in extensions:
        run.store.write(f"{moved}extension-{name.rpartition('/')[2]}", [run.store.read(name)], durable=True)
    record = {
        "resumed_from_stage": stage,
        "problems": {commit_name(number): problem for number, problem in problems.items()},
    }
    run.store.write(f"{moved}record.json", [canonical_json(record) + b"\n"], durable=True)
    spans = filter(None, map(parse_rollup_name, run.store.list(PREFIX)))
    keeper.check()
    if shards_kept_from(run.store) > stage + 1:
        # Before the stages are made again: their shards would count as dropped.
        keep_shards_from(run.store, stage + 1)
    # Copies before their commits: the next driver would commit a stage that has a copy alone.
    run.store.delete([*(span.name for span in spans if span.last > stage), *copies, *evaluations, *extensions])
    write_hint(run.store, Hint(stage, run.log.digest_of(stage), read_hint(run.store).has_copies))
    for name in names:  # newest first, so that the log has no gap at any time
        keeper.check()
        run.store.delete([name])


def _damage(run: RunFolder, stage: int) -> str:
    """Return the problem of a commit, or of what it needs; empty if it is intact."""
    try:
        commit, found = run.log.read(stage), run.log.digest_of(stage)
        if commit.parent != run.log.digest_of(stage - 1):
            return f"it was not built upon '{commit_name(stage - 1)}'"
    except (CorruptObjectError, ObjectNotFoundError) as error:
        return str(error)
    hint = read_hint(run.store)
    if hint.stage == stage and hint.digest not in ("", found):
        return f"it has the digest {found}, but '{LATEST}' names {hint.digest}"
    with suppress(CorruptObjectError, ObjectNotFoundError):
        if run.log.read(stage + 1).parent != found:
            return f"'{commit_name(stage + 1)}' was not built upon it"
    return _problem_of(run.store, commit)


def _problem_of(store: Store, commit: Commit) -> str:
    """Return the first damaged or missing object that a run needs to resume from a commit; empty if there is none."""
    for ref in commit.resumed_from:
        try:
            check_content(read_whole(store, ref), ref, store.url)
        except (CorruptObjectError, ObjectNotFoundError) as error:
            return str(error)
    return ""
