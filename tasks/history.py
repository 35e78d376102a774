"""What a run's storage tells of its past: commits beside their timings, evaluations, attempts. Imports no torch."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from storage.errors import CorruptObjectError, ObjectNotFoundError
from storage.refs import ShardRef
from storage.shard_reader import open_shard

if TYPE_CHECKING:
    from collections.abc import Iterable

    from storage.run import RunFolder

_TIMINGS_NAME = re.compile(r"timings/(\d{8,})-(\d{8,})\.json")
_MOST_STAGES = 1000
_NEWEST_STAGES = 50
_MOST_LAGS = 50
_READS_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Stage:
    """A committed stage."""

    commit: dict[str, Any]
    timings: dict[str, Any] | None
    """None where a kill between commit and timings lost them."""

    @property
    def index(self) -> int:
        """Its number."""
        return int(self.commit["stage"])

    @property
    def seconds(self) -> float | None:
        """How long it took."""
        return float(self.timings["stage_seconds"]) if self.timings else None

    def parts(self, half: str) -> list[dict[str, Any]]:
        """What each member of a half (`act`, `env`, `learn`, `server`) counted."""
        return list(self.timings.get(half, [])) if self.timings else []

    @property
    def steps_per_second(self) -> float | None:
        """Environment steps that were acted, or stored steps that were learned from, by the stage's seconds."""
        parts = self.parts("act") or self.parts("learn")
        if not parts or not self.seconds:
            return None
        return float(sum(part["env_steps"] for part in parts)) / self.seconds

    @property
    def wait_share(self) -> float | None:
        """The learners' waiting by their waiting and learning, 0 to 1."""
        waited = sum(part["wait_seconds"] for part in self.parts("learn"))
        busy = waited + sum(part["learn_seconds"] for part in self.parts("learn"))
        return waited / busy if busy else None


@dataclass(frozen=True, slots=True)
class History:
    """A run's past."""

    run: RunFolder
    description: dict[str, Any]
    """`run.json`."""
    stages: tuple[Stage, ...]
    """All committed ones, or 1,000 of them that lie as even as can be and the newest 50."""
    committed: int
    """How many stages there are."""
    evaluations: tuple[dict[str, Any], ...]
    """Those of `penstock evaluate`, by version."""
    attempts: dict[int, dict[str, Any]]
    """Of stages that were tried again: which attempt counts, and why."""

    @property
    def config(self) -> dict[str, Any]:
        """The settings as they were stored."""
        return dict(self.description["config"])

    @property
    def newest(self) -> dict[str, Any] | None:
        """The newest commit."""
        return self.stages[-1].commit if self.stages else None


def read_history(run: RunFolder, most_stages: int = _MOST_STAGES) -> History:
    """Everything that is read is small: a commit and timings a stage.

    Raises:
        RunNotFoundError: there is no such run.
        CorruptObjectError: `run.json` or a commit was altered.
    """
    description = run.load("config", "made_with", "promise")
    newest = run.log.newest()
    committed = newest["stage"] + 1 if newest else 0
    even = np.linspace(0, committed - 1, min(committed, most_stages)).round().astype(int)
    stages = np.union1d(even, np.arange(max(0, committed - _NEWEST_STAGES), committed)).tolist()
    timings = newest_timings(run, stages)
    with ThreadPoolExecutor(_READS_AT_ONCE, thread_name_prefix="history") as threads:
        commits = list(threads.map(run.log.read, stages))
    return History(
        run=run,
        description=description,
        stages=tuple(Stage(commit, timings.get(stage)) for stage, commit in zip(stages, commits, strict=True)),
        committed=committed,
        evaluations=tuple(sorted(_objects(run, "evaluations/"), key=lambda one: int(one["version"]))),
        attempts={int(name[len("attempts/") : -len(".json")]): value for name, value in _named(run, "attempts/")},
    )


def newest_timings(run: RunFolder, stages: Iterable[int]) -> dict[int, dict[str, Any]]:
    """Of each of these stages the timings of its last driver; those that are lost or damaged are left out."""
    wanted = set(stages)
    generations: dict[int, int] = {}
    for name in run.store.list("timings/"):
        found = _TIMINGS_NAME.fullmatch(name)
        if found and int(found[1]) in wanted:
            generations[int(found[1])] = max(int(found[2]), generations.get(int(found[1]), 0))
    names = [f"timings/{stage:08d}-{generation:08d}.json" for stage, generation in generations.items()]
    with ThreadPoolExecutor(_READS_AT_ONCE, thread_name_prefix="history") as threads:
        values = list(threads.map(lambda name: _json(run.store.read(name)), names))
    needed = {"started_at", "stage_seconds", "act", "learn"}
    read = zip(generations, values, strict=True)
    return {stage: value for stage, value in read if value and needed <= value.keys()}


def stored_lags(history: History) -> dict[int, int]:
    """How many versions behind the last round of a stage was acted, as its last shard says; of 50 stages at most.

    Stages whose shards were dropped, replays and what was imported have none.
    """
    with_shards = [stage for stage in history.stages if stage.commit["shards"] and stage.commit["snapshots"]]
    some = np.unique(np.linspace(0, len(with_shards) - 1, min(len(with_shards), _MOST_LAGS)).round().astype(int))
    lags = {}
    for index in some.tolist():
        stage = with_shards[index]
        ref = ShardRef.from_json(stage.commit["shards"][-1])
        try:
            info = open_shard(history.run.store, ref).info
        except (ObjectNotFoundError, CorruptObjectError):
            continue
        lags[stage.index] = ref.round - info.min_policy_version
    return lags


def _named(run: RunFolder, prefix: str) -> list[tuple[str, dict[str, Any]]]:
    read = [(name, _json(run.store.read(name))) for name in run.store.list(prefix) if name.endswith(".json")]
    return [(name, value) for name, value in read if value]


def _objects(run: RunFolder, prefix: str) -> list[dict[str, Any]]:
    return [value for _, value in _named(run, prefix) if {"version", "mean_return", "episodes"} <= value.keys()]


def _json(data: bytes) -> dict[str, Any] | None:
    """None for what is no JSON object: nothing that is read with this is needed to go on with a run."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
