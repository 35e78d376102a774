"""Metrics and traces of a flow run, if they are asked for; without effect on the run, whatever becomes of them."""

from __future__ import annotations

import logging
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, Self

from prefect.runtime import flow_run

from penstock.flows.display.console import current_panel
from penstock.flows.observers.telemetry.endpoint import served, wants_metrics, wants_opentelemetry
from penstock.flows.observers.telemetry.metrics import RunMetrics
from penstock.flows.observers.telemetry.scheduler_watch import SchedulerWatch
from penstock.storage.stores.counted import CountedStore, StoreTally
from penstock.tasks.runtime.events import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.flows.observers.telemetry.otlp import OpenTelemetry
    from penstock.storage.runs.commit_schema import Commit
    from penstock.storage.runs.timings import StageTimings
    from penstock.tasks.driver.run import ActiveRun
    from penstock.tasks.runtime.events import MemberEvent
    from penstock.tasks.setup.config.run import RunConfig
    from penstock.tasks.setup.planning.resolve import ResolvedRun

logger = logging.getLogger(__name__)
Arguments = ParamSpec("Arguments")


def _harmless(method: Callable[Arguments, None]) -> Callable[Arguments, None]:
    """Return a method that logs its errors: metrics must not stop a run."""

    @wraps(method)
    def guarded(*arguments: Arguments.args, **named: Arguments.kwargs) -> None:
        try:
            method(*arguments, **named)
        except Exception as error:  # noqa: BLE001  (see above)
            logger.warning("metrics lack something: %s: %s", type(error).__name__, error)

    return guarded


class RunTelemetry:
    """The metrics and traces of one flow run. A context manager; does nothing unless they are asked for.

    `cluster.metrics_port` asks for an endpoint for Prometheus, the variable OTEL_EXPORTER_OTLP_ENDPOINT for
    OpenTelemetry.

    Raises:
        ConfigError: by `__enter__`, the port can't be listened on.
    """

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._tally = StoreTally()
        self._stack = ExitStack()
        self._metrics: RunMetrics | None = None
        self._opentelemetry: OpenTelemetry | None = None
        self._newest: Commit | None = None

    def __enter__(self) -> Self:
        cluster, is_exported = self._config.cluster, wants_opentelemetry()
        if not wants_metrics(cluster):
            return self
        metrics = RunMetrics(str(self._config.name), self._tally)
        if cluster.metrics_port is not None:
            url = self._stack.enter_context(served(metrics.registry, cluster))
            current_panel().note(f"metrics for Prometheus: {url}")
            logger.info("run=%s metrics for Prometheus at %s", self._config.name, url)
        if is_exported:
            self._export(metrics)
        self._metrics = metrics
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if self._opentelemetry is not None:
            with suppress(Exception):
                self._opentelemetry.end(error)
        self._stack.close()

    def counted(self, resolved: ResolvedRun) -> ResolvedRun:
        """Return the run with a store that counts its calls, if metrics are asked for."""
        if self._metrics is None:
            return resolved
        return replace(resolved, root=CountedStore(resolved.root, self._tally))

    def watched(self, on_event: Callable[[MemberEvent], None]) -> Callable[[MemberEvent], None]:
        """Return a function that handles events of members as `on_event` does, and takes the metrics they hold."""
        if self._metrics is None:
            return on_event

        def handle(event: MemberEvent) -> None:
            on_event(event)
            if isinstance(event, Progress):
                self._note_progress(event)

        return handle

    @contextmanager
    def driving(self, training: ActiveRun) -> Iterator[None]:
        """Watch the schedulers of a run while this process drives it."""
        if self._metrics is None:
            yield
            return
        self._begin(training)
        with SchedulerWatch(training.driver.clusters, self._metrics.scheduler):
            yield

    @_harmless
    def stage(self, commit: Commit, timings: StageTimings) -> None:
        """Note a stage; call it after its commit."""
        if self._metrics is not None:
            self._metrics.stage(self._newest, commit, timings)
            self._newest = commit
        if self._opentelemetry is not None:
            self._opentelemetry.stage(commit, timings)

    @_harmless
    def _begin(self, training: ActiveRun) -> None:
        assert self._metrics is not None
        self._newest = training.newest
        self._metrics.begin(training)

    @_harmless
    def _note_progress(self, event: Progress) -> None:
        assert self._metrics is not None
        self._metrics.progress(event)

    @_harmless
    def _export(self, metrics: RunMetrics) -> None:
        try:
            from penstock.flows.observers.telemetry.otlp import OpenTelemetry  # noqa: PLC0415  (an optional package)
        except ImportError as error:
            logger.warning(
                "OTEL_EXPORTER_OTLP_ENDPOINT is set, and %s is missing: nothing is sent. "
                "pip install 'penstock-rl[telemetry]', or unset the variable",
                error.name,
            )
            return
        self._opentelemetry = OpenTelemetry(self._config, str(flow_run.id), metrics, self._tally)
