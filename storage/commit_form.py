"""What a commit must look like, to the last key. A commit that isn't so is refused, whoever wrote it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from storage.digest import canonical_json
from storage.errors import CorruptObjectError

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMAT = "penstock-commit/1"

_COUNTS = ("stage", "version", "env_steps", "episodes")
_REFS = {
    "shards": ("nbytes", "round", "tile", "rows"),
    "states": ("nbytes", "round", "tile"),
    "snapshots": ("nbytes", "version"),
}
_KEYS = {"format", "parent", "rounds", "checkpoint", "metrics", "evaluation", "finished", *_COUNTS, *_REFS}


def encode_commit(commit: Mapping[str, Any]) -> bytes:
    """The one sequence of bytes that says this commit.

    Raises:
        ValueError: it is malformed, or a number is not finite.
    """
    problem = _problem(commit)
    if problem:
        raise ValueError(f"this can't be committed: {problem}")
    return canonical_json(commit) + b"\n"


def decode_commit(data: bytes, name: str, stage: int) -> dict[str, Any]:
    """Read a stored commit.

    Args:
        data: the object's bytes.
        name: of the object, for messages.
        stage: that the commit must be of.

    Raises:
        CorruptObjectError: the object is empty, cut short, altered, or of another stage.
    """
    try:
        commit = json.loads(data)
        canonical = canonical_json(commit) + b"\n"
    except (ValueError, RecursionError) as error:
        raise _corrupt(name, f"{len(data)} bytes that are no whole JSON ({error})") from error
    problem = _problem(commit)
    if problem:
        raise _corrupt(name, problem)
    if commit["stage"] != stage:
        raise _corrupt(name, f"'stage' is {commit['stage']}, expected {stage}")
    if canonical != data:
        # Ours are always canonical, so whatever edited the file is told apart even where the values still make sense.
        raise _corrupt(name, "its bytes are not canonical JSON, so it was written or edited by something else")
    return dict(commit)


def _corrupt(name: str, found: str) -> CorruptObjectError:
    return CorruptObjectError(
        f"'{name}' is no intact commit: {found}. Restore it from a copy; if it is the newest commit, removing it makes "
        f"the run go on from the one before"
    )


def _problem(commit: Any) -> str | None:
    """What is wrong, in words; None if all is well."""
    if not isinstance(commit, dict):
        return f"it is a {type(commit).__name__}, expected an object"
    if commit.get("format") != FORMAT:
        return f"'format' is {commit.get('format')!r}, expected '{FORMAT}'"
    missing = sorted(_KEYS - commit.keys())
    if missing:
        return f"{', '.join(map(repr, missing))} missing"
    for key in _COUNTS:
        if not _is_count(commit[key]):
            return f"'{key}' is {commit[key]!r}, expected a whole number, 0 or more"
    if not isinstance(commit["parent"], str) or not commit["parent"]:
        return f"'parent' is {commit['parent']!r}, expected a digest"
    return _rounds_problem(commit["rounds"]) or _refs_problem(commit) or _results_problem(commit)


def _rounds_problem(rounds: Any) -> str | None:
    if isinstance(rounds, list) and len(rounds) == 2 and all(map(_is_count, rounds)) and rounds[0] <= rounds[1]:
        return None
    return f"'rounds' is {rounds!r}, expected [first, last]"


def _refs_problem(commit: dict[str, Any]) -> str | None:
    for key, counts in _REFS.items():
        if not isinstance(commit[key], list):
            return f"'{key}' is {commit[key]!r}, expected a list of references"
        for ref in commit[key]:
            if not _is_ref(ref, counts):
                return f"'{key}' has {ref!r}, expected a reference with name, digest, {', '.join(counts)}"
    if not _is_ref(commit["checkpoint"], ("nbytes",)):
        return f"'checkpoint' is {commit['checkpoint']!r}, expected a reference with name, digest, nbytes"
    return None


def _results_problem(commit: dict[str, Any]) -> str | None:
    metrics = commit["metrics"]
    if not isinstance(metrics, dict) or not all(map(_is_number, metrics.values())):
        return f"'metrics' is {metrics!r}, expected numbers by name"
    if not isinstance(commit["evaluation"], dict | None):
        return f"'evaluation' is {commit['evaluation']!r}, expected an object or null"
    if not isinstance(commit["finished"], str | None):
        return f"'finished' is {commit['finished']!r}, expected text or null"
    return None


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_ref(value: Any, counts: tuple[str, ...]) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == {"name", "digest", *counts}
        and all(_is_count(value[key]) for key in counts)
        and isinstance(value["name"], str)
        and isinstance(value["digest"], str)
        and bool(value["digest"])
        # The name carries the digest: a reference in which they differ was never written by us.
        and value["digest"] in value["name"]
    )
