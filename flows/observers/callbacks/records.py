"""Records that callbacks get: frozen copies of a run's public facts."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from penstock.storage.digest import canonical_json, digest
from penstock.storage.runs.run import stored_settings
from penstock.tasks.analysis.history import Stage, newest_timings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.storage.runs.commit_schema import Commit
    from penstock.storage.runs.run import RunFolder
    from penstock.storage.runs.timings import StageTimings

_STAGES_AT_ONCE = 200
"""Number of stages whose timings are listed and read together."""


@dataclass(frozen=True, slots=True)
class StageRecord:
    """A committed stage."""

    run: str
    stage: int
    version: int
    """Version of the parameters after the stage."""
    env_steps: int
    """Since the run began, as are `episodes`."""
    episodes: int
    episode_return: float | None
    """Mean return of the episodes that ended in the stage; None if none did."""
    metrics: Mapping[str, float]
    """Means of the stage: losses, `episode_return`, `episode_length` and others."""
    evaluation: Mapping[str, float] | None
    """`mean_return`, `min_return`, `max_return`, `episodes` and others; None if the stage was not evaluated."""
    finished: str | None
    """The reason why the run ended with this stage; None if it continues."""
    seconds: float | None
    """Duration of the stage, the wait for its flow run included. None, as the facts below, if a kill after the commit
    lost its timings."""
    ended_at: float | None
    """Unix time."""
    env_steps_per_second: float | None
    """Over the duration without that wait; in a replay, of the stored steps learned from."""
    learner_wait_share: float | None
    """The learners' waiting by their waiting and learning, 0 to 1."""
    missed_shards: int | None
    """Shards that were not learned from; None with quorum 1."""
    shard_bytes: int
    """Bytes of the stage's shards; 0 if it has none."""


@dataclass(frozen=True, slots=True)
class RunStart:
    """A run that this process begins to drive, or to resume."""

    run: str
    store: str
    """Address of the store, without the run's name."""
    id: str
    """32 hexadecimal characters: the same wherever and whenever the run is driven, and of no other run."""
    settings: Mapping[str, Any]
    """A copy of the settings, as `run.json` has them."""
    next_stage: int
    """The first stage that this process commits; 0 for a new run."""
    created: str
    """Time at which the run was created, in ISO format."""
    _folder: RunFolder | None = field(default=None, repr=False, compare=False)

    def read_stages(self, first: int, stop: int) -> Iterator[StageRecord]:
        """Read committed stages `first` to `stop - 1` from the store: two small objects each.

        Raises:
            CorruptObjectError: a commit was altered.
            StoreError: the store can't be read.
        """
        if self._folder is None:
            return
        for begin in range(first, stop, _STAGES_AT_ONCE):
            stages = range(begin, min(begin + _STAGES_AT_ONCE, stop))
            timings = newest_timings(self._folder, stages)
            for stage in stages:
                yield stage_record(self.run, self._folder.log.read(stage), timings.get(stage))


@dataclass(frozen=True, slots=True)
class RunEnd:
    """The end of driving a run, which need not be the end of the run."""

    run: str
    store: str
    stages: int
    """Number of committed stages, as in `version` and `env_steps` since the run began."""
    version: int
    env_steps: int
    finished: str | None
    """The reason why the run ended; None if it can be resumed."""
    error: str | None
    """Kind and message of the error that stopped it; None if there was none."""


def stage_record(run: str, commit: Commit, timings: StageTimings | None) -> StageRecord:
    """Return the record of a stage of the run of this name."""
    return record_of(run, Stage(commit, timings))


def record_of(run: str, stage: Stage) -> StageRecord:
    """Return the record of a stage that was read with the run's history."""
    commit, timings = stage.commit, stage.timings
    return StageRecord(
        run=run,
        stage=commit.stage,
        version=commit.version,
        env_steps=commit.env_steps,
        episodes=commit.episodes,
        episode_return=commit.metrics.get("episode_return"),
        metrics=MappingProxyType(dict(commit.metrics)),
        evaluation=None if commit.evaluation is None else MappingProxyType(dict(commit.evaluation)),
        finished=commit.finished,
        seconds=stage.seconds,
        ended_at=timings.started_at + timings.stage_seconds if timings else None,
        env_steps_per_second=stage.steps_per_second,
        learner_wait_share=stage.wait_share,
        missed_shards=timings.missed_shards if timings else None,
        shard_bytes=sum(ref.nbytes for ref in commit.shards),
    )


def run_start(run: RunFolder, newest: Commit | None) -> RunStart:
    """Return the record of a run that is driven from a commit; None: from its beginning.

    Raises:
        RunNotFoundError: the run does not exist.
        CorruptObjectError: `run.json` was altered.
    """
    description = run.load("config")
    created = str(description.get("created", ""))
    named = {"run": run.name, "created": created, "genesis": run.genesis()}
    return RunStart(
        run=run.name,
        store=run.root.url,
        id=digest(canonical_json(named)),
        settings=stored_settings(description["config"]),
        next_stage=newest.stage + 1 if newest else 0,
        created=created,
        _folder=run,
    )


def run_end(start: RunStart, newest: Commit | None, error: BaseException | None) -> RunEnd:
    """Return the record of the end of driving, after the newest commit and with the error that stopped it."""
    return RunEnd(
        run=start.run,
        store=start.store,
        stages=newest.stage + 1 if newest else 0,
        version=newest.version if newest else 0,
        env_steps=newest.env_steps if newest else 0,
        finished=newest.finished if newest else None,
        error=None if error is None else f"{type(error).__name__}: {error}",
    )
