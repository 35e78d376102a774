"""Reads how far a point's run is, from its commits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.storage.errors import ConfigError

if TYPE_CHECKING:
    from penstock.flows.sweeps.points import Point
    from penstock.storage.runs.commit_schema import Commit
    from penstock.tasks.setup.config.run import TrainConfig


class Progress:
    """A reader of one run's commits, which reads each once.

    Args:
        point: of which the run is read; the run need not exist yet.
    """

    def __init__(self, point: Point) -> None:
        self.point = point
        self.evaluations: dict[int, float] = {}
        """Mean return of each evaluated stage."""
        self.newest: Commit | None = None
        self._log = point.folder.log

    @property
    def stages(self) -> int:
        """Return the number of stages that were read."""
        return self.newest.stage + 1 if self.newest else 0

    @property
    def is_finished(self) -> bool:
        """Return whether the run has ended of itself."""
        return self.newest is not None and self.newest.finished is not None

    def update(self) -> bool:
        """Read the stages that were committed since; return whether there are any."""
        before = self.stages
        newest = self._log.newest(since=before - 1 if before else None)
        if newest is None or newest.stage + 1 == before:
            return False
        for stage in range(before, newest.stage + 1):
            commit = newest if stage == newest.stage else self._log.read(stage)
            if commit.evaluation is not None:
                self.evaluations[stage] = float(commit.evaluation["mean_return"])
        self.newest = newest
        return True

    def has(self, stages: int) -> bool:
        """Return whether the run has so many stages, or has ended before."""
        return self.is_finished or self.stages >= stages

    def score(self, stages: int | None = None) -> float | None:
        """Return the newest evaluation of the first so many stages (default: of all); None if there is none."""
        found = [stage for stage in self.evaluations if stages is None or stage < stages]
        return self.evaluations[max(found)] if found else None


def check_evaluated(what: str, stages: int, config: TrainConfig) -> None:
    """Refuse to judge runs before they are evaluated.

    Args:
        what: the parameter that says when they are judged, for the message.
        stages: number of stages after which they are judged first.
        config: of the runs.

    Raises:
        ConfigError: there is no evaluation among so many stages.
    """
    every = config.schedule.evaluate_every_stages
    if stages < every:
        raise ConfigError(
            f"{what} = {stages}: runs are first evaluated after {every} stages (schedule.evaluate_every_stages); "
            f"judge them later, or evaluate them more often"
        )
