"""W&B's offline files have every stage once, with settings and the axis of environment steps."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from penstock.flows.observers.callbacks.records import run_start
from penstock.flows.observers.tracking.outcome import OutcomeMaker

from ....support.processes.commands import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from wandb.proto.wandb_internal_pb2 import Record

    from penstock.flows.observers.tracking.tracker import Tracker

    from ....support.stored.committed_run import CommittedRun


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """W&B writes below the test's folder and sends nothing."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def make_tracker() -> Callable[[], Tracker]:
    """Import W&B when a test runs: at the top, all of pytest's processes would spend three CPU seconds on it."""
    from penstock.flows.observers.tracking.wandb import WandbTracker

    return lambda: WandbTracker("wandb", OutcomeMaker(60.0), "penstock")


def written(folder: Path) -> list[Record]:
    from wandb.proto.wandb_internal_pb2 import Record

    from penstock.flows.observers.tracking.wandb_files import records

    files = sorted((folder / "wandb").glob("offline-run-*/*.wandb"))
    return [Record.FromString(data) for file in files for data in records(file)]


def steps(found: list[Record]) -> list[int]:
    return [one.history.step.num for one in found if one.WhichOneof("record_type") == "history"]


def wait_for_stages(folder: Path, stages: int) -> list[Record]:
    """Wait until the process of W&B has written its files to the end; they have each of the stages once."""
    wait_until(lambda: len(steps(written(folder))) >= stages, lambda: f"{stages} stages, not {steps(written(folder))}")
    found = written(folder)
    assert steps(found) == list(range(stages))
    return found


@pytest.mark.slow
def test_a_resumed_run_continues_the_same_record(tmp_path: Path, run: CommittedRun, drive, make_tracker):
    """The id is the run's, settings are W&B's config, and the next drive writes again what a kill lost."""
    drive(make_tracker(), 1.0, 2.0)
    wait_for_stages(tmp_path, 2)
    drive(make_tracker(), 3.0)
    found = wait_for_stages(tmp_path, 3)
    (first, second) = [one.run for one in found if one.WhichOneof("record_type") == "run"]
    assert first.run_id == second.run_id == run_start(run.folder, None).id
    assert (first.display_name, first.project) == ("small", "penstock")
    config = {one.key: json.loads(one.value_json) for one in first.config.update}
    assert config["schedule.lag"] == 0
    history = next(one.history for one in found if one.WhichOneof("record_type") == "history")
    values = {(item.key or "/".join(item.nested_key)): json.loads(item.value_json) for item in history.item}
    assert (values["progress/env_steps"], values["return/evaluation"], values["learning/loss"]) == (100, 1.0, 1.0)
    for file in (tmp_path / "wandb").glob("offline-run-*/*.wandb"):
        file.write_bytes(file.read_bytes()[:7])  # as a kill leaves it before the first block is full
    drive(make_tracker(), 4.0)
    wait_for_stages(tmp_path, 4)
