"""`latest.json`: a hint of a log's end, and the digest of its commit, which no other object holds yet."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from penstock.storage.digest import canonical_json, parse_json
from penstock.storage.errors import ObjectNotFoundError, StoreError

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


NO_HINT = Hint(-1, "")


def read_hint(store: Store) -> Hint:
    """Return the hint; a damaged one is logged and ignored.

    Raises:
        StoreError: the store can't be read.
    """
    try:
        found = parse_json(store.read(LATEST))
        hint = Hint(found["stage"], found.get("digest", ""))
    except ObjectNotFoundError:
        return NO_HINT
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        _log.warning("'%s' is damaged and ignored; the next commit rewrites it: %r", LATEST, error)
        return NO_HINT
    valid = isinstance(hint.stage, int) and 0 <= hint.stage < _MOST_STAGES and isinstance(hint.digest, str)
    return hint if valid else NO_HINT


def write_hint(store: Store, stage: int, digest: str) -> None:
    """Write the hint; a failure of the store is logged, since readers can search for the newest commit."""
    try:
        store.write(LATEST, [canonical_json({"stage": stage, "digest": digest}) + b"\n"])
    except StoreError as error:
        _log.warning("'%s' was not updated, and readers must search for the newest commit: %s", LATEST, error)
