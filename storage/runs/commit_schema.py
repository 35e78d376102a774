"""The commit record, its name, its one sequence of bytes, and the check of both: a malformed commit is refused."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.storage.digest import canonical_json, parse_json
from penstock.storage.errors import CorruptObjectError
from penstock.storage.records import RecordError, from_json, to_json
from penstock.storage.refs import Ref, ShardRef, SnapshotRef, StateRef, check_ref

FORMAT = "penstock-commit/1"
_NAME = re.compile(r"commits/([0-9]{8,18})\.json")


@dataclass(frozen=True, slots=True)
class Commit:
    """A committed stage: its inputs and outputs, and the run's totals after it."""

    stage: int
    parent: str
    """Digest of the commit before; in a first commit, of the run's identity."""
    rounds: tuple[int, int]
    """The first and the last round, counted over the whole run."""
    version: int
    """Version of the parameters after the stage."""
    env_steps: int
    """Since the run began, as are `episodes`."""
    episodes: int
    shards: tuple[ShardRef, ...]
    states: tuple[StateRef, ...]
    snapshots: tuple[SnapshotRef, ...]
    """Snapshots that rounds after the stage still act with; the newest is last."""
    checkpoint: Ref
    metrics: Mapping[str, float]
    """Means of the stage."""
    evaluation: Mapping[str, float] | None
    """`mean_return`, `episodes` and others; None if the stage was not evaluated."""
    finished: str | None
    """The reason why the run ended with this stage; None if it continues."""
    league: tuple[SnapshotRef, ...] | None = None
    """Older snapshots against which rounds after the stage play, the newest last; None in runs without a league."""

    @property
    def resumed_from(self) -> tuple[Ref, ...]:
        """Return the references to all objects that the next stage starts from."""
        return (*self.states, *self.snapshots, *(self.league or ()), self.checkpoint)

    def references(self) -> tuple[Ref, ...]:
        """Return the references to all objects that the commit names."""
        return (*self.shards, *self.resumed_from)


def commit_name(stage: int) -> str:
    """Return `commits/<stage>.json`."""
    return f"commits/{stage:08d}.json"


def parse_commit_name(name: str) -> int | None:
    """Return the stage of a commit's name; None for other names."""
    matched = _NAME.fullmatch(name)
    return int(matched[1]) if matched else None


def encode_commit(commit: Commit) -> bytes:
    """Return the one sequence of bytes that encodes this commit.

    Raises:
        ValueError: it is malformed, or a number is not finite.
    """
    fields = to_json(commit)
    try:
        _check(from_json(Commit, fields))
    except RecordError as error:
        raise ValueError(f"the commit is malformed: {error}") from error
    return canonical_json({"format": FORMAT, **fields}) + b"\n"


def decode_commit(data: bytes, name: str, stage: int) -> Commit:
    """Read a stored commit.

    Args:
        data: the object's bytes.
        name: the object's name, for messages.
        stage: the stage that the commit must be of.

    Raises:
        CorruptObjectError: the object is empty, cut short, altered, or of another stage.
    """
    try:
        found = parse_json(data)
        canonical = canonical_json(found) + b"\n"
    except ValueError as error:
        raise _corrupt(name, f"{len(data)} bytes that are not complete JSON ({error})") from error
    if not isinstance(found, dict):
        raise _corrupt(name, f"it is a {type(found).__name__}, expected an object")
    form = found.pop("format", None)
    if form != FORMAT:
        raise _corrupt(name, f"'format' is {form!r}, expected '{FORMAT}'")
    try:
        commit = from_json(Commit, found)
        _check(commit)
    except RecordError as error:
        raise _corrupt(name, str(error)) from error
    if commit.stage != stage:
        raise _corrupt(name, f"'stage' is {commit.stage}, expected {stage}")
    if canonical != data:
        # Penstock writes canonical JSON only, so this detects an edit even where the values still make sense.
        raise _corrupt(name, "its bytes are not canonical JSON, so it was written or edited by something else")
    return commit


def _corrupt(name: str, found: str) -> CorruptObjectError:
    return CorruptObjectError(
        f"'{name}' is not an intact commit: {found}. Restore it from a copy; if it is the newest commit, removing it "
        f"makes the run continue from the one before"
    )


def _check(commit: Commit) -> None:
    """Raise a RecordError for faults that the types of the fields do not exclude."""
    if not commit.parent:
        raise RecordError(commit.parent, "a digest").within("parent")
    if commit.rounds[0] > commit.rounds[1]:
        raise RecordError(list(commit.rounds), "[first, last]").within("rounds")
    for field in ("shards", "states", "snapshots", "league"):
        for index, ref in enumerate(getattr(commit, field) or ()):
            _check_ref(ref, f"{field}[{index}]")
    _check_ref(commit.checkpoint, "checkpoint")


def _check_ref(ref: Ref, place: str) -> None:
    try:
        check_ref(ref)
    except CorruptObjectError as error:
        raise RecordError(ref.name, f"a name that agrees with the reference ({error})").within(
            f"{place}.name"
        ) from None
