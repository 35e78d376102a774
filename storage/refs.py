"""Defines references to stored objects, and the names of those objects. Nothing here reads or writes.

A reference holds everything that is needed to read an object and to know that it is the right one.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from penstock.storage.errors import CorruptObjectError
from penstock.storage.records import from_json as parse_record

_DIGEST = "[0-9a-f]{32}"
_NUMBER, _ATTEMPT = "[0-9]{8,18}", "[1-9][0-9]{0,17}"
"""Numbers in names: in ASCII, as names are composed, and not longer than any number that Python and Arrow take."""
_FOLDER = rf"(?P<stage>{_NUMBER})(?:\.(?P<attempt>{_ATTEMPT}))?"
_TILE = rf"(?P<round>{_NUMBER})-(?P<tile>[0-9]{{4,18}})-(?P<digest>{_DIGEST})"
_VERSION = rf"(?P<version>{_NUMBER})-(?P<digest>{_DIGEST})"
_SHARD = re.compile(rf"shards/{_FOLDER}/{_TILE}\.arrow")
_STATE = re.compile(rf"states/{_FOLDER}/{_TILE}\.safetensors")
_CHOICE = re.compile(rf"choices/{_FOLDER}/(?P<round>{_NUMBER})\.json")
_ORDER = re.compile(rf"orders/{_FOLDER}/(?P<round>{_NUMBER})\.json")
_SNAPSHOT = re.compile(rf"snapshots/(?:attempt-[0-9]{{1,18}}/)?{_VERSION}\.safetensors")
_DIFFERENCE = re.compile(rf"differences/{_VERSION}\.zst")
_CHECKPOINT = re.compile(rf"checkpoints/(?P<stage>{_NUMBER})-(?P<digest>{_DIGEST})\.safetensors")
_INITIAL = re.compile(rf"initial/({_DIGEST})\.safetensors")
_PLAN = re.compile(rf"replay/plan-({_DIGEST})\.arrow")

DIFFERENCES = "differences/"
"""The folder of differences between snapshots: they save downloads, and a run is whole without them."""


@dataclass(frozen=True, slots=True)
class Ref:
    """A reference names one object and has the digest and number of its bytes."""

    name: str
    digest: str
    nbytes: int

    def to_json(self) -> dict[str, str | int]:
        """Return a JSON-able form; `from_json` of the same class reads it."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Parse the result of `to_json`.

        Raises:
            ValueError: if fields are missing, unknown or of another type.
        """
        return parse_record(cls, value)


@dataclass(frozen=True, slots=True)
class ShardRef(Ref):
    """This reference is to a shard: one tile's rows of one round."""

    round: int
    tile: int
    rows: int


@dataclass(frozen=True, slots=True)
class StateRef(Ref):
    """This reference is to the environment state of one tile after one round."""

    round: int
    tile: int


@dataclass(frozen=True, slots=True)
class SnapshotRef(Ref):
    """This reference is to the parameters that actors need, after `version` learned rounds."""

    version: int


@dataclass(frozen=True, slots=True)
class StagedName:
    """These fields are parsed from the name of a shard or state."""

    stage: int
    attempt: int
    round: int
    tile: int
    digest: str


@dataclass(frozen=True, slots=True)
class SnapshotName:
    """These fields are parsed from the name of a snapshot."""

    version: int
    digest: str


@dataclass(frozen=True, slots=True)
class CheckpointName:
    """These fields are parsed from the name of a checkpoint."""

    stage: int
    digest: str


def stage_folder(kind: str, stage: int, attempt: int) -> str:
    """Return the prefix of an attempt's objects: `shards/00000003/`, from the second one on `shards/00000003.1/`."""
    return f"{kind}/{stage:08d}.{attempt}/" if attempt else f"{kind}/{stage:08d}/"


def shard_name(stage: int, attempt: int, round_: int, tile: int, digest: str) -> str:
    """Return `shards/00000003/00000150-0002-<digest>.arrow`."""
    return f"{stage_folder('shards', stage, attempt)}{round_:08d}-{tile:04d}-{digest}.arrow"


def state_name(stage: int, attempt: int, round_: int, tile: int, digest: str) -> str:
    """Return `states/00000003/00000150-0002-<digest>.safetensors`."""
    return f"{stage_folder('states', stage, attempt)}{round_:08d}-{tile:04d}-{digest}.safetensors"


def choice_name(stage: int, attempt: int, round_: int) -> str:
    """Return `choices/00000003/00000150.json`."""
    return f"{stage_folder('choices', stage, attempt)}{round_:08d}.json"


def order_name(stage: int, attempt: int, round_: int) -> str:
    """Return `orders/00000003/00000150.json`."""
    return f"{stage_folder('orders', stage, attempt)}{round_:08d}.json"


def snapshot_name(version: int, digest: str) -> str:
    """Return `snapshots/00000150-<digest>.safetensors`."""
    return f"snapshots/{version:08d}-{digest}.safetensors"


def difference_name(snapshot: SnapshotRef) -> str:
    """Return `differences/00000150-<digest>.zst`, the name of a snapshot's difference from the version before.

    The digest is the snapshot's, which a reader knows; attempts share the folder.
    """
    return f"{DIFFERENCES}{snapshot.version:08d}-{snapshot.digest}.zst"


def checkpoint_name(stage: int, digest: str) -> str:
    """Return `checkpoints/00000003-<digest>.safetensors`."""
    return f"checkpoints/{stage:08d}-{digest}.safetensors"


def initial_name(digest: str) -> str:
    """Return `initial/<digest>.safetensors`, the name of parameters from another run that a run starts with."""
    return f"initial/{digest}.safetensors"


def plan_name(digest: str) -> str:
    """Return `replay/plan-<digest>.arrow`, the name of the list of shards that a replay reads."""
    return f"replay/plan-{digest}.arrow"


def parse_shard_name(name: str) -> StagedName:
    """Parse a name that `shard_name` composed. Raises CorruptObjectError if it is not a shard's."""
    return _parse_staged(_SHARD, name, "shards/<stage>/<round>-<tile>-<digest>.arrow")


def parse_state_name(name: str) -> StagedName:
    """Parse a name that `state_name` composed. Raises CorruptObjectError if it is not a state's."""
    return _parse_staged(_STATE, name, "states/<stage>/<round>-<tile>-<digest>.safetensors")


def parse_choice_name(name: str) -> int:
    """Return the round in a round choice's name. Raises CorruptObjectError if it is not one's."""
    match = _CHOICE.fullmatch(name)
    if match is None:
        raise _unknown(name, "choices/<stage>/<round>.json")
    return int(match["round"])


def parse_order_name(name: str) -> int:
    """Return the round in the name of an order of arrivals. Raises CorruptObjectError if it is not one's."""
    match = _ORDER.fullmatch(name)
    if match is None:
        raise _unknown(name, "orders/<stage>/<round>.json")
    return int(match["round"])


def parse_snapshot_name(name: str) -> SnapshotName:
    """Parse a name that `snapshot_name` composed, also in the folder of a later attempt.

    Raises:
        CorruptObjectError: if it is not a snapshot's.
    """
    match = _SNAPSHOT.fullmatch(name)
    if match is None:
        raise _unknown(name, "snapshots/<version>-<digest>.safetensors")
    return SnapshotName(int(match["version"]), match["digest"])


def parse_checkpoint_name(name: str) -> CheckpointName:
    """Parse a name that `checkpoint_name` composed. Raises CorruptObjectError if it is not a checkpoint's."""
    match = _CHECKPOINT.fullmatch(name)
    if match is None:
        raise _unknown(name, "checkpoints/<stage>-<digest>.safetensors")
    return CheckpointName(int(match["stage"]), match["digest"])


def parse_initial_name(name: str) -> str:
    """Return the digest in a name that `initial_name` composed. Raises CorruptObjectError if it is not one."""
    match = _INITIAL.fullmatch(name)
    if match is None:
        raise _unknown(name, "initial/<digest>.safetensors")
    return match[1]


def parse_plan_name(name: str) -> str:
    """Return the digest in a name that `plan_name` composed. Raises CorruptObjectError if it is not one."""
    match = _PLAN.fullmatch(name)
    if match is None:
        raise _unknown(name, "replay/plan-<digest>.arrow")
    return match[1]


def stage_of_name(name: str) -> int | None:
    """Return the stage that writes objects of such a name, in any attempt; None if none does."""
    return _number_of_name(name, "stage", (_SHARD, _STATE, _CHOICE, _ORDER, _CHECKPOINT))


def version_of_name(name: str) -> int | None:
    """Return the version whose snapshot, or difference, has such a name; None if none has."""
    return _number_of_name(name, "version", (_SNAPSHOT, _DIFFERENCE))


def ref_of_name(name: str) -> Ref:
    """Return the reference that the name of an object with a digest in it makes; its sizes are 0.

    Raises:
        CorruptObjectError: it is not the name of such an object.
    """
    kind = name.partition("/")[0]
    if kind == "shards":
        shard = parse_shard_name(name)
        return ShardRef(name, shard.digest, 0, shard.round, shard.tile, 0)
    if kind == "states":
        state = parse_state_name(name)
        return StateRef(name, state.digest, 0, state.round, state.tile)
    if kind == "snapshots":
        snapshot = parse_snapshot_name(name)
        return SnapshotRef(name, snapshot.digest, 0, snapshot.version)
    if kind == "initial":
        return Ref(name, parse_initial_name(name), 0)
    if kind == "replay":
        return Ref(name, parse_plan_name(name), 0)
    return Ref(name, parse_checkpoint_name(name).digest, 0)


def check_ref(ref: Ref) -> None:
    """Check that a reference that was read names an object as its other fields do, in that object's folder of a run.

    A name or digest from a damaged or hostile store could otherwise lead out of the folders of the run and the cache.
    A reference of no more specific type is a checkpoint's.

    Raises:
        CorruptObjectError: another name, digest, round, tile or version was expected.
    """
    named: tuple[object, ...]
    expected: tuple[object, ...]
    if isinstance(ref, ShardRef | StateRef):
        staged = parse_shard_name(ref.name) if isinstance(ref, ShardRef) else parse_state_name(ref.name)
        named, expected = (staged.round, staged.tile, staged.digest), (ref.round, ref.tile, ref.digest)
    elif isinstance(ref, SnapshotRef):
        snapshot = parse_snapshot_name(ref.name)
        named, expected = (snapshot.version, snapshot.digest), (ref.version, ref.digest)
    else:
        named, expected = (parse_checkpoint_name(ref.name).digest,), (ref.digest,)
    if named != expected:
        raise CorruptObjectError(f"{ref.name!r} names {named}, and its reference {expected}: expected the same.")


def is_digest(text: str) -> bool:
    """Return whether a text is a digest in the form that names of objects have: 32 hexadecimal digits."""
    return re.fullmatch(_DIGEST, text) is not None


def _parse_staged(pattern: re.Pattern[str], name: str, expected: str) -> StagedName:
    match = pattern.fullmatch(name)
    if match is None:
        raise _unknown(name, expected)
    round_, tile = int(match["round"]), int(match["tile"])
    return StagedName(int(match["stage"]), int(match["attempt"] or 0), round_, tile, match["digest"])


def _number_of_name(name: str, number: str, patterns: tuple[re.Pattern[str], ...]) -> int | None:
    """Return a number in a name that one of the patterns takes; None if none does."""
    for pattern in patterns:
        if match := pattern.fullmatch(name):
            return int(match[number])
    return None


def _unknown(name: str, expected: str) -> CorruptObjectError:
    return CorruptObjectError(f"{name!r} is not the name of an object of this kind: expected {expected}.")
