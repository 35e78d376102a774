"""Callbacks, trackers and early stopping as a user gives them, on whole runs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ...support.processes.commands import Command
from ..conftest import BRIEF

if TYPE_CHECKING:
    from ..conftest import Bench, References

CALLBACK = """
import os, penstock
class Mine(penstock.Callback):
    def on_stage(self, record):
        with open(os.environ["CALLED"], "a") as file:
            file.write(f"{record.stage} {record.env_steps} {record.evaluation['mean_return']}\\n")
        raise ValueError("no luck")
"""


@pytest.mark.slow
def test_callbacks_and_trackers_change_no_byte(bench: Bench, references: References):
    """A callback that fails is a warning, TensorBoard has the commits' returns, and the run's bytes are the same."""
    (bench.folder / "mine.py").write_text(CALLBACK)
    logs, called = bench.folder / "logs", bench.folder / "called"
    options = ("--callback", "mine:Mine", "--track", f"tensorboard:{logs}", "--track", "mlflow:http://127.0.0.1:9")
    options += ("--cluster.callback-seconds", "600")  # a report takes minutes where cores are busy
    where = ("--store", bench.store, "--scheduler", bench.scheduler)
    arguments = ("train", bench.preset(BRIEF), "--name", "tracked", *where, *options)
    environment = {**bench.environment, "CALLED": str(called)}
    command = Command(arguments, environment, bench.folder / "command", cwd=bench.folder)
    bench.commands.append(command)
    command.succeed()
    assert command.output.count("callback Mine failed in on_stage: ValueError: no luck") == 1
    assert command.output.count("tracker mlflow failed in on_stage: ConnectError") == 1
    run = bench.run("tracked")
    assert run.content() == references.content(BRIEF)
    assert run.folder.load()["identity"] == references.run(BRIEF).folder.load()["identity"]
    returns = [commit["evaluation"]["mean_return"] for commit in run.commits()]
    lines = [
        f"{commit['stage']} {commit['env_steps']} {value}" for commit, value in zip(run.commits(), returns, strict=True)
    ]
    assert called.read_text().splitlines() == lines
    read = EventAccumulator(str(logs / "tracked"))
    read.Reload()
    assert [event.value for event in read.Scalars("return/evaluation")] == pytest.approx(returns, rel=1e-6)
    assert (logs / "tracked/report.html").stat().st_size > 100_000


@pytest.mark.parametrize(
    ("options", "mentioned"),
    [
        (["--track", "aim"], ["cluster.track", "'aim' is no tracker"]),
        (["--track", "mlflow"], ["tracker mlflow", "MLFLOW_TRACKING_URI"]),
        (["--callback", "nowhere:Mine"], ["callback nowhere:Mine", "importing nowhere failed"]),
        (["--callback", "nowhere"], ["cluster.callbacks", "expected module:Name"]),
        (["--stop-min-improvement", "2"], ["without stop_patience_evaluations"]),
    ],
    ids=" ".join,
)
def test_mistakes_are_refused_before_anything_starts(bench: Bench, options: list[str], mentioned: list[str]):
    """Each is one line, and no run is created."""
    bench.train("refused", BRIEF, *options).refuse(*mentioned)
    assert not bench.run("refused").store.list()


@pytest.mark.slow
def test_a_killed_run_stops_early_at_the_same_stage(bench: Bench):
    """The decision is made from the commits, so the bytes are those of a run that was not killed."""
    settings = replace(BRIEF, stages=12)
    options = ("--stop-patience-evaluations", "2", "--stop-min-improvement", "50")
    bench.train("whole", settings, *options).succeed()
    whole = bench.run("whole")
    finished = whole.commits()[-1]["finished"]
    assert "no improvement over a mean return of" in finished
    assert len(whole.commits()) < settings.stages
    flow = bench.train("killed", settings, *options)
    bench.run("killed").wait_for_round(settings.rounds, flow)
    flow.kill()
    resumed = bench.resume("killed")
    resumed.wait()
    assert bench.run("killed").content() == whole.content()
