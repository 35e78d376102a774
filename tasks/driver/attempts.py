"""Attempts at a stage: each is a number, and one that can't end is given up for the next.

All members of a gang work on one attempt, whose objects have folders of their own. A stage that only lost a member
continues its attempt; one whose repetition gave other bytes begins another.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeVar

from penstock.storage.digest import canonical_json, parse_json
from penstock.storage.errors import (
    CorruptObjectError,
    MemberLeftError,
    MemberLostError,
    ObjectNotFoundError,
    StageMismatchError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.storage.runs.run import RunFolder

_MOST_ATTEMPTS = 10**6
_TRIES = 3
_Result = TypeVar("_Result")
logger = logging.getLogger(__name__)


def current_attempt(run: RunFolder, stage: int) -> int:
    """Return the number of a stage's current attempt: 0 unless earlier ones were given up."""
    try:
        text = run.store.read(_name(stage))
    except ObjectNotFoundError:
        return 0
    try:
        attempt = parse_json(text)["attempt"]
        if type(attempt) is not int or not 0 <= attempt < _MOST_ATTEMPTS:
            raise ValueError(f"'attempt' is {attempt!r}")  # noqa: TRY301  (any fault of the file gets the message below)
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptObjectError(
            f"'{_name(stage)}' of run '{run.name}' can't be read ({error}), expected the stage's attempt. "
            f'Write {{"attempt": n}} with n above every folder shards/{stage:08d}.n'
        ) from error
    return attempt


def give_up(run: RunFolder, stage: int, attempt: int, reason: str) -> None:
    """Start the next attempt; the reason is stored."""
    run.store.write(_name(stage), [canonical_json({"attempt": attempt + 1, "reason": reason})], durable=True)


def repeat_until_done(
    run: RunFolder,
    stage: int,
    run_attempt: Callable[[int, bool], _Result],
    *,
    is_first: bool,
    check: Callable[[], object],
) -> _Result:
    """Run attempts at a stage until one ends.

    Args:
        run: that this process drives.
        stage: without a commit yet.
        run_attempt: runs an attempt, given its number and whether no attempt was run here before.
        is_first: whether it is the first stage that is run here.
        check: raises where this process no longer drives the run; called before each try, and before one is given up.

    Returns:
        The result of the attempt that ended.

    Raises:
        PenstockError: three tries failed, or one for good; or as `check`.
    """
    tries_left = _TRIES
    while True:
        check()
        attempt = current_attempt(run, stage)
        tries_left -= 1
        try:
            return run_attempt(attempt, is_first)
        except StageMismatchError as error:
            if not tries_left:
                raise
            check()
            give_up(run, stage, attempt, str(error))
        except (CorruptObjectError, ObjectNotFoundError):
            # The reader that finds a damaged shard removes it, and later readers find none; the next try acts its
            # round again.
            if not tries_left:
                raise
        except MemberLostError as error:
            # The same attempt: its stored objects remain, and are learned from again.
            if isinstance(error, MemberLeftError):
                tries_left += 1
            elif not tries_left:
                raise
            is_first = False
            logger.warning("stage=%d restarts: %s", stage, error)


def _name(stage: int) -> str:
    return f"attempts/{stage:08d}.json"
