"""The commit log: a stage happened if and only if its commit is here.

Commits are numbered by stage without gaps, created only if absent, never changed and never removed; each names the
digest of the one before. Where a store does not create exclusively, each has a copy: see `commit_copies`. `latest.json`
is a hint of the log's end with the digest of its commit, which no other commit holds yet; roll-ups only save reads.
Both may be stale, lost or damaged without harm.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.storage.digest import digest
from penstock.storage.errors import CommitConflictError, CorruptObjectError, ObjectNotFoundError, StoreError
from penstock.storage.refs import Ref
from penstock.storage.runs.commit_copies import (
    copy_name,
    keep_copy,
    list_copies,
    pending_commit,
    refuse_conflict,
    refuse_conflicts,
)
from penstock.storage.runs.commit_schema import commit_name, decode_commit, encode_commit, parse_commit_name
from penstock.storage.runs.latest import LATEST, Hint, LogEnd, read_hint, write_hint
from penstock.storage.runs.rollups.names import WIDE_ROWS_LIMIT, Span, list_rollups, spans_ending
from penstock.storage.shards.verify import check_content

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from penstock.storage.cache.node_cache import NodeCache
    from penstock.storage.refs import ShardRef
    from penstock.storage.runs.commit_schema import Commit
    from penstock.storage.stores.protocol import Store

__all__ = ["CommitLog", "commit_name", "commit_ref", "parse_commit_name", "read_commit"]

_log = logging.getLogger(__name__)


def commit_ref(commit: Commit) -> Ref:
    """Return the reference to a commit; its digest is the `parent` of the next commit."""
    data = encode_commit(commit)
    return Ref(commit_name(commit.stage), digest(data), len(data))


def read_commit(cache: NodeCache, store: Store, ref: Ref) -> Commit:
    """Return the commit of a reference, read once by each node.

    Raises:
        ObjectNotFoundError: it does not exist.
        CorruptObjectError: it was altered or replaced.
    """
    data = cache.get_buffer(store, ref)
    check_content(data, ref, store.url)
    return decode_commit(bytes(data), ref.name, int(Path(ref.name).stem))


class CommitLog:
    """The log of one run. Holds nothing but its store, so it is cheap to make and to pickle.

    Args:
        store: of the run.
        rollup_interval: number of commits that a narrow roll-up covers; a wide one covers the square of it.
        is_fenced: whether of several writers of one object only the first succeeds; otherwise commits get copies.
    """

    def __init__(self, store: Store, rollup_interval: int = 100, *, is_fenced: bool = True) -> None:
        if rollup_interval < 1:
            raise ValueError(f"rollup_interval is {rollup_interval}, expected 1 or more")
        self._store = store
        self._rollup_interval = rollup_interval
        self._is_fenced = is_fenced
        self._end = LogEnd(store, rollup_interval)

    def newest(self, since: int | None = None) -> Commit | None:
        """Return the newest commit, or None before the first; four small requests where the hint is right.

        Args:
            since: a stage that is known to be committed; the search begins there and not at the hint.

        Raises:
            CommitConflictError: two flows committed a stage with different bytes, on a store that let both.
            CorruptObjectError: the newest commit was altered or cut short, or is not the one that the hint names.
        """
        hint = read_hint(self._store) if since is None else Hint(since, "")
        stage = self._end.find(hint.stage, since)
        if stage is None:
            return None
        name = commit_name(stage)
        data = self._store.read(name)
        commit = decode_commit(data, name, stage)
        if hint.has_copies or not self._is_fenced:
            refuse_conflicts(self._store, stage, digest(data))
        if stage == hint.stage and hint.digest and digest(data) != hint.digest:
            raise CorruptObjectError(
                f"'{name}' has the digest {digest(data)}, but '{LATEST}' in {self._store.url} names {hint.digest}: one "
                f"of the two was replaced. Restore the commit from a copy; if it is right, remove '{LATEST}'"
            )
        return commit

    def read(self, stage: int) -> Commit:
        """Return a stage's commit.

        Raises:
            ObjectNotFoundError: the stage was not committed.
            CorruptObjectError: the commit was altered or cut short.
        """
        name = commit_name(stage)
        return decode_commit(self._store.read(name), name, stage)

    def digest_of(self, stage: int) -> str:
        """Return the digest of the stored bytes, which the next commit names as its `parent`."""
        return digest(self._store.read(commit_name(stage)))

    def check_genesis(self, genesis: str) -> None:
        """Check that the first commit was built upon this run's description; reads one commit.

        Raises:
            ObjectNotFoundError: there is no first commit.
            CorruptObjectError: it belongs to other settings: it, or `run.json`, was replaced.
        """
        name = commit_name(0)
        parent = self.read(0).parent
        if parent != genesis:
            raise _replaced(name, parent, "run.json", genesis)

    def append(self, commit: Commit) -> None:
        """Commit a stage; durable once this returns.

        Idempotent: appending the same bytes again, after a lost response or concurrently, changes nothing.

        Raises:
            ValueError: the commit is malformed.
            CommitConflictError: another commit has this number, or the one before is missing; or, without a fence,
                two flows committed a stage with different bytes.
            StoreError: the store can't be written.
        """
        data, stage = encode_commit(commit), commit.stage
        name = commit_name(stage)
        if stage and not self._store.exists(commit_name(stage - 1)):
            raise CommitConflictError(
                f"'{name}' can't be added to {self._store.url}: '{commit_name(stage - 1)}' does not exist, and a log "
                f"has no gaps. Resume the run; it continues from its newest commit"
            )
        if not self._is_fenced:
            # Looked for, since the creation may replace it; and kept, since another creation may replace this one.
            if self._store.exists(name):
                self._accept(stage, data)
            keep_copy(self._store, stage, data)
        try:
            self._store.create(name, data)
        except StoreError as error:
            self._accept(stage, data, error)
        write_hint(self._store, Hint(stage, digest(data), has_copies=not self._is_fenced))
        if not self._is_fenced:
            refuse_conflicts(self._store, stage, self.digest_of(stage))
        self._roll_up(stage)

    def complete(self, newest: Commit | None, genesis: str) -> Commit | None:
        """Commit the stage of a flow that was stopped between the copy of its commit and the commit.

        For the holder of the run's lease. Where creation is fenced, there are no copies, and this does nothing.

        Args:
            newest: the newest commit.
            genesis: the parent of a first commit.

        Returns:
            The newest commit after that.

        Raises:
            CommitConflictError: the stage has several copies, or one that was built upon another commit.
            CorruptObjectError: the copy is damaged.
        """
        stage = newest.stage + 1 if newest else 0
        commit = None if self._is_fenced else pending_commit(self._store, stage)
        if commit is None:
            return newest
        parent = commit_ref(newest).digest if newest else genesis
        if commit.parent != parent:
            copy, before = copy_name(stage, commit_ref(commit).digest), commit_name(stage - 1) if newest else "run.json"
            raise CommitConflictError(
                f"'{copy}' in {self._store.url} is the copy of a commit upon {commit.parent}, but '{before}' has the "
                f"digest {parent}: another flow drove this run. Remove the copy if that flow's work is given up"
            )
        self.append(commit)
        return commit

    def shard_refs(self, first: int = 0, last: int | None = None) -> Iterator[ShardRef]:
        """Yield committed shards in order of stage; arguments and errors as `shard_table`."""
        from penstock.storage.runs.rollups.content import refs_of  # noqa: PLC0415  (takes longer than to read a log)

        yield from refs_of(self.shard_table(first, last))

    def shard_table(self, first: int = 0, last: int | None = None) -> pa.Table:
        """Return the shards of the committed stages `first` to `last` (default: all), a row each, in order of stage.

        This takes a few hundred reads at most, however long the log is, and checks that they are one history: each
        commit and roll-up is the one that its successor was built upon.

        Returns:
            A table of `penstock.storage.runs.rollups.content.SHARD_SCHEMA`.

        Raises:
            CommitConflictError: a stage was committed with different bytes.
            CorruptObjectError: a commit was altered, or replaced.
        """
        from penstock.storage.runs.rollups.content import concat_tables  # noqa: PLC0415  (takes longer than to read a log)

        hint = read_hint(self._store)
        newest = self._end.find(hint.stage)
        if newest is None:
            return concat_tables([])
        last = newest if last is None else min(last, newest)
        if hint.has_copies or not self._is_fenced:
            refuse_conflicts(self._store, last)
        available = list_rollups(self._store)
        return self._shards_between(first, last, available)[0]

    def verify(self, genesis: str) -> int:
        """Read the whole log and check that each commit names the digest of the one before.

        Args:
            genesis: what the first commit must name as its parent.

        Returns:
            The number of commits.

        Raises:
            CommitConflictError: a stage was committed with different bytes.
            CorruptObjectError: a commit is malformed, or is not the one that its successor was built upon.
        """
        newest = self.newest_stage()
        return sum(1 for _ in self.chain(genesis, -1 if newest is None else newest))

    def chain(self, genesis: str, last: int) -> Iterator[Commit]:
        """Yield the commits up to a stage, and check that each names the digest of the one before; as `verify`."""
        parent, copies = genesis, list_copies(self._store)
        for stage in range(last + 1):
            name = commit_name(stage)
            data = self._store.read(name)
            commit = decode_commit(data, name, stage)
            refuse_conflict(self._store, stage, copies.get(stage, []), digest(data))
            if commit.parent != parent:
                raise _replaced(name, commit.parent, commit_name(stage - 1) if stage else "run.json", parent)
            parent = digest(data)
            yield commit

    def _accept(self, stage: int, data: bytes, error: StoreError | None = None) -> None:
        """Compare the stored commit with one whose creation failed, or would; raise unless they are equal."""
        name = commit_name(stage)
        try:
            stored = self._store.read(name)
        except StoreError as unread:
            raise error or unread from None
        if stored != data:
            if not self._is_fenced:
                refuse_conflicts(self._store, stage, digest(stored))
            raise CommitConflictError(
                f"'{name}' in {self._store.url} is another commit: found {_describe(stored)}, expected "
                f"{_describe(data)}. Another flow drove this run, or an uncommitted stage was repeated with other "
                f"results; nothing was overwritten. Resume the run; it continues from its newest commit"
            ) from error

    def newest_stage(self, since: int | None = None) -> int | None:
        """Return the last stage of the log, which has no gaps; None if it is empty."""
        return self._end.find(read_hint(self._store).stage if since is None else since, since)

    def _shards_between(self, first: int, last: int, available: dict[int, list[Span]]) -> tuple[pa.Table, str, str]:
        """Walk back from a stage to another, along the digests that commits and roll-ups name.

        Returns:
            The shards, the parent of the first commit, and the digest of the last one.
        """
        from penstock.storage.runs.rollups.content import concat_tables  # noqa: PLC0415  (takes longer than to read a log)

        if last < first:
            return concat_tables([]), "", ""
        tables = []
        stage, newest = last, self.digest_of(last)
        expected = newest
        while stage >= first:
            spans = [span for span in available.get(stage, ()) if span.first >= first]
            covered, table, expected = self._covered(stage, spans, expected)
            tables.append(table)
            stage = covered - 1
        return concat_tables(tables[::-1]), expected, newest

    def _covered(self, stage: int, spans: list[Span], expected: str) -> tuple[int, pa.Table, str]:
        """Return the widest usable span that ends with a stage: its first stage, its shards, the digest before it."""
        from penstock.storage.runs.rollups.content import decode_rollup, shard_table  # noqa: PLC0415  (takes longer than to read a log)

        for span in spans:
            try:
                return (span.first, *decode_rollup(self._store.read(span.name), span, expected))
            except (CorruptObjectError, ObjectNotFoundError) as error:
                _log.warning("a roll-up is not used, the commits are read instead: %s", error)
        name = commit_name(stage)
        data = self._store.read(name)
        if digest(data) != expected:
            raise CorruptObjectError(
                f"'{name}' has the digest {digest(data)}, but '{commit_name(stage + 1)}' was built upon {expected}: "
                f"one of the two was replaced. Restore it from a copy"
            )
        commit = decode_commit(data, name, stage)
        return stage, shard_table(stage, commit.shards), commit.parent

    def _roll_up(self, stage: int) -> None:
        """Write the roll-ups that are due; errors are logged, since the commit is stored and they only save reads."""
        spans = spans_ending(stage, self._rollup_interval)
        if not spans:
            return
        from penstock.storage.runs.rollups.content import encode_rollup  # noqa: PLC0415  (takes longer than to read a log)

        for span in spans:
            try:
                # Existing roll-ups within the span are read; one of exactly this span is rewritten.
                inner = {last: [s for s in found if s != span] for last, found in list_rollups(self._store).items()}
                table, parent, commit = self._shards_between(span.first, span.last, inner)
                narrow = span.last - span.first < self._rollup_interval
                if narrow or table.num_rows <= WIDE_ROWS_LIMIT:
                    self._store.write(span.name, [encode_rollup(table, span, parent, commit)])
            except (StoreError, CorruptObjectError) as error:
                _log.warning("'%s' was not written: %s", span.name, error)


def _replaced(name: str, found: str, before: str, expected: str) -> CorruptObjectError:
    return CorruptObjectError(
        f"'{name}' was built upon {found}, but '{before}' has the digest {expected}: one of the two was replaced. "
        f"Restore it from a copy"
    )


def _describe(data: bytes) -> str:
    return f"{digest(data)} ({len(data)} bytes)"
