"""The base class of callbacks."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.flows.observers.callbacks.records import RunEnd, RunStart, StageRecord


class Callback:
    """Follows a run; a subclass overrides the methods that it needs.

    The methods of one callback are called one after the other, in a thread of its own in the flow's process, after the
    commit is durable: training never waits for them. An exception is a warning, and the next records are delivered.
    Each stage that this process commits is delivered at most once: a kill between the commit and the call loses it, as
    does a callback that falls more than 256 records behind. One that needs every stage reads it with
    `RunStart.read_stages`.
    """

    def on_run_start(self, start: RunStart) -> None:
        """Follow a run that this process begins to drive: a new one, or one that it resumes at `start.next_stage`."""

    def on_stage(self, record: StageRecord) -> None:
        """Follow a committed stage."""

    def on_evaluation(self, record: StageRecord) -> None:
        """Follow a committed stage that was evaluated: called after `on_stage`, with the same record."""

    def on_run_end(self, end: RunEnd) -> None:
        """Follow the end: the run is finished, was cancelled or failed. A kill leaves it out."""


METHODS = ("on_run_start", "on_stage", "on_evaluation", "on_run_end")
