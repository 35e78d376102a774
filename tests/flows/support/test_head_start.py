"""Events of a run that begins before its flow run are handled by the flow run, in their order."""

from penstock.flows.support.head_start import _KeptEvents
from penstock.tasks.runtime.events import LogRecord, MemberEvent, Progress


def progress(round_: int) -> Progress:
    return Progress(
        "learn-0",
        round_,
        env_steps=0,
        missed_shards=0,
        episode_return=None,
        wait_share=0.0,
        queue_depth=0.0,
        lag=0,
    )


def test_events_wait_for_whoever_handles_them():
    """All log records are kept until then, and the newest progress; later events pass at once."""
    records = [LogRecord("act-0", "", 30, text) for text in ("first", "second", "third")]
    events, handled = _KeptEvents(), list[MemberEvent]()
    for event in (records[0], progress(0), records[1], progress(1)):
        events(event)
    events.pass_on(handled.append)
    assert handled == [records[0], records[1], progress(1)]
    events(progress(2))
    events(records[2])
    assert handled[3:] == [progress(2), records[2]]
