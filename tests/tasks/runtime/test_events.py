"""Events of members survive Dask's message format, and malformed ones are refused."""

import pytest
from distributed.protocol import dumps, loads

from penstock.storage.records import RecordError
from penstock.tasks.runtime.events import (
    LogRecord,
    MemberEvent,
    Preempted,
    Progress,
    Reported,
    decode_event,
    encode_event,
)

EVENTS: list[MemberEvent] = [
    Reported("act-0", "tcp://10.0.0.7:40001", "host", 12, {}),
    Reported("env-1", "tcp://10.0.0.7:40002", "host", 13, {"environments": {"address": ("host", 1), "tiles": (0, 2)}}),
    Preempted("learn-0", "tcp://10.0.0.7:40001"),
    Progress("learn-0", 3, 4096, 1, 21.5, 0.25, 2.0, 1),
    Progress("learn-0", 0, 512, 0, None, 0.0, 0.0, 0),
    LogRecord("act-1", "a task run", 30, "text of any kind: é\n"),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_is_the_same_after_dask_carried_it(event: MemberEvent):
    """Dask's messages are msgpack: they keep plain values only, and lists become tuples."""
    (carried,) = loads(dumps([encode_event(event)]))
    assert decode_event(carried) == event


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ("reported", "it is 'reported', expected an object"),
        ({"member": "act-0"}, "'event' is None, expected one of reported, preempted, progress, log"),
        ({"event": ["log"], "member": "act-0"}, r"'event' is \['log'\], expected one of"),
        ({"event": "preempted"}, "'member' missing"),
        ({"event": "preempted", "member": 1}, "'member' is 1, expected text"),
    ],
)
def test_a_malformed_message_is_refused_by_the_field(message: object, error: str):
    """The error names the field, its value and what was expected."""
    with pytest.raises(RecordError, match=error):
        decode_event(message)


def test_fields_that_dask_adds_are_ignored():
    """Dask names the worker in each message that it carries."""
    event = Preempted("act-0", "tcp://10.0.0.7:40001")
    assert decode_event({**encode_event(event), "worker": "tcp://10.0.0.7:40001"}) == event
