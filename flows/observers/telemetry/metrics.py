"""The metrics of a drive, made of what members and stages report already; nothing is measured for them alone."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.registry import Collector

from penstock.storage.stores.counted import calls_since

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from prometheus_client import Metric

    from penstock.storage.runs.commit_schema import Commit
    from penstock.storage.runs.timings import StageTimings
    from penstock.storage.stores.counted import StoreCalls, StoreTally
    from penstock.tasks.driver.run import ActiveRun
    from penstock.tasks.driver.worker_slots import SchedulerLoad
    from penstock.tasks.runtime.events import Progress

# Name, help and labels besides `run`. Prometheus adds `_total` to the names of counters.
_COUNTERS = {
    "stages_committed": ("Stages of the run that are committed.", ()),
    "env_steps": ("Environment steps of the run that are committed; in a replay, stored steps learned from.", ()),
    "episodes": ("Episodes of the run that ended in committed stages.", ()),
    "stage_seconds": ("Seconds of this drive's stages by part.", ("part",)),
    "failed_attempts": ("Attempts at this drive's committed stages that were given up.", ()),
    "component_seconds": ("Seconds of this drive's members by kind of work.", ("component", "work")),
    "member_restarts": ("Members that began again because their process was lost.", ("role",)),
    "edge_bytes": ("Bytes that crossed processes in this drive.", ("edge",)),
    "edge_messages": ("Messages that crossed processes in this drive.", ("edge",)),
    "missed_shards": ("Shards that this drive did not learn from; 0 with quorum 1.", ()),
    "cpu_seconds": (
        "Seconds of CPU time of this drive's worker processes, by the role of the first member in each.",
        ("role",),
    ),
    "store_calls": ("Calls of the store.", ("process", "operation")),
    "store_seconds": ("Seconds in calls of the store, over concurrent calls.", ("process", "operation")),
    "store_bytes": ("Bytes read from and written to the store.", ("process", "operation")),
    "store_errors": ("Calls of the store that failed.", ("process", "operation")),
    "scheduler_losses": ("Dask schedulers that were lost and replaced in this flow run.", ()),
}
_GAUGES = {
    "run_info": ("Facts of the run; the value is 1.", ("environment", "algorithm", "policy")),
    "rounds_learned": ("Rounds that the run has learned.", ()),
    "rounds_planned": ("Rounds after which the run ends.", ()),
    "env_steps_per_second": (
        "Environment steps, or stored steps learned from, per second of the newest committed stage, waits included.",
        (),
    ),
    "version": ("Version of the newest committed snapshot.", ()),
    "evaluation_return": ("Mean return of the newest evaluation.", ()),
    "episode_return": ("Mean return of the latest acted episodes.", ()),
    "learner_wait_ratio": ("Share of the stage in which the first learner waited for shards.", ()),
    "learner_queue_shards": ("Mean number of shards that were ready when the first learner took one.", ()),
    "lag_rounds": ("Rounds by which acting may be ahead of learning.", ()),
    "memory_bytes": ("Resident memory of the worker processes at the end of the newest stage.", ("role",)),
    "gpu_memory_bytes": ("Peak of GPU memory that torch allocated in the newest stage.", ("role",)),
    "scheduler_up": ("1 if the Dask scheduler answered the last poll.", ("scheduler",)),
    "scheduler_workers": ("Workers of the Dask scheduler.", ("scheduler",)),
    "scheduler_tasks": ("Tasks of the Dask scheduler by state.", ("scheduler", "state")),
    "scheduler_slots": ("Slots of the Dask scheduler's workers.", ("scheduler", "resource", "use")),
}


class RunMetrics:
    """The metrics of one run, by names that begin with `penstock_` and with the label `run`. Safe for threads.

    Counters of stages, steps and episodes go on where the run's newest commit ends; others begin at 0 with the drive.

    Args:
        run: name of the run.
        tally: counts the store calls of the flow's process.
    """

    def __init__(self, run: str, tally: StoreTally) -> None:
        self.registry = CollectorRegistry()
        """Has all metrics, and no others."""
        self._run, self._tally = run, tally
        self._lock = threading.Lock()
        self._drives = 0
        self._labels: dict[tuple[str, str], set[tuple[str, ...]]] = {}
        self._stored: dict[str, StoreCalls] = {}
        self._metrics: dict[str, Any] = {}
        self.registry.register(_Before(self.count_store_calls))
        for kind, described in ((Counter, _COUNTERS), (Gauge, _GAUGES)):
            for name, (text, labels) in described.items():
                made: Any = kind(f"penstock_{name}", text, ("run", *labels), registry=self.registry)
                self._metrics[name] = made

    def begin(self, training: ActiveRun) -> None:
        """Note that a run is driven: its facts, and its counts so far."""
        config, newest = training.config, training.newest
        with self._lock:
            self._drives += 1
            first = self._drives == 1
        self._set("run_info", 1, config.environment.id, config.algorithm.name, config.distribution.policy or "custom")
        self._set("rounds_planned", config.schedule.max_stages * config.schedule.rounds_per_stage)
        self._set("lag_rounds", config.schedule.lag)
        self._set("rounds_learned", newest.rounds[1] + 1 if newest else 0)
        self._add("scheduler_losses", 0 if first else 1)
        for name in ("stages_committed", "env_steps", "episodes", "failed_attempts", "missed_shards"):
            self._add(name, 0)
        if newest is not None:
            if first:
                self._add("stages_committed", newest.stage + 1)
                self._add("env_steps", newest.env_steps)
                self._add("episodes", newest.episodes)
            self._set_results(newest)

    def progress(self, event: Progress) -> None:
        """Note a learned round."""
        self._set("rounds_learned", event.round + 1)
        self._set("learner_wait_ratio", event.wait_share)
        self._set("learner_queue_shards", event.queue_depth)
        if event.episode_return is not None:
            self._set("episode_return", event.episode_return)

    def stage(self, before: Commit | None, commit: Commit, timings: StageTimings) -> None:
        """Note a committed stage.

        Args:
            before: the commit before it; None at the first stage.
            commit: of the stage.
            timings: of the stage.
        """
        steps = commit.env_steps - (before.env_steps if before else 0)
        self._add("stages_committed", 1)
        self._add("env_steps", steps)
        self._add("episodes", commit.episodes - (before.episodes if before else 0))
        self._add("failed_attempts", timings.attempt)
        self._set("env_steps_per_second", steps / timings.stage_seconds if timings.stage_seconds > 0 else 0.0)
        self._set("rounds_learned", commit.rounds[1] + 1)
        self._set_results(commit)
        for part, seconds in stage_parts(timings).items():
            self._add("stage_seconds", seconds, part)
        for component, members in timings.by_component.items():
            for times in members:
                for work, seconds in times.work_seconds.items():
                    self._add("component_seconds", seconds, component, work)
        for member, place in timings.members.items():
            self._add("member_restarts", place.reports - 1, member.rsplit("-", 1)[0])
        for edge, count in timings.edges.items():
            self._add("edge_bytes", count.bytes, edge)
            self._add("edge_messages", count.rounds, edge)
        self._add("missed_shards", timings.missed_shards or 0)
        self._add_usage(timings)

    def scheduler(self, address: str, load: SchedulerLoad | None) -> None:
        """Note what a Dask scheduler answered; None if it did not."""
        self._set("scheduler_up", 0 if load is None else 1, address)
        if load is None:
            return
        self._set("scheduler_workers", load["workers"], address)
        self._replace("scheduler_tasks", address, {(state,): count for state, count in load["tasks"].items()})
        slots: dict[tuple[str, ...], float] = {(name, "free"): free for name, (_, free) in load["slots"].items()}
        slots |= {(name, "occupied"): total - free for name, (total, free) in load["slots"].items()}
        self._replace("scheduler_slots", address, slots)

    def _add_usage(self, timings: StageTimings) -> None:
        memory: dict[str, int] = {}
        gpu: dict[str, int] = {}
        for usage in timings.processes:
            role = usage.members[0].rsplit("-", 1)[0]
            self._add("cpu_seconds", usage.cpu_seconds, role)
            self._add_store_calls("workers", usage.store)
            memory[role] = memory.get(role, 0) + usage.memory_bytes
            if usage.gpu_memory_bytes is not None:
                gpu[role] = gpu.get(role, 0) + usage.gpu_memory_bytes
        for name, values in (("memory_bytes", memory), ("gpu_memory_bytes", gpu)):
            for role, value in values.items():
                self._set(name, value, role)

    def count_store_calls(self) -> None:
        """Add the flow's calls of the store since the last time; reading the whole registry does it."""
        with self._lock:
            earlier, self._stored = self._stored, self._tally.counts()
            self._add_store_calls("flow", calls_since(earlier, self._stored))

    def _add_store_calls(self, process: str, counts: Mapping[str, StoreCalls]) -> None:
        for operation, calls in counts.items():
            self._add("store_calls", calls.calls, process, operation)
            self._add("store_seconds", calls.seconds, process, operation)
            self._add("store_bytes", calls.bytes, process, operation)
            self._add("store_errors", calls.errors, process, operation)

    def _replace(self, name: str, address: str, values: Mapping[tuple[str, ...], float]) -> None:
        """Set a gauge of a scheduler for some labels, and to 0 for those that it had before and has no longer."""
        known = self._labels.setdefault((name, address), set())
        known.update(values)
        for labels in known:
            self._set(name, values.get(labels, 0), address, *labels)

    def _set_results(self, commit: Commit) -> None:
        self._set("version", commit.version)
        if (acted := commit.metrics.get("episode_return")) is not None:
            self._set("episode_return", acted)
        if commit.evaluation is not None:
            self._set("evaluation_return", commit.evaluation["mean_return"])

    def _add(self, name: str, amount: float, *labels: str) -> None:
        self._metrics[name].labels(self._run, *labels).inc(amount)

    def _set(self, name: str, value: float, *labels: str) -> None:
        self._metrics[name].labels(self._run, *labels).set(value)


class _Before(Collector):
    """Calls a function whenever the registry is read, before the metrics that are registered later are."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function

    def describe(self) -> Iterable[Metric]:
        """Return nothing; without this method, the function is called at once."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Call the function."""
        self._function()
        return ()


def stage_parts(timings: StageTimings) -> dict[str, float]:
    """Return a stage's seconds by part, in their order; they add up to the stage's."""
    parts = {
        "admission": timings.admission_seconds,
        "gather": timings.gather_seconds,
        "roles": timings.roles_seconds,
        "evaluate": timings.evaluate_seconds,
    }
    return {**parts, "commit": max(0.0, timings.stage_seconds - sum(parts.values()))}
