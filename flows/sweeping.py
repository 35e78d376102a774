"""What a sweep trains, and how: one run a point of a grid, each in a process of its own, some of them at once."""

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

from flows.overrides import resolve_setting
from flows.summary import told_return
from storage.digest import canonical_json, digest
from storage.errors import ConfigError, PenstockError
from storage.run import RunFolder
from storage.store import open_store
from tasks.config import TrainConfig, build_config, laid_over

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,54}")
_LOOK_SECONDS = 0.2
_END_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a grid."""

    values: Mapping[str, Any]
    """Of the settings that the grid varies."""
    config: TrainConfig
    """Of its run, whose name follows from its settings: started again, the sweep finds the run."""


def grid_points(name: str, grid: Mapping[str, Sequence[Any]], config: TrainConfig) -> list[Point]:
    """Every combination of a grid's values, laid over settings that they share.

    Args:
        name: of the sweep.
        grid: values by the name of a setting, in full or, where that is unique, its last part.
        config: what the runs have in common; its name is not taken.

    Raises:
        ConfigError: a name or value is wrong, or two combinations are the same run.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(f"'{name}' can't name a sweep: expected 1 to 55 of a-z, 0-9, '.', '_', '-', not first a mark")
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
        built = build_config({**laid_over(shared, override), "name": None})
        points.append(Point(values, built.model_copy(update={"name": f"{name}-{_mark(built)}"})))
    names = [point.config.name for point in points]
    twice = [point.values for point in points if names.count(point.config.name) > 1]
    if twice:
        raise ConfigError(f"grid: the same run more than once: {twice[0]}; give each value once")
    return points


def train_points(
    sweep: str, points: Sequence[Point], runs_at_once: int, show: Callable[[list[dict[str, Any]]], None]
) -> list[dict[str, Any]]:
    """Train what is not finished yet; `show` gets the comparison whenever a run has ended.

    Returns:
        The comparison: a row a point, the best first.

    Raises:
        PenstockError: some runs could not be trained to their end; all others were.
    """
    problems: dict[str, str] = {}
    waiting = [point for point in points if not point_row(point)["finished"]]
    running: dict[_Trained, Point] = {}
    show(compared(points, problems))
    try:
        while waiting or running:
            while waiting and len(running) < runs_at_once:
                point = waiting.pop(0)
                running[_Trained(sweep, point.config)] = point
            for trained in [trained for trained in running if trained.ended]:
                point = running.pop(trained)
                if problem := trained.problem():
                    problems[str(point.config.name)] = problem
                show(compared(points, problems))
            time.sleep(_LOOK_SECONDS)
    finally:
        for trained in running:
            trained.end()
    if problems:
        raise PenstockError(
            f"{len(problems)} of {len(points)} runs did not come to their end; start the sweep again to go on with "
            f"them. {'; '.join(f'{name}: {problem}' for name, problem in problems.items())}"
        )
    return compared(points, problems)


def compared(points: Sequence[Point], problems: Mapping[str, str]) -> list[dict[str, Any]]:
    """A row a point, the best evaluation first."""
    rows = [{**point_row(point), "problem": problems.get(str(point.config.name))} for point in points]
    return sorted(rows, key=lambda row: -float("inf") if row["return"] is None else row["return"], reverse=True)


def point_row(point: Point) -> dict[str, Any]:
    """What a point's run has reached, as its store says."""
    run = RunFolder(open_store(point.config.store), str(point.config.name))
    newest = run.log.newest()
    evaluation = newest["evaluation"] if newest else None
    return {
        **point.values,
        "run": run.name,
        "return": told_return(evaluation["mean_return"]) if evaluation else None,
        "stages": newest["stage"] + 1 if newest else 0,
        "env steps": newest["env_steps"] if newest else 0,
        "finished": newest["finished"] if newest else None,
    }


class _Trained:
    """A process that trains a run. It leaves when this one is gone, for then its standard input ends."""

    def __init__(self, sweep: str, config: TrainConfig) -> None:
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed when it was read, or at the end)
        # What Prefect tells the process of a flow run about that flow run is not for another one.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT__")}
        if address := PREFECT_API_URL.value():
            environment["PREFECT_API_URL"] = str(address)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "flows.point"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._said,
        )
        order = {"sweep": sweep, "config": config.model_dump(mode="json", exclude_unset=True)}
        with contextlib.suppress(BrokenPipeError):  # it ended at once, and has said why
            stdin = self._process.stdin
            assert stdin is not None
            stdin.write(json.dumps(order).encode() + b"\n")
            stdin.flush()

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def problem(self) -> str | None:
        """What it said last, if it did not end well."""
        self._leave()
        with self._said as said:
            if self._process.returncode == 0:
                return None
            said.seek(0)
            lines = said.read().decode(errors="replace").strip().splitlines()
        return lines[-1].removeprefix("error: ") if lines else f"ended with {self._process.returncode}"

    def end(self) -> None:
        """Tell it to leave, and wait until it has."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._leave()
        self._said.close()

    def _leave(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            if self._process.stdin is not None:
                self._process.stdin.close()


def _mark(config: TrainConfig) -> str:
    """Eight digits that follow from what a run computes, and stay where a later version adds settings."""
    settings = config.model_dump(mode="json", exclude={"name", "store", "cluster"}, exclude_defaults=True)
    return digest(canonical_json([config.algorithm.name, settings]))[:8]
