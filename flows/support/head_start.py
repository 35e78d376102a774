"""Begins a run before its flow run: what the first stage does needs no Prefect, only its record does.

While Prefect's server starts, the run is created, its lease is taken, its workers start, and its first stage acts and
learns. Nothing is committed until the flow run has begun, and goes on with the run as if it had begun it. Prefect is
imported only when the gang works, as that takes about as long as the rest of this process's start.
"""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Self

from penstock.flows.observers.telemetry.endpoint import wants_metrics
from penstock.flows.observers.tracking.open import open_followers
from penstock.tasks.driver.run import drive_run
from penstock.tasks.runtime.events import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from penstock.flows.observers.callbacks.callback import Callback
    from penstock.tasks.driver.run import ActiveRun
    from penstock.tasks.runtime.events import MemberEvent
    from penstock.tasks.setup.planning.resolve import ResolvedRun

_waiting: list[HeadStart] = []
"""The run that the next flow run of this process goes on with; a flow receives settings alone."""


class HeadStart:
    """A run that this process drives before its flow run. A context manager, at whose end nothing of it works.

    Args:
        resolved: the checked run.
    """

    def __init__(self, resolved: ResolvedRun) -> None:
        self.training: ActiveRun | None = None
        """The run, once this process drives it."""
        self.followers: list[Callback] = []
        """The run's callbacks."""
        self._resolved = resolved
        self._error: Exception | None = None
        self._stack = ExitStack()
        self._events = _KeptEvents()
        self._records = _KeptRecords()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _waiting.clear()
        self._stack.__exit__(kind, error, trace)

    def begin(self) -> None:
        """Drive the run from now on, and start its first gang; does nothing where only a flow run can.

        That is a run whose policy is not chosen yet, that needs workers elsewhere, or that exports metrics of its flow
        run. An error is kept for the flow run, which raises it and so has a record of it.
        """
        if not _can_begin(self._resolved):
            return
        self._stack.enter_context(self._records.taken())
        try:
            with self._records.with_info():
                self.followers = open_followers(self._resolved.config.cluster)
                self.training = self._stack.enter_context(drive_run(self._resolved, self._events))
                self._stack.enter_context(self.training.started_ahead())
        except Exception as error:  # noqa: BLE001  (see above)
            self._error = error
        _waiting.append(self)

    @contextmanager
    def driven(self, on_event: Callable[[MemberEvent], None]) -> Iterator[ActiveRun]:
        """Go on with the run inside its flow run, as `drive_run` does.

        Args:
            on_event: as of `drive_run`; it is also called with the events until now.
        """
        from prefect.logging import get_run_logger  # noqa: PLC0415  (see above)

        for record in self._records.take():
            get_run_logger().log(record.levelno, record.getMessage())
        if self._error is not None:
            raise self._error
        assert self.training is not None
        with self._stack:
            self._events.pass_on(on_event)
            yield self.training


def take_head_start() -> HeadStart | None:
    """Return the run that this process has begun for the flow run that calls this, if it has; once."""
    return _waiting.pop() if _waiting else None


def _can_begin(resolved: ResolvedRun) -> bool:
    policy, cluster = resolved.policy, resolved.config.cluster
    if policy is None or wants_metrics(cluster):
        return False
    return all(cluster.schedulers_of(role.name) == (None,) for role in policy.roles)


class _KeptEvents:
    """Keeps members' events until a function handles them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[MemberEvent] = []
        self._handle: Callable[[MemberEvent], None] | None = None

    def __call__(self, event: MemberEvent) -> None:
        with self._lock:
            handle = self._handle
            if handle is None:
                if isinstance(event, Progress):  # a newer one replaces it
                    self._kept = [kept for kept in self._kept if not isinstance(kept, Progress)]
                self._kept.append(event)
                return
        handle(event)

    def pass_on(self, handle: Callable[[MemberEvent], None]) -> None:
        """Handle the events so far, and all later ones, in their order."""
        with self._lock:
            for event in self._kept:
                handle(event)
            self._kept.clear()
            self._handle = handle


class _KeptRecords(logging.Handler):
    """Keeps Penstock's log records, which belong to the flow run that will be."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: list[logging.LogRecord] = []

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Take records until `take` is called."""
        logging.getLogger("penstock").addHandler(self)
        try:
            yield
        finally:
            logging.getLogger("penstock").removeHandler(self)

    @contextmanager
    def with_info(self) -> Iterator[None]:
        """Take informative records too, unless a level is set: Prefect sets it when it is imported."""
        logger = logging.getLogger("penstock")
        before = logger.level
        logger.setLevel(before or logging.INFO)
        try:
            yield
        finally:
            logger.setLevel(before)

    def emit(self, record: logging.LogRecord) -> None:
        self._kept.append(record)

    def take(self) -> list[logging.LogRecord]:
        """Return the records so far, and keep no more."""
        logging.getLogger("penstock").removeHandler(self)
        return self._kept
