"""Trains the points of a sweep: one run for each combination of a grid, each in its own process, some concurrently."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from prefect.settings import PREFECT_API_URL

from penstock.flows.display.summary import round_return
from penstock.flows.settings.options import resolve_setting
from penstock.storage.digest import canonical_json, digest
from penstock.storage.errors import ConfigError, PenstockError
from penstock.storage.runs.run import RunFolder
from penstock.storage.stores.open import open_store
from penstock.tasks.setup.config.loading import build_config, with_overrides

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.tasks.setup.config.run import TrainConfig

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,54}")
_POLL_SECONDS = 0.2
_END_SECONDS = 20.0

SweepRow = dict[str, Any]
"""The values of the varied settings, then `run`, `return`, `stages`, `env steps`, `finished` and `problem`."""


@dataclass(frozen=True, slots=True)
class Point:
    """One point of a grid."""

    values: Mapping[str, Any]
    """Values of the settings that the grid varies."""
    config: TrainConfig
    """Configuration of its run; the name is derived from the settings, so that a restarted sweep finds the run."""


def grid_points(name: str, grid: Mapping[str, Sequence[Any]], config: TrainConfig) -> list[Point]:
    """Return every combination of a grid's values as overrides of shared settings.

    Args:
        name: name of the sweep.
        grid: values by the name of a setting, in full or, where that is unique, its last part.
        config: settings that the runs share; its name is ignored.

    Raises:
        ConfigError: a name or value is wrong, or two combinations are the same run.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"'{name}' can't name a sweep: expected 1 to 55 of a-z, 0-9, '.', '_', '-', first a letter or digit"
        )
    for setting, choices in grid.items():
        if not choices:
            raise ConfigError(f"grid: '{setting}' has no values; give it one at least, or leave it out")
    paths = {resolve_setting(setting.replace("-", "_")): list(choices) for setting, choices in grid.items()}
    fixed = sorted(path for path in paths if path.split(".")[0] in {"name", "store", "cluster"})
    if fixed:
        raise ConfigError(f"grid: {', '.join(fixed)} can't be varied; it is not part of what a run computes")
    shared = config.model_dump(mode="json", exclude_unset=True)
    points = []
    for combination in itertools.product(*paths.values()):
        override: dict[str, Any] = {}
        for path, value in zip(paths, combination, strict=True):
            *tables, last = path.split(".")
            table = override
            for each in tables:
                table = table.setdefault(each, {})
            table[last] = value
        values = dict(zip(paths, combination, strict=True))
        built = build_config({**with_overrides(shared, override), "name": None})
        points.append(Point(values, built.model_copy(update={"name": f"{name}-{_mark(built)}"})))
    names = [point.config.name for point in points]
    twice = [point.values for point in points if names.count(point.config.name) > 1]
    if twice:
        raise ConfigError(f"grid: the same run more than once: {twice[0]}; give each value once")
    return points


def train_points(
    sweep: str, points: Sequence[Point], runs_at_once: int, show: Callable[[list[SweepRow]], None]
) -> list[SweepRow]:
    """Train the unfinished points; `show` gets the comparison whenever a run has ended.

    Returns:
        The comparison: one row per point, the best first.

    Raises:
        PenstockError: some runs failed; all others are finished.
    """
    problems: dict[str, str] = {}
    waiting = [point for point in points if not point_row(point)["finished"]]
    running: dict[_TrainingProcess, Point] = {}
    show(compared(points, problems))
    try:
        while waiting or running:
            while waiting and len(running) < runs_at_once:
                point = waiting.pop(0)
                running[_TrainingProcess(sweep, point.config)] = point
            for trained in [trained for trained in running if trained.ended]:
                point = running.pop(trained)
                if problem := trained.problem():
                    problems[str(point.config.name)] = problem
                show(compared(points, problems))
            time.sleep(_POLL_SECONDS)
    finally:
        for trained in running:
            trained.end()
    if problems:
        raise PenstockError(
            f"{len(problems)} of {len(points)} runs did not finish; start the sweep again to resume them. "
            f"{'; '.join(f'{name}: {problem}' for name, problem in problems.items())}"
        )
    return compared(points, problems)


def compared(points: Sequence[Point], problems: Mapping[str, str]) -> list[SweepRow]:
    """Return one row per point, the best evaluation first."""
    rows = [{**point_row(point), "problem": problems.get(str(point.config.name))} for point in points]
    return sorted(rows, key=lambda row: -float("inf") if row["return"] is None else row["return"], reverse=True)


def point_row(point: Point) -> SweepRow:
    """Return how far a point's run is, read from its store."""
    run = RunFolder(open_store(point.config.store), str(point.config.name))
    newest = run.log.newest()
    evaluation = newest.evaluation if newest else None
    return {
        **point.values,
        "run": run.name,
        "return": round_return(evaluation["mean_return"]) if evaluation else None,
        "stages": newest.stage + 1 if newest else 0,
        "env steps": newest.env_steps if newest else 0,
        "finished": newest.finished if newest else None,
    }


class _TrainingProcess:
    """A process that trains a run. It ends when this process is gone, because its standard input ends then."""

    def __init__(self, sweep: str, config: TrainConfig) -> None:
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed when it was read, or at the end)
        # Prefect's variables about this flow run must not reach another flow run.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT__")}
        if address := PREFECT_API_URL.value():
            environment["PREFECT_API_URL"] = str(address)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "penstock.flows.cli.sweep_point"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._said,
        )
        order = {"sweep": sweep, "config": config.model_dump(mode="json", exclude_unset=True)}
        with contextlib.suppress(BrokenPipeError):  # it ended at once; `problem` has its error
            stdin = self._process.stdin
            assert stdin is not None
            stdin.write(json.dumps(order).encode() + b"\n")
            stdin.flush()

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def problem(self) -> str | None:
        """Return the last line of its standard error if it failed."""
        self._close_input()
        with self._said as said:
            if self._process.returncode == 0:
                return None
            said.seek(0)
            lines = said.read().decode(errors="replace").strip().splitlines()
        return lines[-1].removeprefix("error: ") if lines else f"exited with status {self._process.returncode}"

    def end(self) -> None:
        """Terminate the process, and wait for it."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._close_input()
        self._said.close()

    def _close_input(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            if self._process.stdin is not None:
                self._process.stdin.close()


def _mark(config: TrainConfig) -> str:
    """Return eight digits of the digest of a run's settings; defaults are left out, so that new settings keep it."""
    settings = config.model_dump(mode="json", exclude={"name", "store", "cluster"}, exclude_defaults=True)
    if "distribution" in settings:  # under its first name, so that sweeps find the runs of earlier versions
        settings["placement"] = settings.pop("distribution")
    return digest(canonical_json([config.algorithm.name, settings]))[:8]
