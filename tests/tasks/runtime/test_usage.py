"""The resources of a member's process, as timings have them."""

from __future__ import annotations

import time

import psutil

from penstock.storage.digest import parse_json
from penstock.storage.records import from_json, to_json
from penstock.storage.runs.timings import ProcessUsage, StageTimings, decode_timings, encode_timings
from penstock.storage.stores.counted import CountedStore, StoreTally
from penstock.storage.stores.local import LocalStore
from penstock.tasks.runtime.usage import UsageMeter, resident_bytes


def test_usage_is_that_of_this_process_since_the_meter_began(tmp_path):
    """CPU time is that of the process, memory what the system says, store calls those since the begin."""
    tally = StoreTally()
    store = CountedStore(LocalStore(tmp_path), tally)
    store.write("before", [b"1"])
    started = time.process_time()
    meter = UsageMeter("act-0", tally)
    while time.process_time() - started < 0.05:
        store.write("a", [b"12345"])
    usage = meter.usage()
    assert usage.members == ("act-0",)
    assert 0.04 < usage.cpu_seconds <= time.process_time() - started
    assert usage.seconds > 0
    assert set(usage.store) == {"write"}
    assert usage.store["write"].bytes == 5 * usage.store["write"].calls
    assert usage.gpu_memory_bytes is None
    assert from_json(ProcessUsage, to_json(usage)) == usage


def test_resident_memory_is_what_the_system_says():
    """Within the memory that a few calls allocate, it equals psutil's."""
    assert abs(resident_bytes() - psutil.Process().memory_info().rss) < 16 << 20


def test_timings_of_earlier_versions_have_no_usage():
    """Timings that were written before are read as before, and new ones come back whole."""
    timings = StageTimings(stage=0, started_at=1.0, stage_seconds=1.0, act=(), learn=())
    fields = parse_json(encode_timings(timings))
    del fields["processes"]
    assert from_json(StageTimings, fields, ignore_unknown=True) == timings
    used = StageTimings(
        stage=0, started_at=1.0, stage_seconds=1.0, act=(), learn=(), processes=(ProcessUsage(members=("act-0",)),)
    )
    assert decode_timings(encode_timings(used)) == used
