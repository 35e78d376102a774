"""Copies of commits, kept on a store where a creation does not keep other writers out.

There two flows may write the commit of one stage with different bytes, and one replaces the other. So each commit is
first written under a name with its digest, which no other commit has, and only then under its stage. Two copies of a
stage are a conflict; a copy without a commit is what a flow left that was stopped in between.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from penstock.storage.digest import digest
from penstock.storage.errors import CommitConflictError, CorruptObjectError, ObjectNotFoundError
from penstock.storage.runs.commit_schema import commit_name, decode_commit

if TYPE_CHECKING:
    from penstock.storage.runs.commit_schema import Commit
    from penstock.storage.stores.protocol import Store

COPIES = "commit-copies/"
_NAME = re.compile(rf"{COPIES}([0-9]{{8,18}})-([0-9a-f]{{32}})\.json")


def copy_name(stage: int, digest_: str) -> str:
    """Return `commit-copies/<stage>-<digest>.json`."""
    return f"{COPIES}{stage:08d}-{digest_}.json"


def list_copies(store: Store) -> dict[int, list[str]]:
    """Return the digests of the copies of each stage, in one listing; files with other names are left out."""
    found: dict[int, list[str]] = {}
    for matched in filter(None, map(_NAME.fullmatch, store.list(COPIES))):
        found.setdefault(int(matched[1]), []).append(matched[2])
    return found


def keep_copy(store: Store, stage: int, data: bytes) -> None:
    """Write the copy of a commit; durable once this returns."""
    store.write(copy_name(stage, digest(data)), [data], durable=True)


def pending_commit(store: Store, stage: int) -> Commit | None:
    """Return the commit of a stage that has a copy alone; None if there is no copy.

    Raises:
        CommitConflictError: the stage has several copies.
        CorruptObjectError: the copy was altered or cut short.
    """
    copies = list_copies(store).get(stage, [])
    refuse_conflict(store, stage, copies)
    if not copies:
        return None
    name = copy_name(stage, copies[0])
    data = store.read(name)
    if digest(data) != copies[0]:
        raise CorruptObjectError(
            f"'{name}' in {store.url} has the digest {digest(data)}, expected that of its name; no commit depends on "
            f"it: remove it, and the stage is run again"
        )
    return decode_commit(data, name, stage)


def refuse_conflicts(store: Store, last: int, committed: str = "") -> None:
    """Check the copies of all stages up to one, in one request.

    Args:
        store: the run's store.
        last: the stage.
        committed: the digest of its stored commit; empty if that was not read.

    Raises:
        CommitConflictError: a stage was committed with different bytes.
    """
    for stage, copies in sorted(list_copies(store).items()):
        if stage <= last:
            refuse_conflict(store, stage, copies, committed if stage == last else "")


def refuse_conflict(store: Store, stage: int, copies: list[str], committed: str = "") -> None:
    """Check that all copies of a stage are the same commit.

    Args:
        store: the run's store.
        stage: the stage.
        copies: the digests of its copies.
        committed: the digest of its stored commit; empty if that was not read.

    Raises:
        CommitConflictError: they are not; the message names the copies, and what to do.
    """
    different = {digest_: f"'{copy_name(stage, digest_)}'" for digest_ in copies}
    if copies and committed:
        different.setdefault(committed, f"'{commit_name(stage)}' with the digest {committed}")
    if len(different) < 2:
        return
    follows = _parent_of(store, stage + 1)
    hint = f" '{commit_name(stage + 1)}' was built upon {follows}." if follows in different else ""
    fork = f"`penstock fork RUN NEW --from-stage {stage - 1}`" if stage else "`penstock train`"
    raise CommitConflictError(
        f"stage {stage} in {store.url} was committed with different bytes: found {' and '.join(different.values())}, "
        f"expected one commit. Two flows drove the run, and the store let both create '{commit_name(stage)}'; nothing "
        f"was removed.{hint} Start a run without this stage with {fork}; or keep one of the two: store it as "
        f"'{commit_name(stage)}', and remove the copy of the other"
    )


def _parent_of(store: Store, stage: int) -> str:
    """Return the parent that a stage's commit names; empty if it can't be read."""
    try:
        return decode_commit(store.read(commit_name(stage)), commit_name(stage), stage).parent
    except (CorruptObjectError, ObjectNotFoundError):
        return ""
