"""The base class of trackers: it keeps the record of a run without gaps and without double points."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from penstock.flows.observers.callbacks.callback import Callback
from penstock.flows.observers.tracking.outcome import OutcomeMaker
from penstock.tasks.setup.config.cluster import ClusterSettings

if TYPE_CHECKING:
    from penstock.flows.observers.callbacks.records import RunEnd, RunStart, StageRecord
    from penstock.flows.observers.tracking.outcome import Outcome


class Tracker(Callback):
    """Sends the stages of a run to a record, whose id is the run's, so that a resumed run continues the same record.

    The record itself says which stage it lacks first. Stages before the delivered one that it lacks are read from the
    store: those of earlier drives, those that a service missed while it was unreachable, and those that were left out
    because it was too slow.

    Args:
        name: its name in messages; by default that of its class.
        outcomes: makes report and clip of a finished run; by default for this tracker alone.
    """

    name: str
    """Name in messages."""

    def __init__(self, name: str = "", outcomes: OutcomeMaker | None = None) -> None:
        self.name = f"tracker {name or type(self).__name__}"
        self._outcomes = outcomes or OutcomeMaker(ClusterSettings().callback_seconds)
        self._start: RunStart | None = None
        self._next: int | None = None

    @abstractmethod
    def open(self, start: RunStart) -> int:
        """Open or continue the record of a run, with its settings; return the first stage that the record lacks."""

    def first_lacking(self, known: int) -> int:
        """Return the first stage that the record lacks now; override it where something else may write to the record.

        Args:
            known: the stage after the last one that was added.
        """
        return known

    @abstractmethod
    def add(self, record: StageRecord) -> None:
        """Add a stage."""

    @abstractmethod
    def add_outcome(self, outcome: Outcome) -> None:
        """Add report and clip of the finished run."""

    @abstractmethod
    def close(self, end: RunEnd) -> None:
        """Close the record; the run may be resumed later."""

    def on_run_start(self, start: RunStart) -> None:
        """Open the record, and add the stages of earlier drives that it lacks."""
        self._start = start
        self._catch_up(start.next_stage)

    def on_stage(self, record: StageRecord) -> None:
        """Add a stage, unless the record has it."""
        if self._catch_up(record.stage) == record.stage:
            self.add(record)
            self._next = record.stage + 1

    def on_run_end(self, end: RunEnd) -> None:
        """Add what the record lacks, and close it."""
        try:
            self._catch_up(end.stages)
            if end.finished and self._start is not None:
                self.add_outcome(self._outcomes.make(self._start.store, end.run))
        finally:
            if self._next is not None:
                self.close(end)

    def _catch_up(self, stop: int) -> int:
        """Add stages before `stop` that the record lacks; return the first stage that it still lacks."""
        assert self._start is not None
        if self._next is None:
            self._next = self.open(self._start)
        else:
            self._next = self.first_lacking(self._next)
        for record in self._start.read_stages(self._next, stop):
            self.add(record)
            self._next = record.stage + 1
        return self._next
