"""Metrics and traces of real runs: what a scrape holds, the dashboard's queries, and that runs stay as they are."""

from __future__ import annotations

import json
import re
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock import tasks

from ...support.processes.commands import wait_until
from ...support.services.otlp_receiver import OtlpReceiver
from ...support.services.prometheus_server import needs_prometheus, prometheus_server
from ..conftest import BRIEF, Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...support.processes.commands import Command
    from ..conftest import Bench, References

GRAFANA = Path(tasks.__path__[0]).resolve().parent / "deploy/grafana"
DASHBOARD, ALERTS = GRAFANA / "penstock.json", GRAFANA / "alerts.yml"
# Many short stages: there is something to scrape at once, and no end until the test is done.
LONG = Settings(stages=100_000, rounds=6, tiles=2, act_tasks=1)
# Only where there is a GPU, or with a quorum below 1.
MAY_BE_ABSENT = {"penstock_gpu_memory_bytes"}


def dashboard_queries() -> Iterator[str]:
    for panel in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]


def names_and_labels(query: str) -> tuple[set[str], set[str]]:
    """Return the metrics of a query, and the labels that it selects, groups or matches by."""
    labels = set(re.findall(r"(\w+)=~?\"", query))
    for group in re.findall(r"(?:by|ignoring|on|without) \(([^)]*)\)", query):
        labels |= {label.strip() for label in group.split(",")}
    return set(re.findall(r"penstock_\w+", query)), labels


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def scrape(port: int) -> dict[str, set[str]]:
    """Return the labels of each metric that has a value."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=150) as answer:
        text = answer.read().decode()
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def has_all(port: int) -> dict[str, set[str]] | None:
    """Return the scrape once a stage is committed and the scheduler has answered."""
    try:
        found = scrape(port)
    except (URLError, ConnectionError):
        return None
    return found if {"penstock_cpu_seconds_total", "penstock_scheduler_tasks"} <= found.keys() else None


def measured(bench: Bench, name: str, **environment: str) -> Command:
    """Start a run with all metrics and traces."""
    settings = ("train", bench.preset(BRIEF), "--name", name, "--store", bench.store, "--scheduler", bench.scheduler)
    return bench.penstock(*settings, "--metrics-port", "0", **environment)


def stop(command: Command) -> None:
    command.send(signal.SIGINT)
    command.wait()


@pytest.mark.slow
def test_every_query_of_the_dashboard_finds_its_metrics_and_labels(bench: Bench):
    """A scrape of a running run has each metric and label that deploy/grafana/penstock.json asks for."""
    port = free_port()
    command = bench.train("scraped", LONG, "--metrics-port", str(port))
    found = wait_until(lambda: has_all(port), lambda: command.output, poll_seconds=0.1)
    stop(command)
    queries = list(dashboard_queries())
    assert len(queries) > 20
    for query in queries:
        names, labels = names_and_labels(query)
        assert names
        for name in names - MAY_BE_ABSENT:
            assert name in found, query
        known = set().union(*(found.get(name, {"run", "role"}) for name in names))
        assert labels <= known, query


def test_a_port_that_is_taken_is_refused_before_the_start(bench: Bench):
    """The error names the port, and nothing is stored."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        bench.train("refused", BRIEF, "--metrics-port", str(port)).refuse(
            f"cluster.metrics_port = {port}", "Address already in use", "choose another port"
        )
    bench.train("refused", BRIEF, "--metrics-port", "9100", "--metrics-host", "192.0.2.1").refuse(
        "can't listen on 192.0.2.1:9100"
    )
    assert not Path(bench.store, "refused").exists()


@pytest.mark.slow
def test_a_collector_gets_one_trace_and_the_metrics_and_no_byte_changes(bench: Bench, references: References):
    """A real receiver decodes what was sent: a span for the run, each stage, part and member, and the run's totals.

    The run that is measured in all ways stores the bytes of one that is not.
    """
    with OtlpReceiver() as receiver:
        command = measured(bench, "traced", OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url, OTEL_SERVICE_NAME="lab")
        assert "metrics for Prometheus: http://127.0.0.1:" in command.succeed()
    assert bench.run("traced").content() == references.content(BRIEF)
    assert receiver.services == {"lab"}
    assert {span.trace_id for span in receiver.spans} == {receiver.spans[0].trace_id}
    names = [span.name for span in receiver.spans]
    for name in ("stage 0", "stage 1", "run traced"):
        assert names.count(name) == 1
    for name in ("admission", "gather", "roles", "evaluate", "commit", "act-0", "learn-0"):
        assert names.count(name) == 2
    spans = {span.span_id: span for span in receiver.spans}
    for span in receiver.spans:
        assert span.end_time_unix_nano >= span.start_time_unix_nano
        above = spans.get(span.parent_span_id)
        if span.name.startswith("stage"):
            assert above is not None
            assert above.name == "run traced"
            attributes = {one.key: one.value for one in span.attributes}
            assert attributes["penstock.store.create.calls"].int_value >= 1
        if span.name in {"act-0", "learn-0"}:
            assert above is not None
            assert above.name == "roles"
    steps = BRIEF.rows
    assert receiver.metrics["penstock_env_steps"] == steps
    assert receiver.metrics["penstock_stages_committed"] == BRIEF.stages


@pytest.mark.slow
def test_a_collector_that_is_not_there_costs_nothing_but_its_records(bench: Bench, references: References):
    """The run ends with success and the same bytes, and says once what is lacking."""
    nowhere = f"http://127.0.0.1:{free_port()}"
    command = measured(bench, "unheard", OTEL_EXPORTER_OTLP_ENDPOINT=nowhere)
    command.succeed()
    assert command.output.count("OpenTelemetry lacks") == 1
    assert "Traceback" not in command.output
    assert bench.run("unheard").content() == references.content(BRIEF)


@pytest.mark.slow
@needs_prometheus
def test_a_real_prometheus_answers_every_query_of_the_dashboard(bench: Bench, tmp_path: Path):
    """Prometheus scrapes a running run, accepts each query, and each gives a number; so does each alert's condition."""
    port = free_port()
    with prometheus_server(tmp_path / "prometheus", f"127.0.0.1:{port}", ALERTS) as prometheus:
        command = bench.train("watched", LONG, "--metrics-port", str(port))

        def answers(query: str) -> bool:
            asked = query.replace("$run", ".*").replace("$__rate_interval", "30s")
            return any(series["value"][1] != "NaN" for series in prometheus.query(asked))

        for query in dashboard_queries():
            if names_and_labels(query)[0] <= MAY_BE_ABSENT:
                assert not answers(query)
            else:
                wait_until(lambda query=query: answers(query), query, poll_seconds=0.5)
        assert prometheus.query("penstock_run_info")[0]["metric"]["run"] == "watched"
        rules = wait_until(
            lambda: all(rule["health"] != "unknown" for rule in prometheus.rules()) and prometheus.rules(),
            "alerts are evaluated",
            poll_seconds=0.5,
        )
        assert [rule["health"] for rule in rules] == ["ok"] * 4
        assert "firing" not in {rule["state"] for rule in rules}
        for rule in rules:
            for name in re.findall(r"penstock_\w+", rule["query"]):
                assert prometheus.query(name), rule["query"]
        stop(command)
