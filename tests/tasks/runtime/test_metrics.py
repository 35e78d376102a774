"""When members worked and waited, as timings have it."""

from __future__ import annotations

import time

from penstock.storage.records import to_json
from penstock.tasks.runtime.metrics import Spans


def test_spans_end_when_they_are_noted():
    """By kind, starts and lengths in seconds from a Unix time; what is shorter than a millisecond is left out."""
    before = time.time()
    spans = Spans(replica=0)
    spans.add("wait", 0.0001)
    time.sleep(0.02)
    spans.add("act", 0.01)
    spans.add("act", 0.005)
    found = to_json(spans.spans())
    assert set(found) == {"began_at", "act"}
    assert before - 0.001 <= found["began_at"] <= time.time()
    first, length, second, after = found["act"]
    assert (length, after) == (0.01, 0.005)
    assert 0.009 <= first < second


def test_timings_stay_small_however_large_a_cluster_or_a_stage_is():
    """200 spans of a member, and of a role's first 16 members."""
    spans = [Spans(replica) for replica in (0, 15, 16, 9000)]
    for _ in range(1000):
        for one in spans:
            one.add("act", 1.0)
    assert [len(one.spans().act or ()) for one in spans] == [400, 400, 0, 0]
