"""References to stored objects, and the names of those objects. Pure: nothing here reads or writes.

A reference holds everything that is needed to read an object and to know that it is the right one.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from storage.errors import CorruptObjectError

_DIGEST = "[0-9a-f]{32}"
_STAGED = re.compile(
    rf"(shards|states)/(\d{{8,}})(?:\.([1-9]\d*))?/(\d{{8,}})-(\d{{4,}})-({_DIGEST})\.(arrow|safetensors)"
)
_CHOICE = re.compile(r"choices/\d{8,}(?:\.[1-9]\d*)?/(\d{8,})\.json")
_SNAPSHOT = re.compile(rf"snapshots/(?:attempt-\d+/)?(\d{{8,}})-({_DIGEST})\.safetensors")
_CHECKPOINT = re.compile(rf"checkpoints/(\d{{8,}})-({_DIGEST})\.safetensors")


@dataclass(frozen=True, slots=True)
class Ref:
    """One object: its name, the digest of its bytes and their number."""

    name: str
    digest: str
    nbytes: int

    def to_json(self) -> dict[str, Any]:
        """A JSON-able form; `from_json` of the same class reads it."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read what `to_json` gave.

        Raises:
            ValueError: if fields are missing, unknown or of another type.
        """
        names = {field.name for field in fields(cls)}
        if not isinstance(value, Mapping) or set(value) != names:
            raise ValueError(f"{value!r} is no {cls.__name__}: expected exactly the fields {', '.join(sorted(names))}.")
        return cls(**value)


@dataclass(frozen=True, slots=True)
class ShardRef(Ref):
    """A shard: one tile's rows of one round."""

    round: int
    tile: int
    rows: int


@dataclass(frozen=True, slots=True)
class StateRef(Ref):
    """The environment state of one tile after one round."""

    round: int
    tile: int


@dataclass(frozen=True, slots=True)
class SnapshotRef(Ref):
    """The parameters that actors need, after `version` learned rounds."""

    version: int


@dataclass(frozen=True, slots=True)
class StagedName:
    """What the name of a shard or state says."""

    stage: int
    attempt: int
    round: int
    tile: int
    digest: str


@dataclass(frozen=True, slots=True)
class SnapshotName:
    """What the name of a snapshot says."""

    version: int
    digest: str


@dataclass(frozen=True, slots=True)
class CheckpointName:
    """What the name of a checkpoint says."""

    stage: int
    digest: str


def stage_folder(kind: str, stage: int, attempt: int) -> str:
    """The prefix of everything of one attempt: `shards/00000003/`, from the second attempt on `shards/00000003.1/`."""
    return f"{kind}/{stage:08d}.{attempt}/" if attempt else f"{kind}/{stage:08d}/"


def shard_name(stage: int, attempt: int, round_: int, tile: int, digest: str) -> str:
    """`shards/00000003/00000150-0002-<digest>.arrow`."""
    return f"{stage_folder('shards', stage, attempt)}{round_:08d}-{tile:04d}-{digest}.arrow"


def state_name(stage: int, attempt: int, round_: int, tile: int, digest: str) -> str:
    """`states/00000003/00000150-0002-<digest>.safetensors`."""
    return f"{stage_folder('states', stage, attempt)}{round_:08d}-{tile:04d}-{digest}.safetensors"


def choice_name(stage: int, attempt: int, round_: int) -> str:
    """`choices/00000003/00000150.json`."""
    return f"{stage_folder('choices', stage, attempt)}{round_:08d}.json"


def snapshot_name(version: int, digest: str) -> str:
    """`snapshots/00000150-<digest>.safetensors`."""
    return f"snapshots/{version:08d}-{digest}.safetensors"


def checkpoint_name(stage: int, digest: str) -> str:
    """`checkpoints/00000003-<digest>.safetensors`."""
    return f"checkpoints/{stage:08d}-{digest}.safetensors"


def parse_shard_name(name: str) -> StagedName:
    """What `shard_name` put into the name. Raises CorruptObjectError if it is not a shard's."""
    return _parse_staged("shards", "arrow", name)


def parse_state_name(name: str) -> StagedName:
    """What `state_name` put into the name. Raises CorruptObjectError if it is not a state's."""
    return _parse_staged("states", "safetensors", name)


def parse_choice_name(name: str) -> int:
    """The round in a choice's name. Raises CorruptObjectError if it is not a choice's."""
    match = _CHOICE.fullmatch(name)
    if match is None:
        raise _unknown(name, "choices/<stage>/<round>.json")
    return int(match[1])


def parse_snapshot_name(name: str) -> SnapshotName:
    """What `snapshot_name` put into the name, also under the folder of a later attempt.

    Raises:
        CorruptObjectError: if it is not a snapshot's.
    """
    match = _SNAPSHOT.fullmatch(name)
    if match is None:
        raise _unknown(name, "snapshots/<version>-<digest>.safetensors")
    return SnapshotName(int(match[1]), match[2])


def parse_checkpoint_name(name: str) -> CheckpointName:
    """What `checkpoint_name` put into the name. Raises CorruptObjectError if it is not a checkpoint's."""
    match = _CHECKPOINT.fullmatch(name)
    if match is None:
        raise _unknown(name, "checkpoints/<stage>-<digest>.safetensors")
    return CheckpointName(int(match[1]), match[2])


def _parse_staged(kind: str, ending: str, name: str) -> StagedName:
    match = _STAGED.fullmatch(name)
    if match is None or match[1] != kind or match[7] != ending:
        raise _unknown(name, f"{kind}/<stage>/<round>-<tile>-<digest>.{ending}")
    return StagedName(int(match[2]), int(match[3] or 0), int(match[4]), int(match[5]), match[6])


def _unknown(name: str, expected: str) -> CorruptObjectError:
    return CorruptObjectError(f"{name!r} is not the name of an object of this kind: expected {expected}.")
