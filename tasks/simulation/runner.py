"""Runs many schedules of the simulator, in several processes if wanted, and adds up what they covered and found."""

from __future__ import annotations

import gc
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import TYPE_CHECKING

from penstock.tasks.simulation.schedule import run_schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_CHUNK = 100
"""Schedules between two collections of cyclic garbage, which threads that were killed leave."""


@dataclass(slots=True)
class SimulationReport:
    """The result of many schedules."""

    schedules: int = 0
    steps: int = 0
    """Operations on stores."""
    faults: int = 0
    processor_seconds: float = 0.0
    quiet_seconds: float = 0.0
    """The longest virtual time from the last consequence of a fault to the commit after it."""
    coverage: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Number of faults by kind and by the step that they hit: role, operation and folder."""
    violations: dict[int, str] = field(default_factory=dict)
    """Faults of the protocol by seed."""

    def add(self, other: SimulationReport) -> None:
        """Add the result of other schedules."""
        self.schedules += other.schedules
        self.steps += other.steps
        self.faults += other.faults
        self.processor_seconds += other.processor_seconds
        self.quiet_seconds = max(self.quiet_seconds, other.quiet_seconds)
        self.coverage += other.coverage
        self.violations |= other.violations

    def table(self) -> list[tuple[str, dict[str, int]]]:
        """Return the protocol's steps in order of their names, each with the number of faults by kind."""
        steps: dict[str, dict[str, int]] = {}
        for (kind, step), count in sorted(self.coverage.items()):
            steps.setdefault(step, {})[kind] = count
        return sorted(steps.items())


def simulate(
    seeds: Iterable[int], processes: int = 1, on_progress: Callable[[SimulationReport], None] = lambda _: None
) -> SimulationReport:
    """Run the schedules of some seeds.

    Args:
        seeds: of the schedules; each decides everything about its schedule.
        processes: how many share the work; 1 runs them in this process.
        on_progress: called now and then with the result so far.

    Returns:
        The added results; a violation names a seed, and `run_schedule(seed, traced=True)` shows how it came to it.
    """
    report = SimulationReport()
    chunks = _chunks(seeds)
    if processes == 1:
        for chunk in chunks:
            report.add(_simulate_chunk(chunk))
            on_progress(report)
        return report
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for part in pool.map(_simulate_chunk, chunks):
            report.add(part)
            on_progress(report)
    return report


def _chunks(seeds: Iterable[int]) -> Iterator[list[int]]:
    chunk: list[int] = []
    for seed in seeds:
        chunk.append(seed)
        if len(chunk) == _CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _simulate_chunk(seeds: list[int]) -> SimulationReport:
    report, started = SimulationReport(), time.process_time()
    was_enabled = gc.isenabled()
    gc.disable()
    gc.freeze()  # a collection then looks at what schedules left, and not at all modules
    try:
        for seed in seeds:
            outcome = run_schedule(seed)
            report.schedules += 1
            report.steps += outcome.steps
            report.faults += outcome.faults
            report.quiet_seconds = max(report.quiet_seconds, outcome.quiet_seconds)
            report.coverage += outcome.coverage
            if outcome.violation:
                report.violations[seed] = outcome.violation
    finally:
        if was_enabled:
            gc.enable()
            gc.collect()
            gc.unfreeze()
    report.processor_seconds = time.process_time() - started
    return report
