"""The end of a log: `latest.json`, a hint of it with the digest of its commit, and the search where that is wrong."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from penstock.storage.digest import canonical_json, parse_json
from penstock.storage.errors import ObjectNotFoundError, StoreError
from penstock.storage.runs.commit_schema import commit_name, parse_commit_name
from penstock.storage.runs.rollups.names import list_rollups

if TYPE_CHECKING:
    from penstock.storage.stores.protocol import Store

LATEST = "latest.json"
_MOST_STAGES = 10**12  # a damaged hint must not become a name that no file system takes
_log = logging.getLogger(__name__)


class Hint(NamedTuple):
    """The newest commit, as far as the hint says."""

    stage: int
    """-1 if there is no hint, or a damaged one. Whoever uses it checks that the stage is committed."""
    digest: str
    """Empty if it is not known: earlier versions wrote none."""
    has_copies: bool = False
    """True if commits may have copies, since the store may not keep other writers out: see `commit_copies`."""


NO_HINT = Hint(-1, "", has_copies=True)


def read_hint(store: Store) -> Hint:
    """Return the hint; a damaged one is logged and ignored.

    Raises:
        StoreError: the store can't be read.
    """
    try:
        found = parse_json(store.read(LATEST))
    except ObjectNotFoundError:
        return NO_HINT
    except ValueError as error:
        _log.warning("'%s' is damaged and ignored; the next commit rewrites it: %s", LATEST, error)
        return NO_HINT
    values = found if isinstance(found, dict) else {}
    stage, hinted = values.get("stage"), values.get("digest", "")
    if type(stage) is int and 0 <= stage < _MOST_STAGES and isinstance(hinted, str):
        return Hint(stage, hinted, bool(values.get("copies", False)))
    _log.warning(
        "'%s' is damaged and ignored; the next commit rewrites it: expected an object with the number of a stage and "
        "the digest of its commit",
        LATEST,
    )
    return NO_HINT


def write_hint(store: Store, hint: Hint) -> None:
    """Write the hint; a failure of the store is logged, since readers can search for the newest commit."""
    content = {"stage": hint.stage, "digest": hint.digest, **({"copies": True} if hint.has_copies else {})}
    try:
        store.write(LATEST, [canonical_json(content) + b"\n"])
    except StoreError as error:
        _log.warning("'%s' was not updated, and readers must search for the newest commit: %s", LATEST, error)


class LogEnd:
    """Finds the last commit of a log without gaps, by few requests.

    Args:
        store: of the run.
        rollup_interval: number of commits that a narrow roll-up covers.
    """

    def __init__(self, store: Store, rollup_interval: int) -> None:
        self._store = store
        self._block = int(10 ** len(str(rollup_interval - 1)))
        """The number of commits that share all but the last digits of their names: about as many as in a roll-up."""

    def find(self, hinted: int, since: int | None = None) -> int | None:
        """Return the last stage; None if the log is empty.

        If the hint is right, that commit exists and the next one does not. If it is stale, the end is among the next
        few names, or behind the newest roll-up, and a listing of few names finds it. If roll-ups were lost as well,
        ever longer steps find it.

        Args:
            hinted: the stage that the hint names; -1 if there is none.
            since: the same stage if it is known to be committed.
        """
        if not self._is_committed(hinted + 1):
            if hinted < 0 or hinted == since or self._is_committed(hinted):
                return hinted if hinted >= 0 else None
            hinted = -1  # the hint names a commit that does not exist
        following = (hinted + 1) // self._block * self._block + self._block
        if not self._is_committed(following):
            newest = self._listed_from(hinted + 1)
            return newest if newest >= 0 else None
        rolled_up = next(iter(list_rollups(self._store)), -1)
        if rolled_up > following and self._is_committed(rolled_up):
            following = rolled_up + 1
        newest = self._listed_from(following)
        # A listing that ends within its block contains the log's end.
        return newest if newest < following or (newest + 1) % self._block else self._search(newest)

    def _listed_from(self, stage: int) -> int:
        """Return the last commit in the block of a stage, by one listing; the one before the stage if there is none."""
        digits = len(str(self._block)) - 1
        names = self._store.list(commit_name(stage).removesuffix(".json")[:-digits])
        return max([stage - 1, *(found for found in map(parse_commit_name, names) if found is not None)])

    def _search(self, committed: int) -> int:
        """Return the last commit: search from an existing one in ever longer steps, then by bisection."""
        step = 1
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
        return committed

    def _is_committed(self, stage: int) -> bool:
        return self._store.exists(commit_name(stage))
