"""The commit log: a stage happened if and only if its commit is here.

Commits are numbered by stage without gaps, created only if absent, never changed and never removed; each names the
digest of the one before. `latest.json` is a hint where the log ends, and roll-ups only save reads: both may be stale,
lost or damaged without anything being wrong.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from storage.commit_form import decode_commit, encode_commit
from storage.digest import canonical_json, digest
from storage.errors import CommitConflictError, CorruptObjectError, ObjectNotFoundError, StoreError
from storage.refs import ShardRef
from storage.rollups import decode_rollup, encode_rollup, rollup_name, rollup_stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from storage.store import Store

LATEST = "latest.json"
_log = logging.getLogger(__name__)


def commit_name(stage: int) -> str:
    """`commits/<stage>.json`."""
    return f"commits/{stage:08d}.json"


class CommitLog:
    """The log of one run. Holds nothing but its store, so it is cheap to make and to pickle.

    Args:
        store: of the run.
        rollup_interval: number of commits after which a roll-up of all shards so far is written.
    """

    def __init__(self, store: Store, rollup_interval: int = 100) -> None:
        if rollup_interval < 1:
            raise ValueError(f"rollup_interval is {rollup_interval}, expected 1 or more")
        self._store = store
        self._rollup_interval = rollup_interval

    def newest(self) -> dict[str, Any] | None:
        """The newest commit, or None before the first; three small requests where the hint is right.

        Raises:
            CorruptObjectError: the newest commit was altered or cut short.
        """
        stage = self._newest_stage()
        return None if stage is None else self.read(stage)

    def read(self, stage: int) -> dict[str, Any]:
        """A stage's commit.

        Raises:
            ObjectNotFoundError: the stage was not committed.
            CorruptObjectError: the commit was altered or cut short.
        """
        name = commit_name(stage)
        return decode_commit(self._store.read(name), name, stage)

    def digest_of(self, stage: int) -> str:
        """What the next commit says as its `parent`: the digest of the stored bytes."""
        return digest(self._store.read(commit_name(stage)))

    def append(self, commit: dict[str, Any]) -> None:
        """Make a stage have happened; durable once this returns.

        Doing it again, after a lost answer or beside a twin that computed the same, changes nothing and is fine.

        Raises:
            ValueError: the commit is malformed.
            CommitConflictError: another commit stands there, or the one before is missing.
            StoreError: the store can't be written.
        """
        data, stage = encode_commit(commit), int(commit["stage"])
        name = commit_name(stage)
        if stage and not self._store.exists(commit_name(stage - 1)):
            raise CommitConflictError(
                f"'{name}' can't be added to {self._store.url}: '{commit_name(stage - 1)}' is not there, and a log has "
                f"no gaps. Resume the run, which goes on from its newest commit"
            )
        try:
            self._store.create(name, data)
        except StoreError as error:
            self._accept(name, data, error)
        self._hint(stage)
        if (stage + 1) % self._rollup_interval == 0:
            self._roll_up(stage)

    def shard_refs(self) -> Iterator[ShardRef]:
        """All committed shards in order of stage; a few reads, however long the log is."""
        newest = self._newest_stage()
        if newest is not None:
            yield from self._shards_until(newest)

    def verify(self, genesis: str) -> int:
        """Read the whole log and check that each commit names the digest of the one before.

        Args:
            genesis: what the first commit must name as its parent.

        Returns:
            How many commits there are.

        Raises:
            CorruptObjectError: a commit is malformed, or another than the one that was built upon.
        """
        parent = genesis
        newest = self._newest_stage()
        commits = 0 if newest is None else newest + 1
        for stage in range(commits):
            name = commit_name(stage)
            data = self._store.read(name)
            found = decode_commit(data, name, stage)["parent"]
            if found != parent:
                before = commit_name(stage - 1) if stage else "run.json"
                raise CorruptObjectError(
                    f"'{name}' was built upon {found}, but '{before}' has the digest {parent}: one of the two was "
                    f"replaced. Restore it from a copy"
                )
            parent = digest(data)
        return commits

    def _accept(self, name: str, data: bytes, error: StoreError) -> None:
        """Judge a create that failed by what is stored now."""
        try:
            stored = self._store.read(name)
        except StoreError:
            raise error from None
        if stored != data:
            raise CommitConflictError(
                f"'{name}' in {self._store.url} is another's commit: {_describe(stored)} stands there, ours is "
                f"{_describe(data)}. Another flow drove this run, or an uncommitted stage was done again with other "
                f"results; nothing was overwritten. Resume the run, which goes on from what is committed"
            ) from error

    def _hint(self, stage: int) -> None:
        try:
            self._store.write(LATEST, [canonical_json({"stage": stage}) + b"\n"])
        except StoreError as error:
            _log.warning("'%s' was not updated, and readers have to look for the newest commit: %s", LATEST, error)

    def _hinted(self) -> int:
        """The stage that the hint names if that is committed, else -1."""
        try:
            stage = json.loads(self._store.read(LATEST))["stage"]
        except ObjectNotFoundError:
            return -1
        except (ValueError, KeyError, TypeError) as error:
            _log.warning("'%s' is damaged and ignored; the next commit writes it anew: %r", LATEST, error)
            return -1
        usable = isinstance(stage, int) and stage >= 0 and self._is_committed(stage)
        return stage if usable else -1

    def _newest_stage(self) -> int | None:
        """Look from the hint on, in ever longer steps, and then between the last two: the log has no gaps."""
        committed, step = self._hinted(), 1
        while self._is_committed(committed + step):
            committed += step
            step *= 2
        missing = committed + step
        while missing - committed > 1:
            middle = (committed + missing) // 2
            if self._is_committed(middle):
                committed = middle
            else:
                missing = middle
        return committed if committed >= 0 else None

    def _is_committed(self, stage: int) -> bool:
        return self._store.exists(commit_name(stage))

    def _shards_until(self, stage: int) -> Iterator[ShardRef]:
        covered, refs = self._newest_rollup(stage)
        yield from refs
        for later in range(covered + 1, stage + 1):
            yield from map(ShardRef.from_json, self.read(later)["shards"])

    def _newest_rollup(self, stage: int) -> tuple[int, list[ShardRef]]:
        """The last stage that an intact roll-up covers, not later than `stage`, and its shards; (-1, []) if none."""
        stages = [rollup_stage(name) for name in self._store.list("commits/rollup-")]
        for covered in sorted((found for found in stages if found is not None and found <= stage), reverse=True):
            name = rollup_name(covered)
            try:
                return covered, decode_rollup(self._store.read(name), name, self.digest_of(covered))
            except (CorruptObjectError, ObjectNotFoundError) as error:
                _log.warning("a roll-up is not used, the commits are read instead: %s", error)
        return -1, []

    def _roll_up(self, stage: int) -> None:
        """Never a reason to fail: the commit stands, and a missing roll-up costs reads only."""
        try:
            # Built on the roll-up before it; one for this very stage, from a commit done twice, is written anew.
            refs = [*self._shards_until(stage - 1), *map(ShardRef.from_json, self.read(stage)["shards"])]
            self._store.write(rollup_name(stage), [encode_rollup(refs, stage, self.digest_of(stage))])
        except (StoreError, CorruptObjectError) as error:
            _log.warning("'%s' was not written: %s", rollup_name(stage), error)


def _describe(data: bytes) -> str:
    return f"{digest(data)} ({len(data)} bytes)"
