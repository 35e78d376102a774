"""Reports a run to Prefect's UI: progress, stages, a curve, a summary, the members' log records, and its events.

Everything goes through one background thread, so that no stage waits for Prefect's server: a server that is slow or
gone costs its display and nothing else.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import math
import queue
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Self

import httpx
from prefect.logging import get_logger, get_run_logger
from prefect.logging.loggers import PrefectLogAdapter
from prefect.runtime import flow_run

from penstock.flows.display.artifact import LiveArtifact, table_json
from penstock.flows.display.console import current_panel
from penstock.flows.display.curve import curve_markdown, curve_points
from penstock.flows.display.events import RunEvents
from penstock.flows.display.naming import artifact_key
from penstock.flows.display.stall_watch import StallWatch
from penstock.flows.display.summary import flow_result, shown_row, stage_row, summary_markdown
from penstock.tasks.runtime.events import LogRecord, Progress

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from penstock.flows.display.summary import FlowResult, Row
    from penstock.storage.runs.commit_schema import Commit
    from penstock.storage.runs.timings import StageTimings
    from penstock.tasks.driver.run import ActiveRun
    from penstock.tasks.runtime.events import MemberEvent
    from penstock.tasks.setup.config.run import RunConfig

_UPDATE_SECONDS = 2.0
_REFRESH_SECONDS = 10.0
"""Prefect stores each version of an artifact for days: stages of a second would fill its database."""
_SHOWN_STAGES = 100
"""Number of stages, the newest, in the table; all of a long run would make each of its versions megabytes."""
_EARLIER_COMMITS = 50
"""Number of commits of a resumed run that are read again for its curve, evenly spaced."""

logger = logging.getLogger(__name__)


class RunReport:
    """Reports one drive of a run. A context manager: at its end the queue is flushed, unless the server is gone."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._run = str(config.name)
        self._panel = current_panel()
        self._logger = get_run_logger()
        self._flow_run = {
            "flow_run_id": str(flow_run.id),
            "flow_run_name": flow_run.name,
            "flow_name": flow_run.flow_name,
        }
        self._work: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._context = contextvars.copy_context()
        self._thread = threading.Thread(target=self._context.run, args=(self._show_all,), name="run-report")
        self._progress = self._artifact("progress", "progress", "Share of all rounds")
        self._table = self._artifact("table", "stages", "Stages")
        self._curve = self._artifact("markdown", "curve", "Learning curve")
        self._card = self._artifact("markdown", "summary", "Outcome and next steps")
        self._events: RunEvents | None = None
        self._stall = StallWatch(config.cluster.stall_seconds)
        self._updated = 0.0
        self._rows: deque[Row] = deque(maxlen=_SHOWN_STAGES)
        self._acting: list[tuple[float, float]] = []
        self._evaluated: list[tuple[float, float]] = []
        self._round: int | None = None
        self._commit: Commit | None = None
        self._training: ActiveRun | None = None
        self._ending = threading.Event()
        self._started = time.perf_counter()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._work.put(self._table.refresh)
        self._work.put(self._curve.refresh)
        if self._rows or error is not None:
            reason = None if error is None else f"{type(error).__name__}: {error}"
            self._work.put(lambda: self._show_card(reason))
        self._work.put(None)
        self._ending.set()
        if self._panel.result is not None:
            self._panel.finish()
        self._thread.join()
        self._panel.end()

    def begin(self, training: ActiveRun) -> None:
        """Begin the report; this process drives the run."""
        self._training = training
        self._config = training.config  # its policy may have been chosen just now
        self._commit = training.newest
        self._events = RunEvents(self._run, training.run.root.url, self._flow_run)
        self._stall.move()
        self._panel.begin(training)
        start = f"from stage {training.newest.stage + 1}" if training.newest else "from the beginning"
        self._logger.info("run=%s store=%s %s", training.run.name, self._config.store, start)
        if training.why:
            self._logger.info("policy=%s %s", training.config.distribution.policy, training.why)
        self._show_progress(training.newest.rounds[1] + 1 if training.newest else 0)
        if training.newest:
            self._work.put(lambda: self._read_earlier(training))

    def handle_event(self, event: MemberEvent) -> None:
        """Handle an event of a member: its progress, or a log record for its role's task run."""
        if isinstance(event, Progress):
            self._panel.progress(event)
            self._stall.move()
            self._round = event.round
            now = time.monotonic()
            if now - self._updated >= _UPDATE_SECONDS:
                self._updated = now
                self._show_progress(event.round + 1)
        elif isinstance(event, LogRecord):
            if event.level >= logging.WARNING:
                self._panel.warn(event.text)
            self._work.put(lambda: self._log(event))

    def stage(self, commit: Commit, timings: StageTimings) -> None:
        """Report a committed stage."""
        self._commit = commit
        self._stall.move()
        self._panel.stage(commit, timings)
        self._rows.append(stage_row(commit, timings))
        shown = [shown_row(row, replay=not self._config.has_actors) for row in self._rows]
        row, rows = shown[-1], shown[::-1]  # the UI shows ten rows a page
        self._logger.info("committed %s", " ".join(f"{name.replace(' ', '_')}={value}" for name, value in row.items()))
        self._show_progress(self._total_rounds if commit.finished else commit.rounds[1] + 1)
        events = self._events
        if events is not None:
            self._work.put(lambda: events.committed(commit))
        self._work.put(lambda: self._table.offer(lambda: table_json(rows)))
        self._work.put(lambda: self._draw([commit]))

    def summary(self) -> FlowResult:
        """Return the flow's result."""
        seconds = time.perf_counter() - self._started
        self._panel.result = flow_result(self._config, self._commit, seconds)
        return self._panel.result

    @property
    def _total_rounds(self) -> int:
        schedule = self._config.schedule
        if self._training is not None:
            schedule = self._training.config.schedule
        return schedule.max_stages * schedule.rounds_per_stage

    def _show_progress(self, rounds: int) -> None:
        percent = min(100.0, 100.0 * rounds / self._total_rounds)
        self._work.put(lambda: self._progress.show(percent))

    def _show_card(self, reason: str | None) -> None:
        curve = self._curve_markdown() if self._acting or self._evaluated else ""
        self._card.show(summary_markdown(self._config, self._commit, list(self._rows), curve, reason))

    def _artifact(self, kind: str, name: str, description: str) -> LiveArtifact:
        return LiveArtifact(kind, artifact_key(self._run, name), description, self._flow_run["flow_run_id"] or "")

    def _read_earlier(self, training: ActiveRun) -> None:
        """Draw commits from before this drive, and nothing else: an earlier drive of this flow run has drawn some."""
        self._acting, self._evaluated = [], []
        stages = training.newest.stage + 1 if training.newest else 0
        every = max(1.0, stages / _EARLIER_COMMITS)
        chosen = sorted({int(index * every) for index in range(min(stages, _EARLIER_COMMITS))})
        self._draw([training.run.log.read(stage) for stage in chosen])

    def _draw(self, commits: list[Commit]) -> None:
        acting, evaluated = curve_points(commits)
        self._acting += acting
        self._evaluated += evaluated
        self._curve.offer(self._curve_markdown)

    def _curve_markdown(self) -> str:
        title = f"{self._run}: {self._config.environment.id}, {self._config.algorithm.name}"
        return curve_markdown(title, self._acting, self._evaluated, replay=not self._config.has_actors)

    def _report_stall(self) -> None:
        idle = self._stall.stalled()
        if idle is None:
            return
        stage = self._commit.stage + 1 if self._commit else 0
        logger.warning(
            "run=%s stage=%d: no round was learned for %.3g s; check the workers, and the waits in the log. "
            "The limit is cluster.stall_seconds = %g",
            self._run,
            stage,
            idle,
            self._config.cluster.stall_seconds,
        )
        if self._events is not None:
            self._events.stalled(idle, stage, self._round)

    def _log(self, event: LogRecord) -> None:
        role = event.member.rsplit("-", 1)[0]
        extra = {"task_run_id": event.task_run, "task_run_name": role, "task_name": role, **self._flow_run}
        PrefectLogAdapter(get_logger("prefect.task_runs"), extra=extra).log(
            event.level, "%s: %s", event.member, event.text
        )

    def _show_all(self) -> None:
        while True:
            show: Callable[[], None] | None = self._report_stall
            with contextlib.suppress(queue.Empty):
                show = self._work.get(timeout=self._wait_seconds())
            if show is None:
                return
            try:
                show()
                for artifact in (self._table, self._curve):
                    if artifact.due_seconds() == 0.0:
                        artifact.refresh(_REFRESH_SECONDS)
                # Also while reports are queued without a pause, as where the server is slow.
                self._report_stall()
            except Exception as error:  # noqa: BLE001  (a failure of Prefect's server must not stop training)
                logger.warning("could not report to Prefect: %s", error)
                # A request to a server that is gone takes seconds to fail, and hundreds may be queued.
                if self._ending.is_set() and isinstance(error, httpx.TransportError):
                    return

    def _wait_seconds(self) -> float | None:
        """Return the longest time to wait for work; None for ever."""
        dues = (self._table.due_seconds(), self._curve.due_seconds(), self._stall.left_seconds())
        return min((due for due in dues if due is not None and due < math.inf), default=None)
