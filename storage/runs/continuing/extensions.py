"""Extensions: records that a run, which ended with a commit, goes on after it until other limits are reached.

The log stays as it is: the commit still says why the run ended, and the next one is built upon it. An extension is
created only if its commit has none, and never changed or removed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from penstock.storage.digest import canonical_json, digest, parse_json
from penstock.storage.errors import CommitConflictError, CorruptObjectError, ObjectNotFoundError, StoreError
from penstock.storage.records import RecordError, from_json, to_json
from penstock.storage.runs.commit_schema import commit_name, encode_commit

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.storage.runs.commit_schema import Commit
    from penstock.storage.stores.protocol import Store

FOLDER = "extensions/"
FORMAT = "penstock-extension/1"
STOPPED = "no improvement"
"""Beginning of the reason of a run that early stopping ended: other limits would not continue it."""
_NAME = re.compile(r"extensions/([0-9]{8,18})\.json")


class Limits(NamedTuple):
    """These settings end a run; no other setting and no byte that is learned depends on them."""

    max_stages: int
    target_return: float | None = None


@dataclass(frozen=True, slots=True)
class Extension:
    """A run goes on after a stage that ended it."""

    stage: int
    commit: str
    """Digest of the stage's commit."""
    max_stages: int
    target_return: float | None

    @property
    def limits(self) -> Limits:
        """Return the limits that end the run from now on."""
        return Limits(self.max_stages, self.target_return)

    def encode(self) -> bytes:
        """Return the one sequence of bytes that encodes it; it depends on no time, host or owner."""
        return canonical_json({"format": FORMAT, **to_json(self)}) + b"\n"

    @classmethod
    def decode(cls, data: bytes, name: str) -> Extension:
        """Return the extension of encoded bytes.

        Raises:
            CorruptObjectError: the object is empty, cut short, altered, or of another stage.
        """
        try:
            found = parse_json(data)
            form = found.pop("format")
            extension = from_json(cls, found)
            intact = form == FORMAT and extension.encode() == data and extension_name(extension.stage) == name
        except (RecordError, ValueError, KeyError, TypeError, AttributeError):
            intact = False
        if not intact:
            raise CorruptObjectError(
                f"'{name}' was altered or cut short: {len(data)} bytes, expected a '{FORMAT}' of the stage in its "
                f"name. Restore it from a copy; if no later stage is committed, it can be removed and the run extended "
                f"again"
            )
        return extension


def end_reason(
    limits: Limits, stage: int, evaluation: Mapping[str, float] | None, stopped: str | None = None
) -> str | None:
    """Return why a run with these limits ends with a stage, as its commit says; None if it continues.

    Args:
        limits: of the run.
        stage: that has ended.
        evaluation: of its last snapshot, if there was one.
        stopped: why its evaluations end it, whatever its last stage is; None if they do not.
    """
    target = limits.target_return
    if evaluation and target is not None and evaluation["mean_return"] >= target:
        return f"target_return {target:g} reached"
    if stopped is not None:
        return stopped
    return f"max_stages {limits.max_stages} done" if stage + 1 >= limits.max_stages else None


def extension_name(stage: int) -> str:
    """Return `extensions/<stage>.json`."""
    return f"{FOLDER}{stage:08d}.json"


def store_extension(store: Store, extension: Extension) -> None:
    """Store an extension, durable, unless its stage has another one; storing it again changes nothing.

    Raises:
        CommitConflictError: the stage has another extension.
        CorruptObjectError: that one is damaged.
        StoreError: the store can't be written.
    """
    name = extension_name(extension.stage)
    try:
        store.create(name, extension.encode())
    except StoreError as error:  # the answer may have been lost
        try:
            stored = Extension.decode(store.read(name), name)
        except ObjectNotFoundError:
            raise error from None
        if stored != extension:
            raise CommitConflictError(
                f"'{name}' in {store.url} is another extension, to max_stages {stored.max_stages}: it was extended at "
                f"the same time. Resume the run, and extend it again when it is finished"
            ) from error


def list_extensions(store: Store) -> dict[int, Extension]:
    """Return a run's extensions by stage, in order.

    Raises:
        CorruptObjectError: one is damaged.
    """
    names = map(extension_name, extended_stages(store))
    found = [Extension.decode(store.read(name), name) for name in names]
    return {extension.stage: extension for extension in found}


def extended_stages(store: Store) -> list[int]:
    """Return the stages that have an extension, in order; reads none."""
    return sorted(int(found[1]) for found in map(_NAME.fullmatch, store.list(FOLDER)) if found)


def extension_after(store: Store, commit: Commit) -> Extension | None:
    """Return the extension of a commit that ended its run; None if the run is over.

    Raises:
        CorruptObjectError: it is damaged, or belongs to another commit.
    """
    name = extension_name(commit.stage)
    try:
        extension = Extension.decode(store.read(name), name)
    except ObjectNotFoundError:
        return None
    if (found := digest(encode_commit(commit))) != extension.commit:
        raise CorruptObjectError(
            f"'{name}' extends the commit {extension.commit}, but '{commit_name(commit.stage)}' has the digest "
            f"{found}: one of the two was replaced. Restore it from a copy"
        )
    return extension


def without_end(store: Store, commit: Commit | None) -> Commit | None:
    """Return a commit as the state of its run: not finished if the run was extended; errors as `extension_after`.

    Its bytes, and so its digest, are then no longer those of the stored commit.
    """
    if commit is None or commit.finished is None or extension_after(store, commit) is None:
        return commit
    return replace(commit, finished=None)


def limits_at(configured: Limits, extensions: Iterable[Extension], stage: int) -> Limits:
    """Return the limits that apply to a stage: those of the newest extension before it, or the configured ones."""
    before = [extension for extension in extensions if extension.stage < stage]
    return max(before, key=lambda extension: extension.stage).limits if before else configured
