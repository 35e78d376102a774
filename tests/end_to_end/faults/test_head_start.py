"""A run with its own workers begins while Prefect's server starts, and has the same bytes whatever becomes of it.

The server of these runs is a real one. It starts when a file is there, so that it comes as late as a test wants.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil
import pytest

from ...support.processes.commands import wait_until
from ...support.services.prefect_server import migrated_database
from ...support.stored.stored_run import assert_same
from ..conftest import BRIEF, ENDLESS, Bench
from ..operation.test_finished_run import ask

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ...support.processes.commands import Command

SERVER_WAITS = """
import os, sys, time

if "penstock.flows.api.serve_prefect" in sys.orig_argv:
    while not os.path.exists(os.environ["PENSTOCK_TEST_SERVER_STARTS"]):
        time.sleep(0.01)
"""


@dataclass(frozen=True)
class Late:
    """A folder of runs whose Prefect server starts late."""

    bench: Bench
    home: Path
    starts: Path
    """The servers start when this file exists."""

    def train(self, *, rounds: int) -> Command:
        """Start a run, and wait until so many of its rounds are stored."""
        flow = self.bench.train_alone("early", BRIEF)
        self.bench.run("early").wait_for_round(rounds - 1, flow)
        return flow

    def resume(self) -> None:
        self.starts.touch()
        self.bench.penstock("resume", "early", "--store", self.bench.store).succeed()


@pytest.fixture
def late(tmp_path: Path, pytestconfig: pytest.Config) -> Iterator[Late]:
    (folder := tmp_path / "python").mkdir()
    (folder / "sitecustomize.py").write_text(SERVER_WAITS)
    (home := tmp_path / "home").mkdir()
    shutil.copyfile(migrated_database(pytestconfig.rootpath / "build" / "tests"), home / "prefect.db")
    environment = {
        "PREFECT_HOME": str(home),
        "DO_NOT_TRACK": "1",
        "COLUMNS": "200",
        "PYTHONPATH": str(folder),
        "PENSTOCK_TEST_SERVER_STARTS": str(tmp_path / "starts"),
    }
    bench = Bench(tmp_path, environment, scheduler="")
    yield Late(bench, home, tmp_path / "starts")
    bench.close()


def wait_for_end(processes: list[psutil.Process]) -> None:
    def there() -> list[psutil.Process]:
        return [each for each in processes if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]

    wait_until(lambda: not there(), lambda: f"the end of {there()}")


@pytest.mark.slow
def test_the_first_stage_does_not_wait_for_prefect(late, references):
    """All its rounds are stored while no server answers, and committed when one does.

    The run has the same bytes, the flow run and each task run are recorded as completed, and no process is left. A wait
    for the server is shown with the stage that waited.
    """
    flow, run = late.train(rounds=BRIEF.rounds), late.bench.run("early")
    wait_until(lambda: run.store.list("checkpoints/"), lambda: f"the end of the first stage, {flow.output}")
    assert run.commits() == []
    started = flow.descendants()
    late.starts.touch()
    stages = [line for line in flow.succeed().splitlines() if line.startswith("stage ")]
    waits = ["prefect_seconds" in timings for timings in run.timings()]
    assert waits == [True, False]
    assert ["for Prefect" in line for line in stages] == waits
    assert_same(run, references.content(BRIEF))
    wait_for_end(started)
    with closing(sqlite3.connect(late.home / "prefect.db")) as database:
        flow_runs = database.execute("SELECT name, state_type FROM flow_run").fetchall()
        task_runs = database.execute("SELECT name, state_type FROM task_run").fetchall()
    assert flow_runs == [("train early", "COMPLETED")]
    expected = [f"{role} stage {stage}" for role in ("act", "learn", "evaluate") for stage in range(BRIEF.stages)]
    assert sorted(task_runs) == sorted((name, "COMPLETED") for name in expected)


@pytest.mark.slow
def test_a_run_that_is_killed_before_prefect_answers_resumes(late, references):
    """It learns from what was stored, and has the bytes of a run that was never killed."""
    flow, run = late.train(rounds=2), late.bench.run("early")
    started = flow.descendants()
    flow.kill()
    assert run.commits() == []
    late.resume()
    wait_for_end(started)
    assert_same(run, references.content(BRIEF))


@pytest.mark.slow
def test_a_server_that_does_not_start_ends_the_run(late, references):
    """The error names the reason and the run; its members leave, its lease is released, and it resumes later."""
    database = late.home / "prefect.db"
    shutil.copyfile(database, late.home / "intact.db")
    database.write_text("no database")
    flow, run = late.train(rounds=2), late.bench.run("early")
    started = flow.descendants()
    late.starts.touch()
    flow.refuse("Prefect's server exited at its start", "file is not a database", "penstock resume early")
    wait_for_end(started)
    assert b'"released":true' in run.store.read("lease.json")
    assert run.commits() == []
    (late.home / "intact.db").replace(database)
    late.resume()
    assert_same(run, references.content(BRIEF))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_run_that_is_stopped_before_prefect_answers_resumes(late, references, number):
    """After Ctrl-C or SIGTERM there is one message, the lease is released, and no process is left."""
    flow, run = late.train(rounds=2), late.bench.run("early")
    started = flow.descendants()
    flow.send(number)
    late.starts.touch()  # a server that waits for it has not run yet what ends it with its parent
    assert flow.wait() == 128 + number
    wait_for_end(started)
    assert "Traceback" not in flow.output, flow.output
    assert "resume" in flow.errors
    assert b'"released":true' in run.store.read("lease.json")
    assert run.commits() == []
    late.resume()
    assert_same(run, references.content(BRIEF))


@pytest.mark.slow
def test_a_run_that_another_flow_drives_is_refused(bench, prefect_api):
    """A command is refused before there is a flow run; a flow run that a deployment starts fails and says why."""
    flow, run = bench.train("taken", ENDLESS), bench.run("taken")
    run.wait_for_round(1, flow)
    bench.penstock("resume", "taken", "--store", bench.store).refuse("driven by", str(flow.pid))

    def states() -> list[tuple[str, str]]:
        return sorted((each["name"], each["state_type"]) for each in ask(prefect_api, "flow_runs/filter", {}))

    assert [state for name, state in states() if "taken" in name] == ["RUNNING"]
    program = "import sys; from penstock.flows.resume import resume; resume('taken', sys.argv[1])"
    environment = {**os.environ, **bench.environment}
    ended = subprocess.run(
        [sys.executable, "-c", program, bench.store], env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert re.search(rf"LeaseHeldError: the run is driven by .*pid {flow.pid}", ended.stderr), ended.stderr
    assert sorted(state for name, state in states() if "taken" in name) == ["FAILED", "RUNNING"]
