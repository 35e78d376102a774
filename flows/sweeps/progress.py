"""Reads how far a point's run is, from its commits; a run that was extended counts as far as its point's own end."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from penstock.storage.errors import ConfigError
from penstock.tasks.setup.config.replay import build_stored_config

if TYPE_CHECKING:
    from penstock.flows.sweeps.points import Point
    from penstock.storage.runs.commit_schema import Commit
    from penstock.storage.runs.run import RunFolder
    from penstock.tasks.setup.config.run import TrainConfig


_COMPARED = re.compile(r"seed|(?:algorithm|schedule)\.\w+")
"""Settings whose values are stored as they are given."""


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
        """The newest commit that was read: that with which the run ended first, or the log's last one."""
        self._folder = point.folder
        self._is_checked = False

    @property
    def stages(self) -> int:
        """Return the number of stages that were read."""
        return self.newest.stage + 1 if self.newest else 0

    @property
    def is_finished(self) -> bool:
        """Return whether the run has ended of itself."""
        return self.newest is not None and self.newest.finished is not None

    def update(self) -> bool:
        """Read the stages that were committed since; return whether there are any.

        Raises:
            ConfigError: there is a run of that name with other values.
        """
        if self.is_finished:
            return False
        if not self._is_checked:
            if not self._folder.exists():
                return False
            _refuse_other_values(self.point, self._folder)
            self._is_checked = True
        before, log = self.stages, self._folder.log
        newest = log.newest(since=before - 1 if before else None)
        if newest is None or newest.stage + 1 == before:
            return False
        for stage in range(before, newest.stage + 1):
            commit = newest if stage == newest.stage else log.read(stage)
            if commit.evaluation is not None:
                self.evaluations[stage] = float(commit.evaluation["mean_return"])
            self.newest = commit
            if commit.finished is not None:  # what follows was asked for later, by `penstock extend`
                break
        return True

    def has(self, stages: int) -> bool:
        """Return whether the run has so many stages, or has ended before."""
        return self.is_finished or self.stages >= stages

    def score(self, stages: int | None = None) -> float | None:
        """Return the newest evaluation of the first so many stages (default: of all); None if there is none."""
        found = [stage for stage in self.evaluations if stages is None or stage < stages]
        return self.evaluations[max(found)] if found else None


def _refuse_other_values(point: Point, run: RunFolder) -> None:
    """Refuse a run that is there with other values than the point's.

    Values that a run stores in another form than they are given in, as an environment's own settings, are not compared.
    """
    if ":" in point.config.algorithm.name:
        return
    stored, expected = (
        config.model_dump(mode="json") for config in (build_stored_config(run.load("config")["config"]), point.config)
    )
    for path in filter(_COMPARED.fullmatch, point.values):
        table, _, name = path.rpartition(".")
        there, wanted = ((one[table] if table else one).get(name) for one in (stored, expected))
        if there != wanted:
            raise ConfigError(
                f"run '{run.name}' is there already, with {path} = {there!r}, and this sweep's has {wanted!r}: it is "
                f"another sweep's, or none's; choose another name for the sweep"
            )


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
