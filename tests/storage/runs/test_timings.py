"""Timings of a stage: the stored form of every version is read, and damaged ones are left out."""

import json

import pytest

from penstock.storage.digest import canonical_json
from penstock.storage.runs.timings import decode_timings, encode_timings

TIMES = {"member": "actor-0", "env_steps": 64, "act_seconds": 0.5, "wait_seconds": 0.25}
LEARNED = {"member": "learner-0", "env_steps": 64, "learn_seconds": 0.5, "wait_seconds": 0.25}
EARLIEST = {"stage": 3, "started_at": 1.5, "stage_seconds": 2.0, "act": [TIMES], "learn": [LEARNED]}
EDGES = {"sync -> act": {"bytes": 10, "rounds": 2}}
CACHE = {"hits": 1, "misses": 2, "downloads": 2, "waits": 0, "origin_bytes": 100}
PIPELINE = {
    "queue_depth": 1.5, "wait_seconds": 0.25, "shards": 8, "read_bytes": 100, "requests": 0, "retries": 0, "hedges": 0,
    "peak_bytes": 5, "staging_bytes": 0, "staging_allocations": 0, "staging_uses": 0,
}  # fmt: skip
SPANS = {"began_at": 1.25, "act": [0.0, 0.5], "wait": [0.5, 0.25]}
NEWEST = EARLIEST | {
    "attempt": 1, "admission_seconds": 0.0, "gather_seconds": 0.5, "roles_seconds": 1.0, "evaluate_seconds": 0.5,
    "members": {
        "actor-0": {
            "scheduler": "tcp://a:1", "address": "tcp://a:2", "host": "a", "pid": 7, "reports": 1, "source": "aa",
        },
    },
    "edges": EDGES, "missed_shards": 2, "late_shards": 1,
    "act": [TIMES | {"first_step_at": 1.75, "task_seconds": 1.0, "spans": SPANS, "cache": CACHE, "edges": EDGES}],
    "learn": [
        LEARNED | {
            "publish_seconds": 0.125, "update_rows": 256, "task_seconds": 1.0, "spans": {"began_at": 1.25},
            "pipeline": PIPELINE, "cache": CACHE, "edges": {},
        },
    ],
    "server": [{"member": "server-0", "serve_seconds": 1.0, "publish_seconds": 0.5, "task_seconds": 1.0, "edges": {}}],
    "env": [{"member": "env-0", "env_steps": 64, "step_seconds": 0.5, "task_seconds": 1.0, "edges": EDGES}],
}  # fmt: skip


def test_timings_are_written_as_they_were_read():
    """Key by key, as version ac95705 wrote them; the processes, which are newer, are then none."""
    timings = decode_timings(canonical_json(NEWEST))
    assert timings is not None
    assert encode_timings(timings) == canonical_json({**NEWEST, "processes": []})
    assert timings.act[0].spans.act == (0.0, 0.5)
    assert [name for name, times in timings.by_component.items() if times] == ["act", "env", "learn", "server"]


def test_fields_of_other_versions_are_no_error():
    """Fields that earlier versions did not write have defaults, and those that later ones add are ignored."""
    timings = decode_timings(canonical_json(EARLIEST | {"new": 1, "act": [TIMES | {"new": 2}]}))
    assert timings is not None
    assert (timings.attempt, timings.missed_shards, timings.env, timings.edges) == (0, None, None, {})
    assert (timings.act[0].task_seconds, timings.learn[0].pipeline.retries) == (None, 0)


def test_a_wait_for_prefect_is_no_work():
    """It is written only where there was one, and is not part of the stage's own seconds."""
    waited = decode_timings(canonical_json(EARLIEST | {"prefect_seconds": 0.5}))
    assert waited is not None
    assert waited.own_seconds == 1.5
    earliest = decode_timings(canonical_json(EARLIEST))
    assert earliest is not None
    assert earliest.own_seconds == 2.0
    assert b"prefect_seconds" in encode_timings(waited)
    assert b"prefect_seconds" not in encode_timings(earliest)


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"null", b"\xff", json.dumps(EARLIEST | {"act": 3}).encode(), json.dumps({"stage": 1}).encode()],
)
def test_damaged_timings_are_left_out(data: bytes):
    """No run depends on them."""
    assert decode_timings(data) is None
