"""Reads a run's past from its storage: commits with their timings, evaluations, attempts. Imports no torch."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from os.path import commonprefix
from typing import TYPE_CHECKING, Any

from penstock.storage.errors import CorruptObjectError, ObjectNotFoundError
from penstock.storage.runs.run import named_values, stored_evaluations, stored_settings
from penstock.storage.runs.timings import decode_timings, timings_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from penstock.storage.runs.commit_schema import Commit
    from penstock.storage.runs.run import RunFolder
    from penstock.storage.runs.timings import ActTimes, LearnTimes, MemberTimes, StageTimings

_ATTEMPT_NAME = re.compile(r"attempts/([0-9]{1,18})\.json")
_TIMINGS_NAME = re.compile(r"timings/(\d{8,})-(\d{8,})\.json")
_MOST_STAGES = 1000
_NEWEST_STAGES = 50
_MOST_LAGS = 50
_READS_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Stage:
    """A committed stage."""

    commit: Commit
    timings: StageTimings | None
    """None if a kill between commit and timings lost them."""

    @property
    def index(self) -> int:
        """Return the stage's number."""
        return self.commit.stage

    @property
    def seconds(self) -> float | None:
        """Return the stage's duration, the wait for its flow run included."""
        return self.timings.stage_seconds if self.timings else None

    @property
    def act(self) -> tuple[ActTimes, ...]:
        """Return the times of each act component."""
        return self.timings.act if self.timings else ()

    @property
    def learn(self) -> tuple[LearnTimes, ...]:
        """Return the times of each learner."""
        return self.timings.learn if self.timings else ()

    @property
    def by_component(self) -> dict[str, tuple[MemberTimes, ...]]:
        """Return the times of all members by component."""
        return self.timings.by_component if self.timings else {}

    @property
    def steps_per_second(self) -> float | None:
        """Return acted environment steps, or stored steps that were learned from, by the duration without that wait."""
        parts = self.act or self.learn
        if not parts or not self.timings or not self.timings.own_seconds:
            return None
        return sum(part.env_steps for part in parts) / self.timings.own_seconds

    @property
    def wait_share(self) -> float | None:
        """Return the learners' waiting by their waiting and learning, 0 to 1."""
        waited = sum(part.wait_seconds for part in self.learn)
        busy = waited + sum(part.learn_seconds for part in self.learn)
        return waited / busy if busy else None


@dataclass(frozen=True, slots=True)
class History:
    """A run's past."""

    run: RunFolder
    description: Mapping[str, Any]
    """`run.json`."""
    stages: tuple[Stage, ...]
    """All committed stages, or 1,000 of them, evenly spaced, and the newest 50."""
    committed: int
    """Number of committed stages."""
    evaluations: tuple[Mapping[str, Any], ...]
    """Results of `penstock evaluate`, by version; of a version the one of most episodes is the last, as it counts."""
    attempts: Mapping[int, Mapping[str, Any]]
    """For each stage that was tried again, the attempt that counts and the reason."""

    @property
    def config(self) -> Mapping[str, Any]:
        """Return the stored settings, by their current names."""
        return stored_settings(self.description["config"])

    @property
    def is_replay(self) -> bool:
        """Return whether the run learns from stored steps, and nothing acts."""
        return "source" in self.config

    @property
    def newest(self) -> Commit | None:
        """Return the newest commit; None before the first."""
        return self.stages[-1].commit if self.stages else None


def read_history(
    run: RunFolder, most_stages: int = _MOST_STAGES, on_progress: Callable[[int, int], None] = lambda _, __: None
) -> History:
    """Read a run's past: small objects only, a commit and timings for each stage.

    Args:
        run: a run, which may be driven meanwhile.
        most_stages: upper bound of the evenly spaced stages.
        on_progress: called with the numbers of commits read and of all.

    Raises:
        RunNotFoundError: the run does not exist.
        CorruptObjectError: `run.json` or a commit was altered.
    """
    description = run.load("config", "made_with", "promise")
    newest = run.log.newest()
    committed = newest.stage + 1 if newest else 0
    stages = sorted({*_evenly(committed, most_stages), *range(max(0, committed - _NEWEST_STAGES), committed)})
    return History(
        run=run,
        description=description,
        stages=read_stages(run, stages, on_progress),
        committed=committed,
        evaluations=tuple(sorted(stored_evaluations(run), key=_order)),
        attempts={
            int(found[1]): value
            for name, value in named_values(run, "attempts/")
            if (found := _ATTEMPT_NAME.fullmatch(name))
        },
    )


def _order(evaluation: Mapping[str, Any]) -> tuple[int, int, float]:
    return int(evaluation["version"]), int(evaluation["episodes"]), float(evaluation["mean_return"])


def read_stages(
    run: RunFolder, stages: Sequence[int], on_progress: Callable[[int, int], None] = lambda _, __: None
) -> tuple[Stage, ...]:
    """Return committed stages with their timings; two small objects are read for each.

    Args:
        run: a run, which may be driven meanwhile.
        stages: their numbers.
        on_progress: called with the numbers of commits read and of all.

    Raises:
        ObjectNotFoundError: one of them was not committed.
        CorruptObjectError: a commit was altered.
    """
    timings = newest_timings(run, stages)
    with ThreadPoolExecutor(_READS_AT_ONCE, thread_name_prefix="history") as threads:
        commits = []
        for commit in threads.map(run.log.read, stages):
            commits.append(commit)
            on_progress(len(commits), len(stages))
    return tuple(Stage(commit, timings.get(commit.stage)) for commit in commits)


def newest_timings(run: RunFolder, stages: Iterable[int]) -> dict[int, StageTimings]:
    """Return the timings of the last driver of each of these stages, without those that are lost or damaged."""
    # A range stays one: the number of the newest commit may be forged.
    wanted: Sequence[int] = stages if isinstance(stages, range) else sorted(set(stages))
    generations: dict[int, int] = {}
    # Few of a long run's names are listed where few of its stages are wanted.
    ends = [timings_name(stage, 0).partition("-")[0] for stage in (wanted[0], wanted[-1])] if wanted else []
    for name in run.store.list(commonprefix(ends) or "timings/"):  # noqa: RUF071  (names are compared as text)
        found = _TIMINGS_NAME.fullmatch(name)
        if found and int(found[1]) in wanted:
            generations[int(found[1])] = max(int(found[2]), generations.get(int(found[1]), 0))
    names = [timings_name(stage, generation) for stage, generation in generations.items()]
    with ThreadPoolExecutor(_READS_AT_ONCE, thread_name_prefix="history") as threads:
        values = list(threads.map(lambda name: decode_timings(run.store.read(name)), names))
    return {stage: value for stage, value in zip(generations, values, strict=True) if value}


def stored_lags(history: History) -> dict[int, int]:
    """Return the policy lag of each stage's last round, as its last shard records it; for 50 stages at most.

    Stages whose shards were dropped, replays and imported data have none.
    """
    from penstock.storage.shards.reader import open_shard  # noqa: PLC0415  (pyarrow: no other history needs it)

    with_shards = [stage for stage in history.stages if stage.commit.shards and stage.commit.snapshots]
    lags = {}
    for index in _evenly(len(with_shards), _MOST_LAGS):
        stage = with_shards[index]
        ref = stage.commit.shards[-1]
        try:
            info = open_shard(history.run.store, ref).info
        except (ObjectNotFoundError, CorruptObjectError):
            continue
        lags[stage.index] = ref.round - info.min_policy_version
    return lags


def _evenly(count: int, most: int) -> list[int]:
    """Return at most `most` of the indices below `count`, evenly spaced, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return [round(index * (count - 1) / (most - 1)) for index in range(most)]
