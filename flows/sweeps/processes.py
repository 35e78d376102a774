"""Trains the points of a sweep, some concurrently: each in a process with its own flow run, workers and memory."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from typing import IO, TYPE_CHECKING, NoReturn

from prefect.settings import PREFECT_API_URL

from penstock.flows.sweeps.progress import Progress
from penstock.storage.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from penstock.flows.sweeps.points import Point
    from penstock.tasks.setup.config.run import TrainConfig

_POLL_SECONDS = 0.2
_END_SECONDS = 20.0
DIVERGED_STATUS = 3
"""Exit status of a process whose run has diverged, as it would again: no reason to resume it."""


class TrainingPool:
    """Processes that train runs; those still running when the context ends are terminated.

    Args:
        sweep: name of the sweep, which tags the flow runs.
        runs_at_once: limit of processes.
    """

    def __init__(self, sweep: str, runs_at_once: int) -> None:
        self._sweep = sweep
        self._runs_at_once = runs_at_once
        self._running: dict[str, tuple[Point, _TrainingProcess]] = {}
        self.diverged: dict[str, str] = {}
        """By the names of runs that have diverged, what was not finite."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        processes = [process for _, process in self._running.values()]
        self._running.clear()
        for process in processes:
            process.terminate()
        deadline = time.monotonic() + _END_SECONDS
        for process in processes:
            process.wait_ended(deadline)

    @property
    def running(self) -> int:
        """Return the number of processes."""
        return len(self._running)

    @property
    def has_room(self) -> bool:
        """Return whether another process may start."""
        return len(self._running) < self._runs_at_once

    def start(self, point: Point, stages: int | None = None, *, waits: bool = False) -> None:
        """Train a point's run, or resume it.

        Args:
            point: not among those that are running.
            stages: leave the run, which can be resumed, at this number of stages; None trains it to its end.
            waits: at that number, wait for `allow` instead of leaving.
        """
        self._running[point.name] = (point, _TrainingProcess(self._sweep, point.config, stages, waits=waits))

    def allow(self, point: Point, stages: int) -> None:
        """Let a waiting run continue to a number of stages; 0 makes it leave at the next commit."""
        if point.name in self._running:
            self._running[point.name][1].allow(stages)

    def ended(self) -> Iterator[tuple[Point, str | None]]:
        """Wait a moment, then yield the points whose process has ended, each with its problem if it failed.

        A run that has diverged is in `diverged` by then, and its problem is the same.
        """
        time.sleep(_POLL_SECONDS)
        for name, (point, process) in list(self._running.items()):
            if process.ended:
                del self._running[name]
                problem = process.problem()
                if problem is not None and process.has_diverged:
                    self.diverged[name] = problem
                yield point, problem


def train_points(
    sweep: str,
    points: Sequence[Point],
    runs_at_once: int,
    show: Callable[[Mapping[str, str]], None],
    stages: int | None = None,
) -> dict[str, str]:
    """Train the points that are not there yet.

    Args:
        sweep: name of the sweep.
        points: in the order of their start.
        runs_at_once: number of runs trained concurrently.
        show: called whenever a run has ended, with the problems so far by the name of the run.
        stages: number of stages of each run; None trains runs to their end.

    Returns:
        By the names of the runs that have diverged, what was not finite.

    Raises:
        PenstockError: some runs failed; all others are there, or have diverged.
    """
    waiting = [point for point in points if not _is_there(point, stages)]
    problems: dict[str, str] = {}
    show(problems)
    with TrainingPool(sweep, runs_at_once) as pool:
        while waiting or pool.running:
            while waiting and pool.has_room:
                pool.start(waiting.pop(0), stages)
            for point, problem in pool.ended():
                if problem and not _is_there(point, stages):  # a process may fail after its last commit
                    problems[point.name] = problem
                show(problems)
    refuse_problems({name: one for name, one in problems.items() if name not in pool.diverged}, len(points))
    return pool.diverged


def refuse_problems(problems: Mapping[str, str], runs: int) -> None:
    """Raise a PenstockError if there are problems, with the name of the run of each."""
    if problems:
        raise PenstockError(
            f"{len(problems)} of {runs} runs did not finish; start the sweep again to resume them. {_listed(problems)}"
        )


def refuse_divergence(diverged: Mapping[str, str]) -> NoReturn:
    """Raise a PenstockError where all runs have diverged, as they would again."""
    raise PenstockError(f"all runs have diverged, so none can be compared; choose other settings. {_listed(diverged)}")


def _listed(problems: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {problem}" for name, problem in problems.items())


def _is_there(point: Point, stages: int | None) -> bool:
    progress = Progress(point)
    progress.update()
    return progress.is_finished if stages is None else progress.has(stages)


class _TrainingProcess:
    """A process that trains a run. It ends when this process is gone, because its standard input ends then."""

    def __init__(self, sweep: str, config: TrainConfig, stages: int | None, *, waits: bool) -> None:
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
        settings = config.model_dump(mode="json", exclude_unset=True)
        self._tell({"sweep": sweep, "config": settings, "stages": stages, "waits": waits})

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def has_diverged(self) -> bool:
        return self._process.returncode == DIVERGED_STATUS

    def allow(self, stages: int) -> None:
        self._tell(stages)

    def problem(self) -> str | None:
        """Return the last line of its standard error if it failed."""
        self._close_input()
        with self._said as said:
            if self._process.returncode == 0:
                return None
            said.seek(0)
            lines = said.read().decode(errors="replace").strip().splitlines()
        return lines[-1].removeprefix("error: ") if lines else f"exited with status {self._process.returncode}"

    def terminate(self) -> None:
        """Ask the process to end."""
        self._process.send_signal(signal.SIGTERM)

    def wait_ended(self, deadline: float) -> None:
        """Wait for the process until a time of the monotonic clock, then kill it."""
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._close_input()
        self._said.close()

    def _tell(self, message: object) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it ended; `problem` has its error
            stdin.write(json.dumps(message).encode() + b"\n")
            stdin.flush()

    def _close_input(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            if self._process.stdin is not None:
                self._process.stdin.close()
