"""Metrics of a drive: their names, what a stage adds, and that they do nothing to a run."""

import re

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from penstock.flows.observers.telemetry.metrics import RunMetrics, stage_parts
from penstock.flows.observers.telemetry.otlp import _observe
from penstock.storage.refs import Ref, SnapshotRef
from penstock.storage.runs.commit_schema import Commit
from penstock.storage.runs.timings import ActTimes, EdgeCount, LearnTimes, MemberPlace, StageTimings
from penstock.storage.stores.counted import StoreCalls, StoreTally

DIGEST = "0" * 32


def a_commit(stage: int) -> Commit:
    return Commit(
        stage=stage,
        parent=DIGEST,
        rounds=(stage * 10, stage * 10 + 9),
        version=(stage + 1) * 10,
        env_steps=(stage + 1) * 1000,
        episodes=(stage + 1) * 5,
        shards=(),
        states=(),
        snapshots=(SnapshotRef("s", DIGEST, 1, (stage + 1) * 10),),
        checkpoint=Ref("c", DIGEST, 1),
        metrics={"episode_return": 21.0},
        evaluation={"mean_return": 33.0},
        finished=None,
    )


def some_timings(stage: int) -> StageTimings:
    return StageTimings(
        stage=stage,
        attempt=1,
        started_at=1.0e9,
        stage_seconds=4.0,
        admission_seconds=0.25,
        gather_seconds=0.25,
        roles_seconds=2.0,
        evaluate_seconds=1.0,
        act=(ActTimes(member="act-0", env_steps=1000, act_seconds=1.5, wait_seconds=0.5),),
        learn=(LearnTimes(member="learn-0", env_steps=1000, learn_seconds=1.0, wait_seconds=1.0),),
        members={"act-0": MemberPlace(reports=3), "learn-0": MemberPlace()},
        edges={"sync -> act": EdgeCount(100, 10)},
    )


def values(metrics: RunMetrics) -> dict[tuple[str, ...], float]:
    """Return the values as Prometheus's own parser reads them, by name and other labels than the run."""
    found = {}
    for family in text_string_to_metric_families(generate_latest(metrics.registry).decode()):
        for sample in family.samples:
            assert sample.labels.pop("run") == "a"
            found[sample.name, *sample.labels.values()] = sample.value
    return found


def test_a_stage_adds_its_steps_seconds_and_restarts():
    """Each number is that of the commit or of the timings, and the parts of a stage add up to it."""
    metrics = RunMetrics("a", StoreTally())
    metrics.stage(None, a_commit(0), some_timings(0))
    metrics.stage(a_commit(0), a_commit(1), some_timings(1))
    found = values(metrics)
    assert found["penstock_stages_committed_total",] == 2
    assert found["penstock_env_steps_total",] == 2000
    assert found["penstock_env_steps_per_second",] == 250
    assert found["penstock_failed_attempts_total",] == 2
    assert found["penstock_member_restarts_total", "act"] == 4
    assert found["penstock_evaluation_return",] == 33
    assert found["penstock_version",] == 20
    assert found["penstock_component_seconds_total", "act", "wait"] == 1.0
    assert found["penstock_edge_bytes_total", "sync -> act"] == 200
    parts = {labels[1]: value for labels, value in found.items() if labels[0] == "penstock_stage_seconds_total"}
    assert parts == {part: 2 * seconds for part, seconds in stage_parts(some_timings(0)).items()}
    assert sum(parts.values()) == 8.0


def test_store_calls_are_those_since_the_last_scrape():
    """Reading the registry twice counts no call twice."""
    tally = StoreTally()
    metrics = RunMetrics("a", tally)
    tally.add("read", StoreCalls(calls=2, seconds=0.5, bytes=10, errors=1))
    values(metrics)
    tally.add("read", StoreCalls(calls=1, seconds=0.25, bytes=5))
    found = values(metrics)
    assert found["penstock_store_calls_total", "read", "flow"] == 3
    assert found["penstock_store_seconds_total", "read", "flow"] == 0.75
    assert found["penstock_store_bytes_total", "read", "flow"] == 15
    assert found["penstock_store_errors_total", "read", "flow"] == 1


def test_opentelemetry_reads_store_calls_too():
    """It reads one metric after another, and never the whole registry."""
    tally, reader = StoreTally(), InMemoryMetricReader()
    meters = MeterProvider([reader])
    _observe(meters, RunMetrics("a", tally))
    tally.add("read", StoreCalls(calls=2, seconds=0.5, bytes=10, errors=1))
    read = reader.get_metrics_data()
    assert read is not None
    found = {
        metric.name: [point.value for point in metric.data.data_points]
        for scope in read.resource_metrics[0].scope_metrics
        for metric in scope.metrics
    }
    assert (found["penstock_store_calls"], found["penstock_store_bytes"]) == ([2], [10])
    meters.shutdown()


def test_a_state_without_tasks_becomes_zero():
    """Prometheus keeps the last value of a series: a state that a scheduler no longer names must not stay."""
    metrics = RunMetrics("a", StoreTally())
    metrics.scheduler("tcp://a:1", {"workers": 2, "tasks": {"processing": 3}, "slots": {"actor": (2.0, 1.0)}})
    metrics.scheduler("tcp://a:1", {"workers": 2, "tasks": {"memory": 1}, "slots": {}})
    metrics.scheduler("tcp://b:1", None)
    found = values(metrics)
    assert found["penstock_scheduler_tasks", "tcp://a:1", "processing"] == 0
    assert found["penstock_scheduler_tasks", "tcp://a:1", "memory"] == 1
    assert found["penstock_scheduler_slots", "actor", "tcp://a:1", "occupied"] == 0
    assert found["penstock_scheduler_up", "tcp://a:1"] == 1
    assert found["penstock_scheduler_up", "tcp://b:1"] == 0


def test_names_follow_the_convention_of_prometheus():
    """Lower case with one prefix; the unit, where there is one, is the last word."""
    units = {"seconds", "bytes", "shards", "rounds"}
    for family in RunMetrics("a", StoreTally()).registry.collect():
        assert re.fullmatch(r"penstock(_[a-z]+)+", family.name), family.name
        assert family.documentation.endswith("."), family.name
        inner = family.name.split("_")[1:-1]
        assert not units & set(inner) or family.name in {
            "penstock_env_steps_per_second",
            "penstock_rounds_learned",
            "penstock_rounds_planned",
        }, family.name
