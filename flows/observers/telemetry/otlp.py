"""Sends a drive's metrics and traces to an OpenTelemetry collector, as the standard variables OTEL_* say.

Needs the extra `telemetry`. The SDK sends from threads of its own; what can't be sent is lost.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import TYPE_CHECKING

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.metrics import Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import StatusCode, set_span_in_context

import penstock
from penstock.flows.observers.telemetry.metrics import stage_parts
from penstock.storage.stores.counted import calls_since

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from opentelemetry.context import Context
    from opentelemetry.metrics import CallbackOptions
    from opentelemetry.util.types import AttributeValue
    from prometheus_client import Metric

    from penstock.flows.observers.telemetry.metrics import RunMetrics
    from penstock.storage.runs.commit_schema import Commit
    from penstock.storage.runs.timings import MemberTimes, StageTimings
    from penstock.storage.stores.counted import StoreTally
    from penstock.tasks.setup.config.run import RunConfig

logger = logging.getLogger(__name__)
_SDK = logging.getLogger("opentelemetry")
_SERVICE = "penstock"
_FLUSH_SECONDS = 5.0
_UNITS = {"seconds": "s", "bytes": "By"}


class OpenTelemetry:
    """One trace for a flow run, with spans for stages, their parts and their members; and the metrics of the run.

    Args:
        config: of the run.
        flow_run: id of the flow run, for the trace.
        metrics: of the run; all of its registry's are sent, under the same names.
        tally: counts the store calls of the flow's process, which become attributes of stages.
    """

    def __init__(self, config: RunConfig, flow_run: str, metrics: RunMetrics, tally: StoreTally) -> None:
        self._run, self._tally, self._counts = str(config.name), tally, tally.counts()
        self._failures = _FirstFailure()
        _SDK.addHandler(self._failures)
        own = {"service.version": penstock.__version__, "penstock.run": self._run}
        if not {"OTEL_SERVICE_NAME"} & os.environ.keys() and "service.name=" not in os.environ.get(
            "OTEL_RESOURCE_ATTRIBUTES", ""
        ):
            own["service.name"] = _SERVICE
        resource = Resource.create(own)
        readers = [PeriodicExportingMetricReader(OTLPMetricExporter())] if _is_asked_for("METRICS") else []
        self._meters = MeterProvider(readers, resource, shutdown_on_exit=False)
        _observe(self._meters, metrics)
        self._traces = TracerProvider(resource=resource, shutdown_on_exit=False)
        if _is_asked_for("TRACES"):
            self._traces.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._traces.get_tracer(_SERVICE, penstock.__version__)
        self._span = self._tracer.start_span(
            f"run {self._run}",
            attributes={
                "penstock.run": self._run,
                "penstock.environment": config.environment.id,
                "penstock.algorithm": config.algorithm.name,
                "prefect.flow_run_id": flow_run,
            },
        )

    def stage(self, commit: Commit, timings: StageTimings) -> None:
        """Add the spans of a committed stage, with the times that it took."""
        counts = self._tally.counts()
        attributes: dict[str, AttributeValue] = {
            "penstock.stage": commit.stage,
            "penstock.version": commit.version,
            "penstock.env_steps": commit.env_steps,
            "penstock.attempt": timings.attempt,
        }
        for operation, calls in calls_since(self._counts, counts).items():
            attributes[f"penstock.store.{operation}.calls"] = calls.calls
            attributes[f"penstock.store.{operation}.bytes"] = calls.bytes
        self._counts = counts
        if commit.evaluation is not None:
            attributes["penstock.evaluation_return"] = commit.evaluation["mean_return"]
        started = timings.started_at
        whole = self._add(f"stage {commit.stage}", self._span_context, started, timings.stage_seconds, attributes)
        roles, roles_at = whole, started
        for part, seconds in stage_parts(timings).items():
            context = self._add(part, whole, started, seconds, {})
            if part == "roles":
                roles, roles_at = context, started
            started += seconds
        for component, members in timings.by_component.items():
            for times in members:
                self._add_member(component, times, timings, roles, roles_at)

    def end(self, error: BaseException | None) -> None:
        """End the trace, and wait 5 seconds at most until everything is sent."""
        if error is not None:
            self._span.set_status(StatusCode.ERROR, type(error).__name__)
        self._span.end()
        sending = [threading.Thread(target=one.shutdown, daemon=True) for one in (self._traces, self._meters)]
        for thread in sending:
            thread.start()
        deadline = time.monotonic() + _FLUSH_SECONDS
        for thread in sending:
            thread.join(max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in sending):
            self._failures.warn(f"the collector has not taken everything {_FLUSH_SECONDS:g} s after the end")
        _SDK.removeHandler(self._failures)

    @property
    def _span_context(self) -> Context:
        return set_span_in_context(self._span)

    def _add_member(
        self, component: str, times: MemberTimes, timings: StageTimings, roles: Context, roles_at: float
    ) -> None:
        attributes: dict[str, AttributeValue] = {"penstock.component": component}
        for work, seconds in times.work_seconds.items():
            attributes[f"penstock.{work}_seconds"] = seconds
        place = timings.members.get(times.member)
        if place is not None:
            attributes |= {"host.name": place.host, "process.pid": place.pid}
        spans = getattr(times, "spans", None)
        began_at = spans.began_at if spans is not None and spans.began_at else roles_at
        self._add(times.member, roles, began_at, times.task_seconds or sum(times.work_seconds.values()), attributes)

    def _add(
        self, name: str, parent: Context, started_at: float, seconds: float, attributes: dict[str, AttributeValue]
    ) -> Context:
        """Add a span that has ended; returns the context of its children."""
        span = self._tracer.start_span(name, parent, attributes=attributes, start_time=int(started_at * 1e9))
        span.end(int((started_at + seconds) * 1e9))
        return set_span_in_context(span)


class _FirstFailure(logging.Handler):
    """Warns once of what the SDK logs about its failures, which would otherwise repeat with each interval."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._is_first = True

    def emit(self, record: logging.LogRecord) -> None:
        """Warn of the first failure."""
        self.warn(record.getMessage())

    def warn(self, problem: str) -> None:
        """Warn if it is the first failure."""
        if self._is_first:
            self._is_first = False
            logger.warning(
                "OpenTelemetry lacks something of this run, which is not affected; check the variables OTEL_*: %s",
                problem,
            )


def _is_asked_for(signal: str) -> bool:
    """Return whether a collector is named for METRICS or TRACES; the SDK would send both, if need be to this host."""
    return bool(
        os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or os.environ.get(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")
    )


def _observe(meters: MeterProvider, metrics: RunMetrics) -> None:
    """Make an instrument of each metric of a registry; its values are those that Prometheus would read."""
    meter = meters.get_meter(_SERVICE, penstock.__version__)

    def reader(name: str, suffix: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def read(_: CallbackOptions) -> Iterable[Observation]:
            metrics.count_store_calls()  # a part of a registry is read without what is called before the whole
            for family in metrics.registry.restricted_registry([f"{name}{suffix}"]).collect():
                for sample in family.samples:
                    yield Observation(sample.value, dict(sample.labels))

        return read

    described: list[Metric] = [*metrics.registry.collect()]
    for family in described:
        unit = _UNITS.get(family.name.rsplit("_", 1)[-1], "1")
        if family.type == "counter":
            meter.create_observable_counter(family.name, [reader(family.name, "_total")], unit, family.documentation)
        else:
            meter.create_observable_gauge(family.name, [reader(family.name, "")], unit, family.documentation)
