"""What Prefect's UI shows of a run: progress, a table of stages, a summary, and the members' log records.

Everything goes through one background thread, so that no stage waits for Prefect's server, and a server that is slow or
gone costs what it would have shown and nothing else.
"""

from __future__ import annotations

import contextvars
import logging
import queue
import threading
import time
from typing import TYPE_CHECKING, Any, Self

from prefect.artifacts import (
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)
from prefect.logging import get_logger, get_run_logger
from prefect.logging.loggers import PrefectLogAdapter
from prefect.runtime import flow_run

from flows.console import current_panel
from flows.identity import artifact_key
from flows.summary import stage_row, summary_markdown

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from uuid import UUID

    from tasks.config import RunConfig
    from tasks.training import Training

_UPDATE_SECONDS = 2.0


class RunReport:
    """Shows one drive of a run. A context manager: what is queued is shown before it ends."""

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
        self._progress: UUID | None = None
        self._updated = 0.0
        self._rows: list[dict[str, Any]] = []
        self._commit: dict[str, Any] | None = None
        self._training: Training | None = None
        self._started = time.perf_counter()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._rows or error is not None:
            reason = None if error is None else f"{type(error).__name__}: {error}"
            text = summary_markdown(self._config, self._commit, self._rows, reason)
            self._work.put(lambda: _drop(create_markdown_artifact(text, key=artifact_key(self._run, "summary"))))
        self._work.put(None)
        self._thread.join()
        self._panel.end()

    def begin(self, training: Training) -> None:
        """The run is this process's to drive."""
        self._training = training
        self._config = training.config  # whose policy may have been chosen just now
        self._commit = training.newest
        self._panel.begin(training)
        start = f"from stage {training.newest['stage'] + 1}" if training.newest else "from the beginning"
        self._logger.info("run=%s store=%s %s", training.run.name, self._config.store, start)
        if training.why:
            self._logger.info("policy=%s %s", training.config.placement.policy, training.why)
        self._work.put(self._create_progress)

    def hear(self, event: dict[str, Any]) -> None:
        """An event of a member: its progress, or a log record for its role's task run."""
        if event["event"] == "progress":
            self._panel.progress(event)
            now = time.monotonic()
            if now - self._updated >= _UPDATE_SECONDS:
                self._updated = now
                percent = 100.0 * (event["round"] + 1) / self._total_rounds
                self._work.put(lambda: self._update_progress(percent))
        elif event["event"] == "log":
            if event["level"] >= logging.WARNING:
                self._panel.warn(event["text"])
            self._work.put(lambda: self._log(event))

    def stage(self, commit: dict[str, Any], timings: dict[str, Any]) -> None:
        """A stage was committed."""
        self._commit = commit
        self._panel.stage(commit, timings)
        self._rows.append(stage_row(commit, timings))
        row, rows = self._rows[-1], list(self._rows)
        self._logger.info("committed %s", " ".join(f"{name.replace(' ', '_')}={value}" for name, value in row.items()))
        self._work.put(
            lambda: _drop(create_table_artifact(rows, key=artifact_key(self._run, "stages"), description="Stages"))
        )

    def summary(self) -> dict[str, Any]:
        """What was reached, as small JSON: the flow's result."""
        commit = self._commit or {}
        return {
            "run": str(self._config.name),
            "store": self._config.store,
            "stages": commit.get("stage", -1) + 1,
            "version": commit.get("version", 0),
            "env_steps": commit.get("env_steps", 0),
            "episodes": commit.get("episodes", 0),
            "evaluation": commit.get("evaluation"),
            "finished": commit.get("finished"),
            "seconds": time.perf_counter() - self._started,
        }

    @property
    def _total_rounds(self) -> int:
        schedule = self._config.schedule
        if self._training is not None:
            schedule = self._training.config.schedule
        return schedule.max_stages * schedule.rounds_per_stage

    def _create_progress(self) -> None:
        created: Any = create_progress_artifact(
            0.0, key=artifact_key(self._run, "progress"), description="Share of all rounds"
        )
        self._progress = created

    def _update_progress(self, percent: float) -> None:
        if self._progress is not None:
            _drop(update_progress_artifact(self._progress, min(percent, 100.0)))

    def _log(self, event: dict[str, Any]) -> None:
        role = event["member"].rsplit("-", 1)[0]
        extra = {"task_run_id": event["task_run"], "task_run_name": role, "task_name": role, **self._flow_run}
        PrefectLogAdapter(get_logger("prefect.task_runs"), extra=extra).log(
            event["level"], "%s: %s", event["member"], event["text"]
        )

    def _show_all(self) -> None:
        while (show := self._work.get()) is not None:
            try:
                show()
            except Exception as error:  # noqa: BLE001  (whatever Prefect's server does, training goes on)
                logging.getLogger(__name__).warning("Prefect shows less than it could: %s", error)


def _drop(result: object) -> None:
    """An artifact's id, which nobody needs."""
    del result
