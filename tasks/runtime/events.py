"""The events that members send to the driver through Dask's event stream: small records, lossy and immediate.

Dask carries them as msgpack, which keeps neither classes nor tuples. So an event is encoded as plain JSON values where
it is sent, and decoded and checked where it is received.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from penstock.storage.records import RecordError, from_json, to_json


@dataclass(frozen=True, slots=True)
class Reported:
    """A member runs; sent again until it receives the start."""

    member: str
    address: str
    """The address of its Dask worker."""
    host: str
    pid: int
    advertised: Mapping[str, object]
    """Facts by name that other members need before they begin, such as a port."""


@dataclass(frozen=True, slots=True)
class Preempted:
    """A member's worker was preempted; Dask runs the member elsewhere."""

    member: str
    address: str
    """The address of that worker. It may say so again when the member's successor has reported from another one."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The first learner has learned a round. Of rounds that follow quickly, some are left out."""

    member: str
    round: int
    env_steps: int
    """Environment steps of the stage so far."""
    missed_shards: int
    episode_return: float | None
    """Mean return of the latest episodes; None before the first has ended."""
    wait_share: float
    """Share of the time so far in which the learner waited for shards."""
    queue_depth: float
    lag: int


@dataclass(frozen=True, slots=True)
class LogRecord:
    """A log record of a member, for its role's Prefect task run."""

    member: str
    task_run: str
    level: int
    text: str


MemberEvent: TypeAlias = Reported | Preempted | Progress | LogRecord

_KINDS: dict[str, type[Reported | Preempted | Progress | LogRecord]] = {
    "reported": Reported,
    "preempted": Preempted,
    "progress": Progress,
    "log": LogRecord,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def encode_event(event: MemberEvent) -> dict[str, object]:
    """Return an event as the message that Dask carries: `event` names its kind, the rest are its fields."""
    return {"event": _NAMES[type(event)], **to_json(event)}


def decode_event(message: object) -> MemberEvent:
    """Return the event that a message carries; Dask adds the `worker` that sent it, which is ignored.

    Raises:
        RecordError: the message is not an event, or a field is missing or of another type.
    """
    if not isinstance(message, dict):
        raise RecordError(message, "an object")
    name = message.get("event")
    if not isinstance(name, str) or name not in _KINDS:
        raise RecordError(name, f"one of {', '.join(_KINDS)}").within("event")
    return from_json(_KINDS[name], message, ignore_unknown=True)
