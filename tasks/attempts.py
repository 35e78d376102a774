"""Attempts at a stage. One is given up only if the same work gave other content; what it stored is never read again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from storage.digest import canonical_json
from storage.errors import CorruptObjectError, ObjectNotFoundError

if TYPE_CHECKING:
    from storage.run import RunFolder


def _name(stage: int) -> str:
    return f"attempts/{stage:08d}.json"


def current_attempt(run: RunFolder, stage: int) -> int:
    """The attempt at which a stage is: 0 unless earlier ones were given up."""
    try:
        text = run.store.read(_name(stage))
    except ObjectNotFoundError:
        return 0
    try:
        return int(json.loads(text)["attempt"])
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptObjectError(
            f"'{_name(stage)}' of run '{run.name}' can't be read ({error}); it should name the stage's attempt. "
            f'Write {{"attempt": n}} with n above every folder shards/{stage:08d}.n'
        ) from error


def give_up(run: RunFolder, stage: int, attempt: int, reason: str) -> None:
    """Start the next attempt; the reason stays readable."""
    run.store.write(_name(stage), [canonical_json({"attempt": attempt + 1, "reason": reason})], durable=True)
